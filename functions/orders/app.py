"""Prices an order: an HTTP API with the router, the log and the metrics of Powertools for AWS Lambda."""

from aws_lambda_powertools import Logger, Metrics
from aws_lambda_powertools.event_handler import LambdaFunctionUrlResolver
from aws_lambda_powertools.event_handler.exceptions import BadRequestError
from aws_lambda_powertools.logging import correlation_paths
from aws_lambda_powertools.metrics import MetricUnit

PRICES_CENTS = {"tea": 250, "cake": 390}

app = LambdaFunctionUrlResolver()
logger = Logger(service="orders")
metrics = Metrics(namespace="Shop", service="orders")


@app.get("/prices")
def prices():
    return PRICES_CENTS


@app.post("/orders")
def order():
    items = app.current_event.json_body
    unknown = sorted(set(items) - set(PRICES_CENTS))
    if unknown:
        raise BadRequestError(f"there is no {unknown[0]}")
    total = sum(PRICES_CENTS[item] * count for item, count in items.items())
    logger.info("ordered", extra={"total_cents": total})
    metrics.add_metric(name="Orders", unit=MetricUnit.Count, value=1)
    return {"total_cents": total}


@logger.inject_lambda_context(correlation_id_path=correlation_paths.LAMBDA_FUNCTION_URL)
@metrics.log_metrics(capture_cold_start_metric=True)
def handler(event, context):
    return app.resolve(event, context)
