// A server and its clients in one process, for SECONDS: JSON, packed answers, hashes, files, sessions that live for two seconds,
// and a thread after another that works for a moment.
const http = require('http'), zlib = require('zlib'), crypto = require('crypto'), fs = require('fs'), { Worker } = require('worker_threads');
const until = Date.now() + 1000 * Number(process.argv[2]);
const sessions = new Map(), cache = new Map();
const server = http.createServer((request, response) => {
  const parts = [];
  request.on('data', part => parts.push(part)).on('end', () => {
    const asked = JSON.parse(Buffer.concat(parts));
    const session = { id: crypto.randomUUID(), kept: Buffer.alloc(2048 + asked.at % 4096), hash: crypto.createHash('sha256') };
    sessions.set(session.id, session);
    setTimeout(() => sessions.delete(session.id), 2000);
    session.hash.update(session.kept);
    cache.set(asked.at % 500, Buffer.from(JSON.stringify(asked).repeat(20)));
    fs.readFile(__filename, (error, text) => {
      if (error) throw error;
      zlib.deflate(text, (error, packed) => {
        if (error) throw error;
        response.setHeader('x-hash', session.hash.digest('hex'));
        response.end(packed);
      });
    });
  });
});
server.listen(0, '127.0.0.1', () => {
  const agent = new http.Agent({ keepAlive: true, maxSockets: 16 });
  let running = 0, at = 0;
  const ask = () => {
    if (Date.now() > until) { if (--running === 0) process.exit(0); return; }
    const body = JSON.stringify({ at: at++, words: Array.from({ length: 50 }, (_, n) => 'word-' + at * n) });
    const request = http.request({ port: server.address().port, host: '127.0.0.1', method: 'POST', agent }, answer => {
      const parts = [];
      answer.on('data', part => parts.push(part)).on('end', () => { zlib.inflateSync(Buffer.concat(parts)); ask(); });
    });
    request.end(body);
  };
  for (; running < 16; running++) ask();
});
const turn = () => { if (Date.now() < until - 1000) new Worker('let s = 0; for (let i = 0; i < 1e6; i++) s += JSON.parse(JSON.stringify({ i })).i;', { eval: true }).on('exit', turn); };
turn();
