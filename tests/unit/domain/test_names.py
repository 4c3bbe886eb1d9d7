"""Names have one parser, bounds stand in types, and a complaint says what to do."""

import re
from typing import Annotated

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Meta, Struct

from stepwell import limits
from stepwell.domain.commands.changesets import RecordChange
from stepwell.domain.commands.plans import DeclareSubplans
from stepwell.domain.commands.tiers import ListFragments, StoreFragment
from stepwell.domain.names import Identifier, Name, canonical, check, check_metadata, explain, parse_name
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


class Bounded(Struct):
    """A value with a bound, a bound inside an optional, one inside a list, and none."""

    name: Identifier
    size: Annotated[int, Meta(ge=1, description="give at least 1")] | None = None
    others: tuple[Identifier, ...] = ()
    free: object = None
    bare: Annotated[int, Meta(ge=1)] = 1


def test_check_accepts_what_is_within() -> None:
    """Also what no bound speaks of."""
    check(Bounded("a", 1, ("b",), free=object()))


@pytest.mark.parametrize(
    "value, message",
    [
        (Bounded("a b"), "name is malformed: give an id as stepwell returned it"),
        (Bounded("a\n"), "name is malformed: give an id as stepwell returned it"),
        (Bounded("a", 0), "size was refused (Expected `int` >= 1): give at least 1"),
        (Bounded("a", None, ("b", "")), "others is malformed: give an id as stepwell returned it"),
        (Bounded("a" * 65), "name was refused (Expected `str` of length <= 64): give an id as stepwell returned it"),
    ],
)
def test_check_names_the_field_and_what_to_do(value: Struct, message: str) -> None:
    """The sentence is the bound's own description."""
    with pytest.raises(InvalidArgument) as caught:
        check(value)
    assert caught.value.message == message


def test_check_of_a_value_without_bounds() -> None:
    """There is nothing that it could break."""

    class Free(Struct):
        anything: object

    check(Free(object()))


def wire_complaint(kind: type[Struct], *fields: object) -> str:
    """What the decoder's complaint about a frame becomes."""
    frame = msgspec.msgpack.encode([kind.__name__, *fields])
    with pytest.raises(msgspec.ValidationError) as caught:
        msgspec.msgpack.decode(frame, type=kind)
    return explain(kind, caught.value)


STORED = ("p", "f", b"", 1, "hot", "", "text", 0)


@pytest.mark.parametrize(
    "kind, fields, message",
    [
        (StoreFragment, ("a b", "f", b"", 1), r"^project is malformed: a project is 1 to 128 letters"),
        (StoreFragment, ("p", "", b"", 1), r"^fragment_id is malformed: give 1 to 512 characters"),
        (StoreFragment, ("p", "f", b"", 0), r"^tokens was refused \(.*>= 1\): tokens are a whole number"),
        (StoreFragment, ("p", "f", b"", -1), r"^tokens was refused"),
        (StoreFragment, ("p", "f", b"", "1"), r"^tokens was refused \(.*got `str`\): tokens are"),
        (
            StoreFragment,
            ("p", "f", b"", 1, "luke"),
            r"^tier was refused \(Invalid enum value 'luke'\): give one of hot, warm, cold$",
        ),
        (StoreFragment, (*STORED, {"k": "v" * 9_000}), r"^metadata was refused .*: give at most 64 metadata"),
        (StoreFragment, (*STORED, {"": "v"}), r"^metadata was refused .*: give at most 64 metadata"),
        (ListFragments, ("p", [""]), r"^globs was refused .*: give at most 16 globs"),
        (ListFragments, ("p", [], None, None, 0), r"^limit was refused .*: a page has 1 to 1000 rows"),
        (RecordChange, ("p", "c", 1, ""), r"^path was refused .*: a path has 1 to 4096 characters"),
        (DeclareSubplans, ("p", 1, []), r"^children was refused .*: declare 1 to 256 children"),
        (DeclareSubplans, ("p", 1, [["a b", "x", "y"]]), r"^children is malformed: declare 1 to 256 children"),
    ],
)
def test_explain(kind: type[Struct], fields: tuple[object, ...], message: str) -> None:
    """A complaint about the place in a frame names the field that is at fault."""
    assert re.search(message, wire_complaint(kind, *fields))


def test_explain_what_is_no_field() -> None:
    """A complaint about the tag, about the whole, or about a place that does not exist, is given as it is."""
    assert wire_complaint(StoreFragment, "p").startswith("StoreFragment: ")
    wrong_tag = msgspec.msgpack.encode(["Nope", "p", "f", b"", 1])
    with pytest.raises(msgspec.ValidationError) as caught:
        msgspec.msgpack.decode(wrong_tag, type=StoreFragment)
    assert explain(StoreFragment, caught.value) == f"StoreFragment: {caught.value}"
    assert explain(StoreFragment, ValueError("odd - at `$[99]`")) == "StoreFragment: odd - at `$[99]`"


def test_explain_a_field_without_advice() -> None:
    """It is still named."""
    with pytest.raises(msgspec.ValidationError) as caught:
        msgspec.convert({"name": "a", "bare": 0}, Bounded)
    assert explain(Bounded, caught.value) == "bare was refused (Expected `int` >= 1)"


def test_metadata_is_bounded_as_a_whole() -> None:
    """In bytes, keys and values, the bound included."""
    key = "é" * 64
    fits = {key: "x" * (limits.METADATA_BYTES_MAX - len(key.encode()))}
    check_metadata(fits)
    with pytest.raises(InvalidArgument, match="store what is large as a body"):
        check_metadata({key: fits[key] + "x"})


def test_metadata_is_text() -> None:
    """Half a surrogate pair, which no encoder takes, is refused as what it is."""
    with pytest.raises(InvalidArgument, match="metadata"):
        check_metadata({"k": "\ud800"})
