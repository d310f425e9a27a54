"""Options of the suites, and a line about each at the end."""


def pytest_addoption(parser):
    option = parser.addoption
    option(
        "--quick", action="store_true", help="little of the suites that need no build: under three minutes"
    )
    option("--fresh", action="store_true", help="run them without the heap again instead of reusing outcomes")
    option("--env", metavar="NAME=VALUE", action="append", default=[], help="set for the runs with the heap")


def pytest_terminal_summary(terminalreporter):
    for report in terminalreporter.getreports("passed") + terminalreporter.getreports("failed"):
        for _, line in report.user_properties:
            terminalreporter.write_line(line)
