// Node with worker threads: buffers passed between them, zlib and crypto in the thread pool, WebAssembly memory. Prints checksums.
const { Worker, isMainThread, parentPort, workerData } = require('worker_threads');
const zlib = require('zlib');
const crypto = require('crypto');

function work(seed) {
  const hash = crypto.createHash('sha256');
  for (let round = 0; round < 40; round++) {
    const data = Buffer.alloc(30000 + round * 997, `seed ${seed} round ${round} `);
    const back = zlib.inflateSync(zlib.deflateSync(data, { level: 1 + (round % 9) }));
    if (!back.equals(data)) throw new Error(`round ${round} differs`);
    hash.update(back);
    hash.update(JSON.stringify(Object.fromEntries(Array.from({ length: 500 }, (_, i) => [`key${i}`, 'v'.repeat(i % 50)]))));
  }
  return hash.digest('hex');
}

if (!isMainThread) {
  parentPort.postMessage(work(workerData));
} else {
  (async () => {
    for (let batch = 0; batch < 4; batch++) {
      const results = await Promise.all(Array.from({ length: 6 }, (_, i) => new Promise((resolve, reject) => {
        const worker = new Worker(__filename, { workerData: batch * 6 + i });
        worker.on('message', resolve);
        worker.on('error', reject);
      })));
      results.forEach((result, i) => console.log(`ok worker ${batch * 6 + i} ${result}`));
    }
    const packed = await Promise.all(Array.from({ length: 30 }, (_, i) => new Promise((resolve, reject) =>
      zlib.gzip(Buffer.alloc(200000, `${i}`), (error, out) => (error ? reject(error) : resolve(zlib.gunzipSync(out).length))))));
    console.log(`ok pool ${packed.reduce((a, b) => a + b)}`);
    const memory = new WebAssembly.Memory({ initial: 10, maximum: 200 });
    memory.grow(100);
    console.log(`ok wasm ${memory.buffer.byteLength}`);
  })();
}
