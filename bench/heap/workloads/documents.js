// What a web server's handlers do all day: documents are parsed, indexed, rendered and compressed; some are kept for a while.
//
//   node documents.js ROUNDS
'use strict'
const zlib = require('zlib')

const rounds = Number(process.argv[2])
if (!(rounds > 0)) throw new Error(`documents.js: rounds ${process.argv[2]}: must be more than 0`)
let seed = 1
const random = below => (seed = (seed * 48271) % 2147483647) % below

const made = n => ({
  id: n,
  name: `name ${random(1000)}`,
  tags: Array.from({ length: 3 + random(20) }, () => `tag-${random(5000).toString(36)}`),
  body: 'lorem ipsum '.repeat(1 + random(40)),
  parts: Array.from({ length: random(12) }, (_, i) => ({ i, at: random(1e9), values: [random(9), random(99)] })),
})
const kept = new Map()
const index = new Map()
let bytes = 0
for (let n = 0; n < rounds; n++) {
  const document = JSON.parse(JSON.stringify(made(n)))
  for (const tag of document.tags) index.set(tag, (index.get(tag) ?? 0) + 1)
  const page = Buffer.from(`<h1>${document.name.replace(/[aeiou]/g, '$&$&')}</h1>` + document.body.split(' ').sort().join(' '))
  kept.set(random(2000), n % 8 ? page : zlib.deflateSync(page))
  bytes += page.length
}
console.log(JSON.stringify({ documents: rounds, tags: index.size, kept: kept.size, bytes }))
