"""Renders a table and an inherited page with Mako, as pyperformance's mako does."""

import hashlib
import sys

from mako.lookup import TemplateLookup
from mako.template import Template
from measured import finished, measured, warming

BASE = """<%def name="render_table(table)"><table>
% for row in table:
<tr>
% for column in row:
<td>${column|h}</td>
% endfor
</tr>
% endfor
</table></%def><html><head><title>${title|h}</title></head><body>
<p>${next.body()}</p></body></html>"""
PAGE = """<%inherit file="base.mako"/>
<h1>${title|h}</h1>
% for i in range(images):
<img src="${i}.png" alt="${loremipsum}"/>
% endfor
% for paragraph in paragraphs:
<p>${paragraph|h}</p>
% endfor
${parent.render_table(table)}"""
LOREM = "Quisque lobortis hendrerit odio <et> consequat. " * 4

rounds = int(sys.argv[1])
lookup = TemplateLookup()
lookup.put_string("base.mako", BASE)
page = Template(PAGE, lookup=lookup, uri="page.mako")
table = [[f"{row}&{column}" for column in range(60)] for row in range(60)]
digest = hashlib.sha256()
warming()
for round in range(-1, rounds):
    if round == 0:
        measured()
        digest = hashlib.sha256()
    text = page.render(title="<Page>", images=30, loremipsum=LOREM, paragraphs=[LOREM] * 30, table=table)
    digest.update(text.encode())
finished()
print(f"mako: {rounds} pages, {digest.hexdigest()}")
