"""Bounds stand in types, values are held to them, and a complaint says what to do."""

import re
import subprocess
import sys
from enum import Enum
from typing import Annotated, cast, get_type_hints

import msgspec
import pytest
from msgspec import Meta, Struct

from stepwell import limits
from stepwell.domain.bounded_types import Identifier
from stepwell.domain.changesets.commands import RecordChange
from stepwell.domain.checks import check, check_metadata, checked, explain, require_instance, utf8
from stepwell.domain.commands import AnyCommand
from stepwell.domain.plans.commands import DeclareSubplans
from stepwell.domain.tiers.commands import DeleteFragment, ListFragments, StoreFragment
from stepwell.domain.tiers.model import Tier
from stepwell.errors import InvalidArgument
from stepwell.protocol.codec import PartlyDecodedRequest, decode_from_client

pytestmark = pytest.mark.usefixtures("processes_unmeasured")


@checked
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

    @checked
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
        (DeleteFragment, ("a b", "f"), r"^project is malformed: a project is 1 to 128 letters"),
        (DeleteFragment, ("p", ""), r"^fragment_id is malformed: give 1 to 512 characters"),
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


HOSTILE = {
    "place": " - at `$.foo`",
    "own field": " - at `$.plan_id`",
    "position": "` - at `$[3]`",
    "key": " - at `key` in `$[1]`",
    "digits": " - at `$[" + "9" * 5000 + "]`",
    "lines": "\n - at `$[1]`\n - at `$",
    "many": " - at `$[1]`" * 1000,
    "quotes": "'`\"",
    "empty": "",
}
"""Values that look like the end of a decoder's complaint."""

SAMPLES: dict[str, tuple[object, ...]] = {
    "StoreFragment": ("p", "f", b"", 1, "hot"),
    "EvictLru": ("hot",),
    "ListFragments": ("p", (), "hot"),
    "ListPlans": ("execute", "queued"),
    "StartPhase": ("plan", "execute"),
    "CompletePhase": ("plan", "execute", 1),
    "FailPhase": ("plan", "execute", 1, "x"),
    "AdvancePlan": ("plan", "execute"),
    "ResolveConflict": ("plan", 1, "a.py", "0", "cs", "accept_ours"),
    "DeclareSubplans": ("plan", 1, (("a", "a", "act"),), "parallel", 1, False, "last_wins"),
}
"""A sound command of each kind that has an enum, down to its last enum."""


def enum_fields() -> list[tuple[str, int]]:
    """Every field of every command that is an enum, or an enum or nothing: the command, and its place."""
    return [
        (kind.__name__, index)
        for kind in cast("tuple[type[Struct], ...]", AnyCommand.__args__)
        for index, field in enumerate(kind.__struct_fields__)
        for hint in [get_type_hints(kind)[field]]
        if any(isinstance(each, type) and issubclass(each, Enum) for each in (hint, *getattr(hint, "__args__", ())))
    ]


def sent(*command: object) -> InvalidArgument:
    """What becomes of a malformed command in an otherwise sound request."""
    message = decode_from_client(msgspec.msgpack.encode(["Request", 7, [command]]))
    assert isinstance(message, PartlyDecodedRequest)
    assert (message.request_id, len(message.commands)) == (7, 1)
    (result,) = message.commands
    assert type(result) is InvalidArgument
    return result


def test_samples_are_sound() -> None:
    """So that what is refused below is refused for its one hostile value; and no command is forgotten."""
    assert {kind for kind, _ in enum_fields()} == SAMPLES.keys()
    for kind, fields in SAMPLES.items():
        assert not isinstance(
            decode_from_client(msgspec.msgpack.encode(["Request", 7, [[kind, *fields]]])), PartlyDecodedRequest
        )


@pytest.mark.parametrize("value", HOSTILE.values(), ids=HOSTILE)
@pytest.mark.parametrize("kind, index", enum_fields(), ids=str)
def test_hostile_value(kind: str, index: int, value: str) -> None:
    """It is refused as a value of the field that it was given for, whatever place it claims to be at."""
    fields = list(SAMPLES[kind])
    fields[index] = value
    message = sent(kind, *fields).message
    name = {each.__name__: each for each in AnyCommand.__args__}[kind].__struct_fields__[index]
    assert message.startswith(f"{name} was refused (Invalid enum value {value!r}): give one of ")


@pytest.mark.parametrize("value", HOSTILE.values(), ids=HOSTILE)
def test_hostile_value_further_down(value: str) -> None:
    """The same for an enum inside a field."""
    argument = {"name": "a", "type": value}
    message = sent("CreateAction", "act", "", "", "p", "c", None, None, None, None, [argument]).message
    assert message == f"arguments was refused (Invalid enum value {value!r}): give at most 64 arguments"


@pytest.mark.parametrize("value", HOSTILE.values(), ids=HOSTILE)
def test_hostile_name(value: str) -> None:
    """A command that goes by such a name is no command."""
    assert sent(value, "p").message == f"{value[:80]!r} is not a command that is allowed here"


@pytest.mark.parametrize("value", HOSTILE.values(), ids=HOSTILE)
def test_hostile_value_of_a_constructed_object(value: str) -> None:
    """A caller without a type checker gets the same sentence."""

    @checked
    class Placed(Struct):
        name: Identifier
        tier: Tier

    with pytest.raises(InvalidArgument) as caught:
        check(Placed("a", cast("Tier", value)))
    assert caught.value.message == f"tier was refused (Invalid enum value {value!r}): give one of hot, warm, cold"


@pytest.mark.parametrize("place", ["$.foo", "$[0]", "$[13]", "$[99999]", "$[" + "9" * 5000 + "]", "$", "$["])
def test_explain_a_place_that_is_no_field(place: str) -> None:
    """The complaint is given as it is, and nothing else is raised."""
    error = ValueError(f"odd - at `{place}`")
    assert explain(StoreFragment, error) == f"StoreFragment: {error}"


def test_require_instance() -> None:
    """One of the kinds; or the advice, and what was given instead."""
    require_instance("a", (bytes, str), "give a text")
    with pytest.raises(InvalidArgument, match=r"^give a text, not a int$"):
        require_instance(3, (bytes, str), "give a text")


def test_utf8() -> None:
    """The bytes of what is Unicode; or which argument is not."""
    assert utf8("☃", "path") == "☃".encode()
    with pytest.raises(InvalidArgument, match=r"^path contains a lone surrogate, which is not Unicode: decode its"):
        utf8("a\ud800", "path")


def test_first_checks_of_a_process_may_come_from_many_threads() -> None:
    """Every checked type is compiled while it is imported, because two threads that compile one crash."""
    script = """
import sys, threading
import stepwell as sw
sys.setswitchinterval(1e-6)
barrier = threading.Barrier(8)
def make():
    barrier.wait()
    for _ in range(20):
        sw.Fragment(fragment_id="a", body="x"), sw.TierBudget(), sw.ProjectLink("p")
        sw.Argument(name="a"), sw.Change(path="a", after=b"x")
threads = [threading.Thread(target=make) for _ in range(8)]
[each.start() for each in threads], [each.join() for each in threads]
"""
    for _ in range(3):
        assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
