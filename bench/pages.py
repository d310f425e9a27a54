"""Fills the figures of the pages from the results. A page has a comment that readers do not see,

    <!-- bench/figures: node.json
    | memory | {gunicorn.plain.memory_mib:,.0f} MiB | {gunicorn.shared.memory_mib:,.0f} MiB |
    -->

and below it, up to `<!-- end -->`, the same with the values of bench/results/node.json, as Python formats
them; `:3` is three significant digits, or integers. Braces hold keys of that file, or of several files
(KEY[5] of a list; `a.*.b` is the sum of all that match), and numbers with + - * / between them, computed from
left to right, parentheses first. A line with `shown.N` is repeated for each goal."""

import argparse
import fnmatch
import json
import operator
import re
import sys

from bench.outcome import RESULTS, ROOT, BenchError

MARK = re.compile(r"(<!-- bench/figures: ([^\n]+)\n(.*?)\n-->\n)(.*?)(<!-- end -->\n)", re.S)
INNERMOST = re.compile(r"\(([^()]*)\)")
FIGURE = re.compile(r"\{([^{}:]+):([^{}]+)\}")
OPERATORS = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv}


def value(expression: str, results: dict) -> float:
    def term(word: str) -> float:
        name, _, index = word.rstrip("]").partition("[")
        if name in results:
            return results[name][int(index)] if index else results[name]
        if same := fnmatch.filter(results, word):
            return sum(results[name] for name in same)
        try:
            return float(word)
        except ValueError:
            raise BenchError(f"no such figure: {word}") from None

    if expression in results:  # also where its name has spaces
        return results[expression]
    while inner := INNERMOST.search(expression):
        expression = expression.replace(inner[0], repr(value(inner[1], results)))
    first, *rest = expression.split()
    found = term(first)
    for sign, word in zip(rest[::2], rest[1::2], strict=True):
        found = OPERATORS[sign](found, term(word))
    return found


def formatted(figure: float | str, how: str) -> str:
    """The figure as text, with a minus that is as wide as a digit."""
    if isinstance(figure, bool):
        figure = "met" if figure else "**falls short**"
    if how == "3":
        how = ",.0f" if figure >= 100 else ".3g"
    text = format(figure, how)
    return text if isinstance(figure, str) else text.replace("-", "−")


def filled(text: str) -> str:
    """The page with the figures of the results."""

    def fill(mark: re.Match) -> str:
        results = {}
        for name in mark[2].split():
            results |= json.loads((RESULTS / name).read_text())
        goals = sum(key.endswith(".what") for key in results if key.startswith("shown."))
        each = lambda line: "\n".join(line[0].replace("shown.N", f"shown.{n}") for n in range(goals))  # noqa: E731
        lines = re.sub(r".*shown\.N\..*", each, mark[3])
        lines = FIGURE.sub(lambda figure: formatted(value(figure[1], results), figure[2]), lines)
        return f"{mark[1]}\n{lines}\n\n{mark[5]}"

    return MARK.sub(fill, text)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--check", action="store_true", help="write nothing; fail if a page differs from the results"
    )
    check = parser.parse_args().check
    differ, marks = [], 0
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        text = path.read_text()
        marks += len(MARK.findall(text))
        try:
            right = filled(text)
        except (BenchError, OSError) as error:
            print(f"figures: {path.relative_to(ROOT)}: {error}", file=sys.stderr)
            return 1
        if right != text:
            differ.append(str(path.relative_to(ROOT)))
            if not check:
                path.write_text(right)
    if check and differ:
        print(
            f"figures: not as bench/results has it: {', '.join(differ)}; run bench/figures", file=sys.stderr
        )
        return 1
    print(f"{marks} tables, {'as in bench/results' if not differ else 'written: ' + ', '.join(differ)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
