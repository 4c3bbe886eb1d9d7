"""The decode boundary: what is ours comes through unchanged; of all else, only a StepwellError comes out."""

import struct
import sys
from typing import cast, get_args

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import Struct

import stepwell.domain.machine  # noqa: F401 - brings in all that decide
from stepwell import limits
from stepwell.domain.commands import AnyCommand, AnyRead, AnyWrite, Command, Internal, Read, Write
from stepwell.domain.plans.commands import GetPlan
from stepwell.domain.replies import AnyReply, Reply
from stepwell.domain.tiers.commands import EvictLru, GetFragment, GetMetrics, StoreFragment
from stepwell.domain.verdict import DECIDERS
from stepwell.errors import InvalidArgument, ProtocolError, StepwellError
from stepwell.protocol.codec import (
    PartlyDecodedRequest,
    decode_from_client,
    decode_from_manager,
    encode_frame,
    encoded_frame,
)
from stepwell.protocol.framing import Framer
from stepwell.protocol.handles import CatalogueEnd, Handle
from stepwell.protocol.messages import (
    VERSION,
    AskStatus,
    AskView,
    ClientMessage,
    CommandResult,
    Goodbye,
    Hello,
    ManagerMessage,
    Message,
    OfferUpload,
    Refusal,
    Request,
    Response,
    SegmentInfo,
    SegmentsAdded,
    SegmentsReleased,
    TransactionRequest,
    UploadGranted,
    ViewOpened,
    Welcome,
)
from tests.support.measurement import untraced
from tests.support.message_values import values
from tests.support.seeds import seeded

SEED = 3992
SLOW = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]
FEW = settings(max_examples=10, suppress_health_check=SLOW, deadline=None)


def payload_of(message: Message) -> bytes:
    """A message as the payload of its frame."""
    out = bytearray()
    encode_frame(message, out)
    framer = Framer()
    framer.feed(bytes(out))
    payload = framer.next_frame()
    assert payload is not None
    return bytes(payload)


def encoded(value: object) -> bytes:
    return msgspec.msgpack.encode(value)


@pytest.mark.parametrize("kind", get_args(ClientMessage), ids=lambda kind: kind.__name__)
@untraced()
@FEW
@given(data=st.data())
def test_client_messages_come_through(kind: type[Message], data: st.DataObject) -> None:
    """Every message of a client, with any commands, is decoded as what it was."""
    message = cast("Message", data.draw(values(kind)))
    assert decode_from_client(payload_of(message)) == message


@pytest.mark.parametrize("kind", get_args(ManagerMessage), ids=lambda kind: kind.__name__)
@untraced()
@FEW
@given(data=st.data())
def test_manager_messages_come_through(kind: type[Message], data: st.DataObject) -> None:
    """Every message of the manager, with any replies, is decoded as what it was."""
    message = cast("Message", data.draw(values(kind)))
    payload = bytearray(payload_of(message))
    found = decode_from_manager(memoryview(payload))
    payload[:] = bytes(len(payload))  # the receive buffer is used again for the next message
    assert found == message


@pytest.mark.parametrize("kind", get_args(AnyCommand), ids=lambda kind: kind.__name__)
@untraced()
@FEW
@given(data=st.data())
def test_commands_come_through(kind: type[Struct], data: st.DataObject) -> None:
    """Every command, with any fields that its types allow, arrives as it was sent."""
    command = cast("AnyCommand", data.draw(values(kind)))
    assert decode_from_client(payload_of(Request(1, (command,)))) == Request(1, (command,))


@pytest.mark.parametrize("kind", get_args(AnyReply), ids=lambda kind: kind.__name__)
@untraced()
@FEW
@given(data=st.data())
def test_replies_come_through(kind: type[Struct], data: st.DataObject) -> None:
    """Every reply arrives as it was sent."""
    answer = CommandResult(7, cast("AnyReply", data.draw(values(kind))), {b"d": Handle(1, 48, 4, packed_bytes=3)})
    assert decode_from_manager(payload_of(Response(1, (answer,)))) == Response(1, (answer,))


def test_unions_are_complete() -> None:
    """Every command that is decided can be sent, except the manager's own; every reply can be answered."""

    def leaves(kind: type[Struct]) -> set[type[Struct]]:
        """Without the parametrised roots, which msgspec makes real classes of."""
        found = {each for sub in kind.__subclasses__() for each in leaves(sub)}
        return found or ({kind} if "[" not in kind.__name__ else set())

    housekeeping = {each for each in DECIDERS if issubclass(each, Internal)}
    assert set(DECIDERS) - housekeeping == set(get_args(AnyCommand))
    assert {each for each in DECIDERS if issubclass(each, Read)} == set(get_args(AnyRead))
    assert {each for each in DECIDERS if issubclass(each, Write)} == set(get_args(AnyWrite))
    assert leaves(Reply) == set(get_args(AnyReply))


@pytest.mark.parametrize("error", [*StepwellError.kinds.values()], ids=lambda error: error.__name__)
def test_every_error_travels_as_itself(error: type[StepwellError]) -> None:
    """Kind, message and details survive the wire, and the long ones are cut."""
    raised = error("what to do", text="t", number=7, flag=True, nothing=None, names=["a", "b"])
    response = decode_from_manager(payload_of(Response(1, (Refusal.of(raised, 3),))))
    assert isinstance(response, Response)
    (refusal,) = response.results
    assert isinstance(refusal, Refusal)
    revived = refusal.error()
    assert (type(revived), revived.message, revived.details) == (error, raised.message, raised.details)
    assert len(Refusal.of(error("x" * 10_000), 0).message) == limits.ERROR_CHARS_MAX


@pytest.mark.parametrize(
    "tag, reply",
    [
        ("FragmentDeleted", ["p", "b", "hot"]),
        ("ChangeRecorded", [["plan", "cs", 1, "modify", "a", None, None, None, "tool", 0]]),
    ],
)
def test_responses_of_earlier_stores_are_read(tag: str, reply: list[object]) -> None:
    """A store keeps responses as they were sent: the tags inside of one are those of every version before."""
    payload = msgspec.msgpack.encode(["Response", 1, [["Answer", 7, [tag, *reply], {}]]])
    message = decode_from_manager(payload)
    assert isinstance(message, Response)
    assert isinstance(message.results[0], CommandResult)
    assert message.results[0].reply.__struct_config__.tag == tag


def test_error_of_a_newer_manager_is_still_ours() -> None:
    """A kind that this version does not know is a StepwellError, with its message."""
    revived = Refusal(0, "NotInventedYet", "what to do").error()
    assert type(revived) is StepwellError
    assert revived.message == "what to do"


# What is not ours.


def valid_frames() -> list[bytes]:
    return [
        payload_of(message)
        for message in (
            Hello(VERSION, "session", ("p", "q")),
            Request(1, (StoreFragment("p", "a", b"body", 3, metadata={"k": "v"}), GetFragment("p", "a"))),
            TransactionRequest(2, (StoreFragment("p", "a", b"body", 3), EvictLru())),
            AskStatus(3),
            Goodbye(),
            Welcome(VERSION, "epoch", 0, 1, "estimate", (1, 2), generation=7, database="/data/stepwell.sqlite"),
            OfferUpload(0, 1 << 20),
            UploadGranted(0, accepted=True),
            SegmentsReleased((1, 2)),
            SegmentsAdded((SegmentInfo(1, 4096),)),
            AskView(4, ("p",)),
            ViewOpened(4, "epoch", 1, (CatalogueEnd("p", 1, 0, ((3, 128),)),)),
            Response(1, (Refusal(1, "NotFound", "no"),)),
        )
    ]


def test_damaged_frames_raise_nothing_but_our_errors() -> None:
    """Flipped, cut, doubled and spliced frames, on both sides: a message, a refusal, or a ProtocolError."""
    generator = seeded(SEED)
    frames = valid_frames()
    outcomes = {"decoded": 0, "refused": 0}
    for _ in range(20_000):
        damaged = bytearray(generator.choice(frames))
        for _ in range(generator.randrange(1, 4)):
            place = generator.randrange(len(damaged))
            match generator.randrange(4):
                case 0:
                    damaged[place] = generator.randrange(256)
                case 1:
                    del damaged[place:]
                case 2:
                    damaged[place:place] = generator.randbytes(generator.randrange(8))
                case _:
                    damaged += generator.choice(frames)
            damaged = damaged or bytearray(b"\xc0")
        for decode in (decode_from_client, decode_from_manager):
            try:
                decode(bytes(damaged))
                outcomes["decoded"] += 1
            except StepwellError:
                outcomes["refused"] += 1
    assert min(outcomes.values()) > 100


@given(st.binary(max_size=200))
def test_any_bytes_raise_nothing_but_our_errors(payload: bytes) -> None:
    """Whatever a peer sends, only a StepwellError comes out."""
    for decode in (decode_from_client, decode_from_manager):
        try:
            decode(payload)
        except StepwellError:
            continue


HOSTILE = {
    "nothing": b"",
    "too deep": b"\x91" * 100_000,
    "too deep in a request": b"\x93" + encoded("Request") + encoded(1) + b"\x91" * 100_000,
    "no UTF-8": b"\x91\xa1\xff",
    "no UTF-8 in a request": b"\x93" + encoded("Request") + encoded(1) + b"\x91\x91\xa1\xff",
    "4 billion commands": b"\x93" + encoded("Request") + encoded(1) + b"\xdd\xff\xff\xff\xff",
    "unknown message with commands": encoded(["Nonsense", 1, [["GetMetrics"]]]),
    "negative request id": encoded(["Request", -1, [["GetMetrics"]]]),
    "request id that is no number": encoded(["Request", "1", [["GetMetrics"]]]),
    "commands that are no commands": encoded(["Hello", 1, [["GetMetrics"]]]),
    "a session id with a newline": encoded(["Hello", VERSION, "a\n", None]),
    "no projects": encoded(["Hello", VERSION, "a", []]),
    "an offer of nothing": encoded(["OfferUpload", 0, 0]),
    "an offer larger than any body": encoded(["OfferUpload", 0, limits.BODY_BYTES_MAX + 1]),
    "an offer with a negative number": encoded(["OfferUpload", -1, 1]),
    "a view of nothing": encoded(["AskView", 1, []]),
    "more released than a message may name": encoded(["SegmentsReleased", [0] * (limits.RELEASED_PER_MESSAGE_MAX + 1)]),
    "extension type": b"\xc7\x01\x05\x00",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_payload_is_a_protocol_error(name: str) -> None:
    """Nothing of it is executed, and no memory is given for what it claims."""
    with pytest.raises(ProtocolError):
        decode_from_client(HOSTILE[name])


def test_deep_nesting_raises_no_recursion_error_anywhere() -> None:
    """Deeper than the interpreter allows, at every place where a payload is looked at again."""
    deep = b"\x91" * (10 * sys.getrecursionlimit())
    for payload in (deep, b"\x93" + encoded("Request") + encoded(1) + b"\x91" + deep):
        with pytest.raises(ProtocolError):
            decode_from_client(payload)
        with pytest.raises(ProtocolError):
            decode_from_manager(payload)


# A request that is ours, with something in it that is not right.


def salvaged(kind: str, *commands: object) -> PartlyDecodedRequest:
    message = decode_from_client(encoded([kind, 5, commands]))
    assert isinstance(message, PartlyDecodedRequest)
    assert message.request_id == 5
    return message


def problems(message: PartlyDecodedRequest) -> list[str]:
    return [each.message for each in message.commands if isinstance(each, InvalidArgument)]


@pytest.mark.parametrize(
    "command, problem",
    [
        (["DeleteFragment", "p", ""], "fragment_id is malformed: give 1 to 512 characters"),
        (["DeleteFragment", "p q", "a"], "project is malformed: a project is 1 to 128"),
        (["GetFragment", "p"], "GetFragment"),
        (["StoreFragment", "p", "a", b"", 0], "tokens was refused .*at least 1"),
        (["StoreFragment", "p", "a", b"", 1, "lukewarm"], "tier was refused .*one of hot, warm, cold"),
        (["StoreFragment", "p", "a", b"", 1, "hot", "", "text", 0, {"": "v"}], "metadata"),
        (["EvictLru", "hot", 0], "count was refused .*evict 1 to 4096"),
        (["NoSuchCommand"], "'NoSuchCommand' is not a command"),
        (["EndSession", "somebody"], "'EndSession' is not a command"),
        (["ExpireLeases"], "'ExpireLeases' is not a command"),
        ([], "'' is not a command"),
        ([7], "'' is not a command"),
        ("GetMetrics", "'' is not a command"),
        (None, "'' is not a command"),
        ([b"\xff"], "'' is not a command"),
    ],
)
def test_bad_command_costs_itself_only(command: object, problem: str) -> None:
    """It becomes an InvalidArgument that names the field and says what to do; its neighbours are commands."""
    message = salvaged("Request", ["GetMetrics"], command, ["GetPlan", "x"])
    first, second, third = message.commands
    assert (first, third) == (GetMetrics(), GetPlan("x"))
    with pytest.raises(InvalidArgument, match=problem):
        raise cast("InvalidArgument", second)
    assert not message.atomic


def test_read_in_a_transaction_is_not_a_write() -> None:
    """It is a command, but none of a transaction's; the manager refuses it as a whole."""
    message = salvaged("TransactionRequest", ["GetMetrics"], ["EvictLru"])
    assert message.atomic
    assert message.commands == (GetMetrics(), EvictLru())


@pytest.mark.parametrize("kind", ["Request", "TransactionRequest"])
@pytest.mark.parametrize("count", [0, limits.BATCH_COMMANDS_MAX + 1])
def test_number_of_commands_is_bounded(kind: str, count: int) -> None:
    """None, or too many: one refusal for all, and nothing of it happens."""
    message = salvaged(kind, *[["GetMetrics"]] * count)
    assert problems(message) == [f"send 1 to {limits.BATCH_COMMANDS_MAX} commands in one request"]
    assert len(message.commands) == 1


def test_million_commands_are_not_looked_at_one_by_one() -> None:
    """The bound is checked before anything is made of them."""
    count = 4_000_000
    payload = b"\x93" + encoded("Request") + encoded(1) + b"\xdd" + struct.pack("!I", count) + b"\xc0" * count
    before = sys.getallocatedblocks()
    message = decode_from_client(payload)
    assert isinstance(message, PartlyDecodedRequest)
    assert sys.getallocatedblocks() - before < 1_000


def test_command_with_a_million_fields_is_refused() -> None:
    """Only its name is looked at to say what it is."""
    fields = b"\xdd" + struct.pack("!I", 4_000_000) + encoded("NoSuchCommand") + b"\xc0" * 3_999_999
    message = decode_from_client(b"\x93" + encoded("Request") + encoded(1) + b"\x91" + fields)
    assert isinstance(message, PartlyDecodedRequest)
    assert problems(message) == ["'NoSuchCommand' is not a command that is allowed here"]


# Encoding.


def unencodable() -> list[tuple[Message, str]]:
    loose = cast("Command[Reply]", object())
    return [
        (Request(1, (GetFragment("p", "\ud800"),)), "lone surrogate"),
        (Request(2**70, (GetMetrics(),)), "cannot be sent"),
        (Request(1, (cast("AnyCommand", loose),)), "cannot be sent"),
        (Request(1, (StoreFragment("p", "a", bytes(limits.FRAME_BYTES_MAX), 1),)), "send less at a time"),
    ]


@pytest.mark.parametrize("case", range(4))
def test_what_cannot_be_encoded_leaves_the_buffer_as_it_was(case: int) -> None:
    """Frames that wait in the same buffer are not damaged."""
    message, problem = unencodable()[case]
    out = bytearray()
    encode_frame(Goodbye(), out)
    before = bytes(out)
    with pytest.raises(InvalidArgument, match=problem):
        encode_frame(message, out)
    assert out == before
    encode_frame(Goodbye(), out)
    assert out == before * 2
    with pytest.raises(InvalidArgument, match=problem):
        encoded_frame(message)


def test_frames_follow_one_another() -> None:
    """Each frame carries the length of its own payload."""
    out = bytearray()
    for number in range(3):
        encode_frame(AskStatus(number), out)
    framer = Framer()
    framer.feed(bytes(out))
    found = [decode_from_client(framer.next_frame() or b"") for _ in range(3)]
    assert found == [AskStatus(0), AskStatus(1), AskStatus(2)]
    assert out == b"".join(encoded_frame(AskStatus(number)) for number in range(3))
