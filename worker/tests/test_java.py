"""A function in Java with AWS' own runtime interface client, as a container image: functions/totals."""

import shutil

import pytest
from calls import invoke, provider, serves_several
from conftest import ROOT
from images import Image, create_image, layer, root_of

TOTALS = ROOT / "functions/totals"
ENTRY = ["/jre/bin/java", "-XX:+UseSerialGC", "-cp", "/var/task/*"]
RUNTIME = "com.amazonaws.services.lambda.runtime.api.client.AWSLambda"
missing = [tool for tool in ("mvn", "javac", "jlink") if not shutil.which(tool)]


@pytest.fixture(scope="module")
def root():
    """The root of its image, built once for each state of its sources."""
    if missing:
        pytest.skip(f"this host lacks {' '.join(missing)}: apt install openjdk-17-jdk-headless maven")
    return root_of(TOTALS)


@pytest.fixture(scope="module")
def running(root, place, running):
    image = Image(
        layer(*((path.name, path) for path in sorted(root.iterdir()))),
        Entrypoint=[*ENTRY, RUNTIME],
        Cmd=["Totals::handleRequest"],
    )
    archive = image.archive(place / "totals.tar")
    create_image(running.client(), "totals", archive, MemorySize=512)
    several = {"CapacityProviderConfig": provider(4)}
    create_image(running.client(), "totals-several", archive, MemorySize=512, Timeout=60, **several)
    return running


TABLE = "tea, cake\n2, 1\n1.5, 3\n"


def test_java_with_maven_packages(running):
    client = running.client()
    for _ in range(2):
        answer, error = invoke(client, "totals", {"csv": TABLE})
        assert error is None, answer
        assert len(answer.pop("request")) == 36
        assert answer == {"rows": 2, "totals": {"tea": 3.5, "cake": 4}}
    logged = running.client(service="logs").filter_log_events(logGroupName="/aws/lambda/totals")["events"]
    assert len([event for event in logged if "added up 2 rows" in event["message"]]) == 2


def test_java_exceptions_are_returned_to_the_caller(running):
    client = running.client()
    for event, reason in [
        ({}, "csv: the table is missing"),
        ({"csv": "tea\nmuch\n"}, "row 1, tea: 'much' is no number"),
    ]:
        answer, error = invoke(client, "totals", event)
        assert error == "Unhandled", answer
        assert (answer["errorType"], answer["errorMessage"]) == ("java.lang.IllegalArgumentException", reason)
        assert "Totals.handleRequest" in str(answer["stackTrace"])
    assert invoke(client, "totals", {"csv": TABLE})[1] is None, "the instance survives"
    assert len(running.events("start")) == 1


def test_java_serves_several_requests_in_one_process(running):
    expected = {"rows": 2, "totals": {"tea": 3.5, "cake": 4}}
    serves_several(running, "totals-several", {"csv": TABLE}, expected)
