"""Renders a table and an inherited page with Mako, as pyperformance's mako does: so many times in
a call. mako_table.py PAGES"""

import hashlib
import sys

from mako.lookup import TemplateLookup
from mako.template import Template
from measured import called

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


def handler():
    digest = hashlib.sha256()
    for _ in range(rounds):
        text = page.render(title="<Page>", images=30, loremipsum=LOREM, paragraphs=[LOREM] * 30, table=table)
        digest.update(text.encode())
    return digest.hexdigest()


print(f"mako: {rounds} pages, {called(handler)}")
