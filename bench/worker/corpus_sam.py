"""What `sam local` reads of templates, by its own classes: run by a Python that has aws-sam-cli. Reads paths
of templates, one a line; writes an object a line, which `corpus.py` compares."""

import json
import logging
import os
import sys

os.environ.setdefault("AWS_DEFAULT_REGION", "us-east-1")
os.environ["SAM_CLI_TELEMETRY"] = "0"

from samcli.cli.types import CfnParameterOverridesType  # noqa: E402
from samcli.lib.config.samconfig import SamConfig  # noqa: E402
from samcli.lib.providers.api_provider import ApiProvider  # noqa: E402
from samcli.lib.providers.sam_function_provider import SamFunctionProvider  # noqa: E402
from samcli.lib.providers.sam_stack_provider import SamLocalStackProvider  # noqa: E402
from samcli.local.lambdafn.env_vars import EnvironmentVariables  # noqa: E402

TEXT_OF = EnvironmentVariables()._stringify_value


def overrides(folder):
    """The parameters of the project's configuration, as the commands read them."""
    config, found = SamConfig(folder), {}
    if config.exists():
        for command in (["global"], ["local", "start-api"], ["local", "start-lambda"]):
            try:
                given = config.get_all(command, "parameters", "default").get("parameter_overrides")
            except KeyError:
                continue
            if given:
                given = [given] if isinstance(given, str) else [str(one) for one in given]
                for one in given:
                    found |= CfnParameterOverridesType().convert(one, None, None)
    return found


def of_function(function):
    environment = function.environment if isinstance(function.environment, dict) else {}
    variables = environment.get("Variables") or {}
    url = function.function_url_config
    inline = function.inlinecode is not None
    return {
        "Id": f"{function.stack_path}/{function.name}".lstrip("/"),
        "FunctionName": function.functionname if isinstance(function.functionname, str) else None,
        "Runtime": function.runtime,
        "Handler": function.handler,
        "MemorySize": function.memory or 128,
        "Timeout": function.timeout or 3,
        # None: what it cannot evaluate; the function finds an empty text.
        "Environment": {
            name: None if isinstance(value, dict | list) else TEXT_OF(value)
            for name, value in (variables if isinstance(variables, dict) else {}).items()
        },
        "Layers": [
            layer.arn if not layer.is_defined_within_template else layer.name for layer in function.layers
        ],
        "Url": url.get("AuthType") if isinstance(url, dict) else None,
        "Code": "inline"
        if inline
        else function.imageuri
        if function.packagetype == "Image"
        else function.codeuri,
    }


def routes_of(stacks, folder):
    return sorted(
        {
            (route.event_type, method, route.path, f"{route.stack_path}/{route.function_name}".lstrip("/"))
            for route in ApiProvider(stacks, cwd=folder).api.routes
            for method in route.methods
        }
    )


def read(path):
    folder = os.path.dirname(path)
    # As the command does where the template lies elsewhere: relative paths of nested templates are its own.
    stacks, remote = SamLocalStackProvider.get_stacks(
        path, parameter_overrides=overrides(folder), language_extensions_enabled=True
    )
    functions = SamFunctionProvider(stacks, ignore_code_extraction_warnings=True).functions.values()
    try:
        routes = routes_of(stacks, folder)
    except Exception as error:  # of a template with functions that have no API
        routes = f"{type(error).__name__}: {error}"[:200]
    return {"functions": [of_function(one) for one in functions], "routes": routes, "remote": len(remote)}


def main():
    logging.disable(logging.CRITICAL)
    out = sys.stdout
    sys.stdout = sys.stderr  # some of its readers print
    for line in sys.stdin:
        path = line.rstrip("\n")
        try:
            os.chdir(os.path.dirname(path))
            found = read(path)
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            found = {"error": f"{type(error).__name__}: {error}"[:300]}
        print(json.dumps(found, default=str), file=out, flush=True)


main()
