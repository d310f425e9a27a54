// An Express application behind HTTP events, through serverless-http.
const cookies = require('cookie-parser');
const express = require('express');
const serverless = require('serverless-http');

const app = express();
app.use(express.json(), cookies());
const address = (request) => `${request.protocol}://${request.get('host')}`;

app.get('/pets/:name', (request, answer) => answer.json({
  name: request.params.name, tags: [request.query.tag ?? []].flat(), seen: request.cookies.seen ?? null,
  url: address(request) + request.originalUrl,
}));
app.post('/pets', (request, answer) => {
  const { name, age = 1 } = request.body;
  if (!name) return answer.status(422).json({ error: 'name' });
  return answer.status(201).cookie('first', '1').cookie('second', '2').json({ name, age });
});
app.get('/bytes', (request, answer) => {
  answer.type('application/octet-stream').send(Buffer.from(Array.from({ length: 256 }, (_, n) => n)));
});
app.get('/old', (request, answer) => answer.redirect(307, `${address(request)}/pets/moved`));

exports.handler = serverless(app, { binary: ['application/octet-stream'] });
