"""The counts of the study of builds."""

from train.__main__ import main
from train.data import contexts
from train.studies import build_to_build
from train.tests.test_table import profile


def test_a_name_falls_into_kinds_of_tokens():
    name = "image::Resizer<Tile, std::vector<int> >::scale<4>(char const*, Tile const&) const"
    assert build_to_build.parts(name) == {
        "scopes": "image::Resizer",
        "function": "scale",
        "template_arguments": "<int> <Tile, std::vector > <4>",
        "argument_types": "(char const*, Tile const&) const",
    }
    assert build_to_build.of_kinds(f"{name};main", ("function",)) == "scale;main"
    assert build_to_build.parts("a::operator<") == dict(
        zip(build_to_build.KINDS, ("a", "operator<", "", ""), strict=True)
    )


def test_leaving_out_the_decisive_kind_of_tokens_costs_accuracy(tmp_path):
    """Lifetimes follow from the template argument alone."""
    labels = {"Short": 0, "Long": 6}
    stacks = {f"make<{kind}>(int)@f{n}(int)@main": label for kind, label in labels.items() for n in range(20)}
    known = contexts.load("duckdb", [profile(tmp_path / "p.parquet", stacks)])
    found = build_to_build.token_kinds(known, known, rounds=8)
    assert found["all.bytes_percent"] == found["only_template_arguments.bytes_percent"] == 100
    assert found["without_template_arguments.bytes_percent"] == 50 == found["only_scopes.bytes_percent"]
    assert build_to_build.matching(known, known) == {"contexts_percent": 100, "bytes_percent": 100}
    other = contexts.load(
        "duckdb", [profile(tmp_path / "q.parquet", dict(list(stacks.items())[:10]) | {"x@main": 1})]
    )
    assert build_to_build.matching(known, other)["contexts_percent"] == 90.91


def test_heap_accuracy_equals_measured_accuracy(tmp_path):
    path = profile(tmp_path / "p.parquet", {"get@keep@main": 6, "get@drop@main": 0})
    assert main([path, "-o", str(tmp_path / "m")]) == 0
    found = build_to_build.heap_accuracy([f"a.b={tmp_path / 'm'}={path}"])
    wanted = {"bytes": 100, "bytes_off_by_one": 100, "bytes_known": 100}
    assert found == {f"a.b.{name}_percent": value for name, value in wanted.items()}
