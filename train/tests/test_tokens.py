from hypothesis import given, settings
from hypothesis import strategies as st

from train.data.tokens import (
    ANONYMOUS,
    FRAME_END,
    RESERVED,
    UNKNOWN,
    Vocabulary,
    functions_of,
    tokenize,
    without_arguments,
)

names = st.text(st.sampled_from("ab_Z9:<>(),*&~ .@{}#"), max_size=30)


def test_names_are_split_at_special_characters():
    assert tokenize(
        "proto2::FileDescriptorProto::_InternalParse(char const*, proto2::internal::ParseContext*)"
    ) == [
        "proto2",
        "FileDescriptorProto",
        "_InternalParse",
        "char",
        "const",
        "proto2",
        "internal",
        "ParseContext",
    ]
    assert tokenize("Session::~Session()") == ["Session", "~Session"]
    assert tokenize("libfoo.so+0x1f") == ["libfoo", "so", "0x1f"]


def test_build_specific_suffixes_are_no_tokens():
    assert tokenize("core::fmt::write::h0123456789abcdef") == ["core", "fmt", "write"]
    assert tokenize("parse.isra.0") == tokenize("parse.constprop.3.cold") == ["parse"]


def test_the_most_common_tokens_have_numbers_and_others_are_unknown():
    vocabulary = Vocabulary.of(["a::b", "a::c", "c::b", "a::d", "once"], 2)
    assert vocabulary.tokens == [*RESERVED, "a", "b"]
    assert vocabulary.numbers("d::a(b)") == [UNKNOWN, 2, 3]
    assert list(vocabulary.sequence(["a", "b::x"])) == [2, FRAME_END, 3, UNKNOWN, FRAME_END]


@settings(deadline=None)
@given(st.lists(names), st.lists(names), st.integers(1, 20))
def test_every_name_has_numbers_within_the_vocabulary(seen, asked, size):
    vocabulary = Vocabulary.of(seen, size)
    assert len(vocabulary) <= size + len(RESERVED)
    for name in seen + asked:
        numbers = vocabulary.numbers(name)
        assert len(numbers) == len(tokenize(name))
        assert all(0 <= number < len(vocabulary) and number != FRAME_END for number in numbers)


@settings(deadline=None)
@given(st.lists(names), st.randoms())
def test_the_vocabulary_does_not_depend_on_the_order(seen, random):
    shuffled = random.sample(seen, len(seen))
    assert Vocabulary.of(seen, 7).tokens == Vocabulary.of(shuffled, 7).tokens


def test_code_without_a_name_has_no_words():
    assert tokenize(ANONYMOUS) == [] and functions_of(ANONYMOUS) == [""]
    assert tokenize("(anonymous namespace)::g") == ["anonymous", "namespace", "g"]


def test_arguments_are_left_out():
    for name, wanted in {
        "f": "f",
        "a::f(int, void (*)(long))": "a::f",
        "(anonymous namespace)::g(char) const": "(anonymous namespace)::g",
        "f(int)::{lambda(int)#1}::operator()(int) const": "f(int)::{lambda(int)#1}::operator()",
        "std::function<void (int)>::swap": "std::function<void (int)>::swap",
        "(x)": "(x)",
        "f)": "f)",
    }.items():
        assert without_arguments(name) == wanted
