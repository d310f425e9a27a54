// A Fastify application behind HTTP events, through @fastify/aws-lambda.
const lambda = require('@fastify/aws-lambda');
const fastify = require('fastify');

const app = fastify({ trustProxy: true });
const address = (request) => `${request.protocol}://${request.headers.host}`;

app.get('/pets/:name', (request, answer) => answer.send({
  name: request.params.name, tags: [request.query.tag ?? []].flat(), seen: /seen=([^;]*)/.exec(request.headers.cookie)?.[1] ?? null,
  url: address(request) + request.url,
}));
app.post('/pets', (request, answer) => {
  const { name, age = 1 } = request.body;
  if (!name) return answer.code(422).send({ error: 'name' });
  return answer.code(201).header('set-cookie', ['first=1', 'second=2']).send({ name, age });
});
app.get('/bytes', (request, answer) => {
  answer.type('application/octet-stream').send(Buffer.from(Array.from({ length: 256 }, (_, n) => n)));
});
app.get('/old', (request, answer) => answer.redirect(`${address(request)}/pets/moved`, 307));

exports.handler = lambda(app, { binaryMimeTypes: ['application/octet-stream'] });
