"""Names have one parser, one spelling, and a refusal that says what to do."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.domain.names import Name, canonical, parse_name
from stepwell.errors import InvalidArgument

PARTS = st.from_regex(r"[a-z0-9][a-z0-9._-]{0,63}", fullmatch=True)
NAMES = st.builds(Name, PARTS, PARTS, st.none() | PARTS)


@pytest.mark.parametrize(
    "text, expected",
    [
        ("fix-bug", Name("fix-bug")),
        ("local/fix-bug", Name("fix-bug", "local")),
        ("team/fix.bug_2", Name("fix.bug_2", "team")),
        ("hub:team/fix", Name("fix", "team", "hub")),
        ("9", Name("9")),
        ("a" * 64, Name("a" * 64)),
    ],
)
def test_parse(text: str, expected: Name) -> None:
    """`[[server:]namespace/]name`, the namespace `local` by default."""
    assert parse_name(text) == expected


@pytest.mark.parametrize(
    "text",
    ["", " ", "a b", "A", "a/", "/a", "a/b/c", "hub:a", "a:b:c/d", "a\n", "\na", "-a", "é", "a" * 65, "a/b\n", ":a/b"],
)
def test_refused(text: str) -> None:
    """What does not parse is refused with the form that does."""
    with pytest.raises(InvalidArgument, match=r"is not '\[\[server:\]namespace/\]name' in lower case"):
        parse_name(text)


@pytest.mark.parametrize("text, hint", [("Fix Bug", "fix-bug"), (" a ", "a"), ("Hub:Team/Fix", "hub:team/fix")])
def test_near_miss_gets_a_hint(text: str, hint: str) -> None:
    """Where lower case and hyphens would do, the refusal says so."""
    with pytest.raises(InvalidArgument, match=f"did you mean '{hint}'"):
        parse_name(text)


def test_no_hint_where_none_would_do() -> None:
    """A hint that would be refused in turn is not given; the refusal names the argument, and quotes in bounds."""
    with pytest.raises(InvalidArgument) as caught:
        parse_name("!" * 10_000, "strategy_actor")
    assert caught.value.message.startswith("strategy_actor '!!!")
    assert "did you mean" not in caught.value.message
    assert len(caught.value.message) < 300


@given(NAMES)
def test_round_trip(name: Name) -> None:
    """A printed name parses to itself, and the canonical spelling is canonical."""
    assert parse_name(str(name)) == name
    assert canonical(canonical(str(name))) == canonical(str(name)) == str(name)


@given(st.text(max_size=20) | st.from_regex(r"[a-z:/.-]{1,12}", fullmatch=True))
def test_canonical_is_idempotent_where_it_is_defined(text: str) -> None:
    """Any text is refused, or has one spelling."""
    try:
        once = canonical(text)
    except InvalidArgument:
        return
    assert canonical(once) == once
    assert once.endswith(text.rpartition("/")[2])
