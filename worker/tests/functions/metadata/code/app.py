"""Reads the availability zone by Powertools, as AWS' guide has it."""

from aws_lambda_powertools.utilities.metadata import get_lambda_metadata


def handler(event, context):
    return get_lambda_metadata().availability_zone_id
