// Node's cluster of two: each worker answers requests from a table of its own in a Buffer. The primary prints
// the port and the workers' pids once both listen, and ends with its input.
const cluster = require("node:cluster");
const http = require("node:http");

const WORKERS = 2;
const BYTES = 32 << 20;
const word = (at) => Math.imul(at, 2654435761) >>> 0;

if (cluster.isPrimary) {
  cluster.schedulingPolicy = cluster.SCHED_RR;
  const listening = [];
  cluster.on("listening", (worker, { port }) => {
    listening.push(worker.process.pid);
    if (listening.length === WORKERS) console.log(port, ...listening);
  });
  for (let count = 0; count < WORKERS; count++) cluster.fork();
  process.stdin.on("end", () => cluster.disconnect()).resume();
} else {
  const table = Buffer.alloc(BYTES);
  for (let at = 0; at < BYTES; at += 4) table.writeUInt32LE(word(at), at);
  const wrong = () => {
    let count = 0;
    for (let at = 0; at < BYTES; at += 4) count += table.readUInt32LE(at) !== word(at);
    return count;
  };
  const answer = (_, response) => {
    response.setHeader("Connection", "close"); // the next request is another worker's turn
    response.end(`${process.pid} ${wrong()}`);
  };
  http.createServer(answer).listen(0, "127.0.0.1");
}
