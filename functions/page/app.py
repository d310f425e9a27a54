"""An HTML page: behind a function URL, or called with {"name": "World", "rows": 100}."""

import random

import jinja2

TEMPLATE = jinja2.Environment(loader=jinja2.FileSystemLoader("."), autoescape=True).get_template("page.html")
MOST_ROWS = 100_000  # as many as the largest input of SeBS' dynamic-html has


def handler(event, context):
    wanted = event.get("queryStringParameters") or event
    rows = int(wanted.get("rows", 100))
    if not 0 <= rows <= MOST_ROWS:
        raise ValueError(f"rows must be 0 to {MOST_ROWS}")
    numbers = random.Random(int(wanted.get("seed", 1)))
    page = TEMPLATE.render(
        name=wanted.get("name", "World"),
        rows=[numbers.randrange(1_000_000) for _ in range(rows)],
        request=context.aws_request_id,
    )
    return {"statusCode": 200, "headers": {"Content-Type": "text/html; charset=utf-8"}, "body": page}
