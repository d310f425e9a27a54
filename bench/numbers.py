"""Writes docs/numbers from bench/results. Each room's tables have a template, bench/tables/ROOM.md. A section
of it that names its results in a comment,

    <!-- results: node.json -->

    | memory | {gunicorn.plain.memory_mib:,.0f} MiB | {gunicorn.shared.memory_mib:,.0f} MiB |

gets the values of bench/results/node.json, as Python formats them; `:3` is three significant digits, or
integers. Braces hold keys of that file, or of several files (KEY[5] of a list; `a.*.b` is the sum of all that
match), and numbers with + - * / between them, computed from left to right, parentheses first. A line with
`shown.N` is repeated for each goal.

In place of the comment the page says where the numbers come from: commit, date, machine, load and rounds, as
far as the results have them, and whether the machine was emulated (bench/tables/results.toml). A section with
`<!-- by hand: not emulated -->` has numbers whose results were not kept, and says so.

Below it, the page says whether the sources have changed since. That depends on the history and not only on
the results: a check of it would fail with the next commit to a room, and in a clone without history. So it is
written when this runs, `--check` leaves it out, and `--stale` lists the results that are older now."""

import argparse
import fnmatch
import operator
import re
import sys
import textwrap
import tomllib

from bench import history
from bench.outcome import RESULTS, ROOT, BenchError, read

TEMPLATES = ROOT / "bench" / "tables"
PAGES = ROOT / "docs" / "numbers"
INNERMOST = re.compile(r"\(([^()]*)\)")
FIGURE = re.compile(r"\{([^{}:]+):([^{}]+)\}")
UNFILLED = re.compile(r"\{[^{}\n]*\}")
SECTION = re.compile(r"^(?=## )", re.M)
NAMED = re.compile(r"<!-- results: ([^\n]+) -->\n")
BY_HAND = re.compile(r"<!-- by hand: ([^\n]+) -->\n")
OLDER = "**Older than the code**:"
OLDER_TEXT = re.compile(rf"^{re.escape(OLDER)}.*?\n\n", re.M | re.S)
OPERATORS = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv}
# Of the simulator's results: what counts pages, those held where a result says so (bench/sim/ratios.py).
OF_PAGES = re.compile(r"pages|cost_saved")
ALLOCATED = (
    "**Pages and price** of these results count every page that was allocated, freed or not: their runs are "
    "older than the count of pages that are held."
)
WIDTH = 110
MOST_BYTES = 1 << 20  # of results that are read as they are; raw counters and series are compressed beside


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


def nearest(expression: str, results: dict, names: tuple[str, ...]) -> set:
    """What the results have under one of these names nearest to the keys: `a.b.rounds` for `a.b.c.ms`."""
    found = set()
    for key in re.findall(r"[\w.-]+", expression):
        parts = key.split(".")
        for length in range(len(parts), 0, -1):
            here = [".".join([*parts[:length], name]) for name in names]
            if values := [results[name] for name in here if name in results]:
                found |= set(values)
                break
    return found


def span(values: set, otherwise: str) -> str:
    if not values:
        return otherwise
    return f"{min(values):g}" if len(values) == 1 else f"{min(values):g} to {max(values):g}"


def rows_with(keys: str, results: dict) -> dict[str, str]:
    """The commits of the rows that have any of these keys."""
    rows = history.rows(results).items()
    return {row: commit for row, commit in rows if re.search(rf"(?<![\w.]){re.escape(row)}\.", keys)}


def span_of_words(values: set[str]) -> str:
    return min(values) if len(values) == 1 else f"{min(values)} to {max(values)}"


def source(name: str, results: dict, about: dict, section: str) -> str:
    """Where the figures of one file come from."""
    keys = " ".join(key for key, _ in FIGURE.findall(section))
    rows = rows_with(keys, results)
    commits = set(rows.values()) or {recorded_commit(results) or ""}
    dates = {results[f"{row}.date"] for row in rows} or {results.get("machine.date", "not recorded")}
    commits = sorted(
        commit.removesuffix("-dirty") + " with changes" * commit.endswith("-dirty") for commit in commits
    )
    cpus, kernel = results.get("machine.cpus"), results.get("machine.kernel")
    load = nearest(keys, results, ("load", "load_before"))
    load = load or {value for key, value in results.items() if key == "machine.load"}
    rounds = nearest(keys, results, ("rounds",))
    if "{shown." in section:  # goals are computed from all rounds
        rounds |= {value for key, value in results.items() if key.endswith(".rounds")}
    facts = [
        f"commit {', '.join(commits)}" if commits != [""] else "commit not recorded",
        f"date {span_of_words(dates)}",
        f"{cpus} processors, Linux {kernel}" if cpus else "machine not recorded",
        f"load {span(load, 'not recorded')}",
        f"rounds {span(rounds, 'not recorded')}",
        about["machine"],
    ]
    by = about["command"]
    if results.get("machine.quick"):
        by += " --quick"
    text = f"From `bench/results/{name}` by `{by}`: {'; '.join(facts)}."
    return wrapped(text)


def wrapped(text: str) -> str:
    return "\n".join(textwrap.wrap(text, WIDTH, break_long_words=False, break_on_hyphens=False))


def recorded_commit(results: dict) -> str | None:
    return results.get("machine.commit") or results.get("made_with.commit")


def age(
    name: str, results: dict, about: dict, keys: str | None = None
) -> list[tuple[str, list[str], list[str]]]:
    """What is older than its sources, of the rows that have these keys (or of all): the date of the commit
    that was measured, the folders that have changed since, and the rows ("": the file has one commit). If
    that commit is not recorded or not in the history: of the commit that brought the results, which is
    `kept_in.commit` where a later one changed nothing but the file's form."""
    by_row = rows_with(keys, results) if keys is not None else history.rows(results)
    found: dict[tuple, list[str]] = {}
    for row, commit in (by_row or {"": recorded_commit(results) or ""}).items():
        commit = commit.removesuffix("-dirty")
        if not history.is_known(commit):
            commit = results.get("kept_in.commit") or history.git(
                "log", "-1", "--format=%H", "--", f"bench/results/{name}"
            )
        changed = history.changed_since(commit, about["sources"]) if commit else []
        if changed:
            measured = history.git("log", "-1", "--format=%cs", commit) or ""
            found.setdefault((measured, tuple(changed)), []).append(row)
    return [(measured, list(changed), rows) for (measured, changed), rows in sorted(found.items())]


def in_words(measured: str, changed: list[str], rows: list[str]) -> str:
    """A line of a page about results that are older than the code."""
    of = f"`{'`, `'.join(rows)}`: the commit" if rows[0] else "the commit"
    return f"{OLDER} {of} is of {measured}; `{'`, `'.join(changed)}` changed since."


def filled(template: str, abouts: dict, with_history: bool) -> str:
    """The page with the figures of the results, and what the history says of their age."""

    def fill(section: str) -> str:
        if by_hand := BY_HAND.search(section):
            facts = f"commit, date, machine, load and rounds not recorded; {by_hand[1]}"
            text = f"Written by hand from results that were not kept: {facts}."
            return section.replace(by_hand[0], f"{wrapped(text)}\n")
        named = NAMED.search(section)
        if not named:
            return section
        results, origin = {}, []
        for name in named[1].split():
            if name not in abouts:
                raise BenchError(f"bench/tables/results.toml says nothing about {name}")
            own = read(RESULTS / name)
            results |= own
            origin.append(source(name, own, abouts[name], section))
            keys = " ".join(key for key, _ in FIGURE.findall(section))
            for one in age(name, own, abouts[name], keys) if with_history else []:
                origin.append(wrapped(in_words(*one)))
            if name.startswith("sim") and OF_PAGES.search(keys) and not all_held(own):
                origin.append(wrapped(ALLOCATED))
        goals = sum(key.endswith(".what") for key in results if key.startswith("shown."))
        each = lambda line: "\n".join(line[0].replace("shown.N", f"shown.{n}") for n in range(goals))  # noqa: E731
        section = re.sub(r".*shown\.N\..*", each, section)
        section = FIGURE.sub(lambda figure: formatted(value(figure[1], results), figure[2]), section)
        if unfilled := UNFILLED.search(section):
            raise BenchError(f"{unfilled[0]}: a figure needs a format, as in {{name:.2f}}")
        return section.replace(named[0], "\n\n".join(origin) + "\n")

    return "".join(map(fill, SECTION.split(template)))


def all_held(results: dict) -> bool:
    says = [value for key, value in results.items() if key.split(".")[-1] == "pages_held"]
    return bool(says) and all(says)


def comparable(page: str) -> str:
    return OLDER_TEXT.sub("", page)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--check", action="store_true", help="write nothing; fail if a page differs from the results"
    )
    parser.add_argument(
        "--stale", action="store_true", help="list the results that are older than what they measure"
    )
    options = parser.parse_args()
    abouts = tomllib.loads((TEMPLATES / "results.toml").read_text())
    if options.stale:
        for name, about in abouts.items():
            for measured, changed, rows in age(name, read(RESULTS / name), about):
                of = f" ({', '.join(rows)})" if rows[0] else ""
                print(
                    f"{name}, of {measured}{of}: {', '.join(changed)} changed; measure again with"
                    f" {about['command']}"
                )
        return 0
    # A clone without history cannot tell a table's age, and leaves what a page says of it.
    with_history = not options.check and history.git("rev-parse", "--is-shallow-repository") == "false"
    templates = sorted(TEMPLATES.glob("*.md"))
    differ, tables = [], 0
    for template in templates:
        text, page = template.read_text(), PAGES / template.name
        tables += len(NAMED.findall(text)) + len(BY_HAND.findall(text))
        try:
            right = filled(text, abouts, with_history)
        except (BenchError, OSError) as error:
            print(f"figures: {template.relative_to(ROOT)}: {error}", file=sys.stderr)
            return 1
        there = page.read_text() if page.exists() else ""
        if comparable(right) != comparable(there):
            differ.append(str(page.relative_to(ROOT)))
        elif not with_history:
            continue
        if right != there and not options.check:
            page.parent.mkdir(exist_ok=True)
            page.write_text(right)
    names = {template.name for template in templates}
    orphans = [str(path.relative_to(ROOT)) for path in sorted(PAGES.glob("*.md")) if path.name not in names]
    if orphans:
        print(f"figures: no template in bench/tables: {', '.join(orphans)}", file=sys.stderr)
        return 1
    kept = sum(path.stat().st_size for path in RESULTS.rglob("*.json"))
    if options.check and kept > MOST_BYTES:
        print(f"figures: bench/results has {kept:,} bytes of JSON, at most {MOST_BYTES:,}", file=sys.stderr)
        return 1
    if options.check and differ:
        print(
            f"figures: not as bench/results has it: {', '.join(differ)}; run bench/figures", file=sys.stderr
        )
        return 1
    print(f"{tables} tables, {'as in bench/results' if not differ else 'written: ' + ', '.join(differ)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
