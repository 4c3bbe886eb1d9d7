"""Names have one parser, one spelling, and a refusal that says what to do."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell import limits
from stepwell.domain.bounded_types import Name, canonical, parse_name
from stepwell.domain.changesets.commands import RecordChange
from stepwell.domain.checks import explain
from stepwell.domain.commands import Command
from stepwell.domain.replies import Reply
from stepwell.domain.tiers.commands import GetFragment, StoreFragment
from stepwell.errors import InvalidArgument
from tests.support.measurement import untraced

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


@pytest.mark.parametrize("body", [b"", bytes(limits.INLINE_BODY_BYTES_MAX), 0, 2**31])
def test_body_is_inline_or_a_number(body: bytes | int) -> None:
    """Small bodies travel in the frame, large ones are named by the number of their upload."""
    command = StoreFragment("p", "f", body, 1)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(command), type=StoreFragment) == command


@pytest.mark.parametrize("body", [bytes(limits.INLINE_BODY_BYTES_MAX + 1), -1, 2**31 + 1, "text", None, True])
def test_body_that_is_neither(body: object) -> None:
    """It is refused where it arrives, with advice."""
    sent = ["StoreFragment", "p", "f", body, 1]
    with pytest.raises(msgspec.ValidationError) as caught:
        msgspec.msgpack.decode(msgspec.msgpack.encode(sent), type=StoreFragment)
    assert "an inline body has at most 64 KiB; upload what is larger" in explain(StoreFragment, caught.value)


@pytest.mark.parametrize(
    "command, lengths",
    [
        (StoreFragment("p", "f", b"four", 1), (4,)),
        (StoreFragment("p", "f", 4, 1), ()),
        (RecordChange("plan", "ctx", 1, "a", b"old", b"newer"), (3, 5)),
        (RecordChange("plan", "ctx", 1, "a", 0, b""), (0,)),
        (GetFragment("p", "f"), ()),
    ],
)
def test_inline_bodies_are_known_by_length(command: Command[Reply], lengths: tuple[int, ...]) -> None:
    """An upload does not come in the command, and has none."""
    assert command.inline == lengths


@untraced()
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
