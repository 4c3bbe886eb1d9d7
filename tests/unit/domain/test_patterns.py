"""Patterns and globs from a caller cost linear time and bounded memory, and nothing is written anywhere."""

import random
import re
import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from stepwell import limits
from stepwell.domain.patterns import glob_matcher, matcher
from stepwell.domain.plans.commands import CreateAction
from stepwell.domain.plans.model import Argument
from stepwell.errors import InvalidArgument
from tests.support.domain.world import World

ALPHABET = "ab/.*?[\\\n\0é☃"


def naive_match(glob: str, path: str) -> bool:
    """The meaning of a glob, spelt out by trying every way to read it."""
    if not glob:
        return not path
    if glob.startswith("**/"):
        rest = glob[3:]
        starts = [0, *(at + 1 for at, char in enumerate(path) if char == "/")]
        return any(naive_match(rest, path[at:]) for at in starts)
    if glob.startswith("**"):
        return any(naive_match(glob[2:], path[at:]) for at in range(len(path) + 1))
    if glob[0] == "*":
        reach = len(path.split("/", 1)[0])
        return any(naive_match(glob[1:], path[at:]) for at in range(reach + 1))
    if not path:
        return False
    return (path[0] != "/" if glob[0] == "?" else path[0] == glob[0]) and naive_match(glob[1:], path[1:])


@given(st.text(ALPHABET, min_size=1, max_size=8), st.text(ALPHABET, max_size=8))
@example("**/a", "a")
@example("**/a", "b/b/a")
@example("a/**", "a/")
@example("***", "a/b")
@example("?", "☃")
def test_glob_means_what_the_naive_reading_means(glob: str, path: str) -> None:
    """'*' and '?' stay within a part, '**' crosses parts, everything else stands for itself."""
    assert glob_matcher([glob])(path) == naive_match(glob, path)


@pytest.mark.parametrize(
    "glob, path, expected",
    [
        ("src/**/*.py", "src/a.py", True),
        ("src/**/*.py", "src/x/y/a.py", True),
        ("src/**/*.py", "src/a.pyc", False),
        ("*.py", "x/a.py", False),
        ("a+b", "a+b", True),
        ("[ab]", "a", False),
    ],
)
def test_glob_examples(glob: str, path: str, *, expected: bool) -> None:
    """The usual uses; brackets are no special characters."""
    assert glob_matcher([glob])(path) is expected


@given(st.lists(st.text(ALPHABET, min_size=1, max_size=5), min_size=1, max_size=4), st.text(ALPHABET, max_size=6))
@example(["a", "ab"], "ab")
@example(["ab", "a"], "abb")
@example(["a", "*"], "\n")
@example(["a|b"], "a")
def test_globs_are_alternatives(globs: list[str], path: str) -> None:
    """Any of them suffices, and none of them changes what another one means."""
    assert glob_matcher(globs)(path) == any(naive_match(glob, path) for glob in globs)


def test_no_globs() -> None:
    """None at all accept everything."""
    assert glob_matcher([])("anything")
    assert glob_matcher([])("")


def test_pathological_glob_is_linear() -> None:
    """A glob that takes a backtracking matcher for ever costs milliseconds."""
    glob = "*a" * limits.WILDCARDS_MAX
    began = time.process_time()
    assert not glob_matcher([glob])("a" * 4_000 + "b")
    assert time.process_time() - began < 1.0
    # The same pattern really is pathological: a backtracking matcher takes exponential time already on little of it.
    assert re.fullmatch("[^/]*a" * 4, "a" * 50 + "b") is None


@pytest.mark.parametrize("piece", ["*a", "?", "**/", "**", "*", "[", "\\"])
def test_longest_globs_compile(piece: str) -> None:
    """No glob within its bounds is too much for the matcher."""
    glob = piece * (limits.WILDCARDS_MAX if piece[0] in "*?" else limits.PATTERN_CHARS_MAX)
    glob_matcher([glob.ljust(limits.PATTERN_CHARS_MAX, "x")])("a" * 4_096)


def test_wildcards_are_bounded() -> None:
    """All globs together: each row is matched against all of them."""
    glob_matcher(["*"] * limits.WILDCARDS_MAX)
    with pytest.raises(InvalidArgument, match="more than 32 wildcards: ask in parts"):
        glob_matcher(["**/"] * limits.WILDCARDS_MAX + ["?"])


TOO_LARGE = [r"(?:\p{Greek}|\p{Han}){0,1000}", r"(?:\pL\pN){500}", r"(?:[^a]{10}\pL){99}"]
NO_RE2 = ["(", ")", r"(a)\1", "(?=a)", "*", "a{2,1}", "a{1001}", "[b-a]", r"\p{Klingon}", "(?P<é", "(☃"]


@pytest.mark.parametrize(
    "pattern, text, expected",
    [
        ("[a-z]+", "abc", True),
        ("[a-z]+", "abc1", False),
        ("a|ab", "ab", True),
        ("a", "ab", False),
        ("", "", True),
        ("", "a", False),
        (".", "☃", True),
        (".", "\n", False),
        ("a$", "a\n", False),
    ],
)
def test_pattern_matches_the_whole(pattern: str, text: str, *, expected: bool) -> None:
    """Not a part of it."""
    assert matcher(pattern)(text) is expected


@pytest.mark.parametrize("pattern", [*TOO_LARGE, *NO_RE2])
def test_refused_pattern(pattern: str, capfd: pytest.CaptureFixture[str]) -> None:
    """With a sentence, and without a word on stderr; it holds for an action's arguments too."""
    with pytest.raises(InvalidArgument) as caught:
        matcher(pattern)
    message = caught.value.message
    assert message.startswith(f"pattern {pattern!r} is not an RE2 expression, or too large: ")
    assert not message.endswith(": ")
    assert "b'" not in message
    assert 'b"' not in message
    action = CreateAction("act", "", "", "planner", "coder", arguments=(Argument(name="a", pattern=pattern),))
    World().refuse(action, InvalidArgument, re.escape(message))
    assert capfd.readouterr() == ("", "")


def test_long_pattern_is_quoted_in_bounds() -> None:
    """Nobody reads more."""
    with pytest.raises(InvalidArgument) as caught:
        matcher("(" * limits.PATTERN_CHARS_MAX)
    assert f"pattern {'(' * 80!r} is not" in caught.value.message


@pytest.mark.parametrize("pattern", TOO_LARGE)
def test_large_pattern_is_refused_quickly(pattern: str) -> None:
    """Its memory is bounded, and with it the time that compiling takes."""
    began = time.process_time()
    with pytest.raises(InvalidArgument, match="pattern too large"):
        matcher(pattern)
    assert time.process_time() - began < 1.0


def test_match_that_runs_out_of_memory_is_silent(capfd: pytest.CaptureFixture[str]) -> None:
    """It gets slower, not louder, and its answer is the same."""
    text = "".join(random.Random(1).choices("ab", k=20_000))
    for reach in (60, 61, 62, 63, 64):
        assert matcher(f"(?:a|b)*a(?:a|b){{{reach}}}")(text) == (text[-1 - reach] == "a")
    assert capfd.readouterr() == ("", "")


def test_sixteen_usual_globs() -> None:
    """Are not too much."""
    matches = glob_matcher([f"src/package_{number}/**/*_test_{number}.py" for number in range(16)])
    assert matches("src/package_9/a/b/c_test_9.py")
    assert not matches("src/package_9/a/b/c_test_8.py")
