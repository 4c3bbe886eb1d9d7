"""The codec: messages to frames, and payloads to messages. It is the only place that decodes what a peer sends.

Decoding raises `ProtocolError` or returns a valid message, whatever the bytes are: msgspec checks types and bounds
while it decodes. A request is decoded in one pass. Only if that fails is it decoded again, command by command, so that
one malformed command refuses itself and not the whole connection.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct
from msgspec.msgpack import Decoder, Encoder

from stepwell import limits
from stepwell.domain.checks import explain
from stepwell.domain.commands import AnyCommand, Command
from stepwell.domain.replies import Reply
from stepwell.errors import InvalidArgument, ProtocolError
from stepwell.protocol.framing import HEADER
from stepwell.protocol.messages import (
    ClientMessage,
    ManagerMessage,
    Message,
    Refusal,
    RequestId,
    Result,
    TransactionRequest,
)

_encoder = Encoder()
_client_messages: Decoder[ClientMessage] = Decoder(ClientMessage)
_manager_messages: Decoder[ManagerMessage] = Decoder(ManagerMessage)
_results: Decoder[list[Result]] = Decoder(list[Result])

_NO_HEADER = bytes(HEADER.size)  # holds the place of the header until the length is known

_UNDECODABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""The exceptions of msgspec for bytes that it cannot decode; the last two come from Python underneath it."""
_UNENCODABLE = (UnicodeEncodeError, TypeError, OverflowError)
"""The exceptions of msgspec for values that it cannot encode."""


class _Envelope(Struct, array_like=True):
    """A request of which only the outermost layer is decoded."""

    kind: Literal["Request", "TransactionRequest"]
    request_id: RequestId
    commands: msgspec.Raw
    answered: RequestId = 0


class _Tagged(Struct, array_like=True):
    """A command of which only the name is decoded."""

    tag: str


class PartlyDecodedRequest(Struct, frozen=True):
    """A request with a malformed command: each command, or the error that explains what is wrong with it.

    `atomic`: it was a transaction, so that one malformed command refuses all.
    """

    request_id: int
    commands: tuple[Command[Reply] | InvalidArgument, ...]
    atomic: bool
    answered: int


def encode_frame(message: Message, out: bytearray) -> None:
    """Append a message to a buffer, as a frame.

    Raises `InvalidArgument` for a message that cannot be encoded or is too large; the buffer is as before then.
    """
    # The message is encoded straight into the buffer that is sent, behind room for its length: no copy is made.
    start = len(out)
    out += _NO_HEADER
    try:
        _encoder.encode_into(message, out, start + HEADER.size)
    except _UNENCODABLE as error:
        del out[start:]
        raise _unencodable(error) from error
    length = len(out) - start - HEADER.size
    if length > limits.FRAME_BYTES_MAX:
        del out[start:]
        raise _too_large(length)
    HEADER.pack_into(out, start, length)


def encoded_frame(message: Message) -> bytes:
    """Return a message as a frame of its own. Raises `InvalidArgument` as `encode_frame` does.

    For messages that are kept. A small one takes less time than in a buffer, a large one is copied once more.
    """
    try:
        payload = _encoder.encode(message)
    except _UNENCODABLE as error:
        raise _unencodable(error) from error
    if len(payload) > limits.FRAME_BYTES_MAX:
        raise _too_large(len(payload))
    return HEADER.pack(len(payload)) + payload


def _unencodable(error: Exception) -> InvalidArgument:
    """Return the error for a message with a value that cannot be encoded."""
    if isinstance(error, UnicodeEncodeError):
        return InvalidArgument(f"a text contains a lone surrogate, which is not Unicode: {error.reason}")
    return InvalidArgument(f"a value cannot be sent: {error}")


def _too_large(length: int) -> InvalidArgument:
    """Return the error for a message that does not fit in a frame."""
    return InvalidArgument(
        f"the message has {length} bytes, at most {limits.FRAME_BYTES_MAX} are allowed: send less at a time"
    )


def encode_results(results: Sequence[Result]) -> bytes:
    """Return the results of a part of a batch as bytes, for the store."""
    return _encoder.encode(results)


def decode_results(part: bytes) -> list[Result]:
    """Return the results of a part of a batch, or raise `ProtocolError`."""
    try:
        return _results.decode(part)
    except _UNDECODABLE as error:
        raise ProtocolError(f"these are not the results of a batch: {error}") from error


def size_of(result: Result) -> int:
    """Return about how many bytes a result takes in a frame. Refusals are small and count as 0."""
    if isinstance(result, Refusal):
        return 0
    return len(_encoder.encode(result.reply)) + limits.HANDLE_BYTES * len(result.handles)


def decode_from_manager(payload: bytes | bytearray | memoryview) -> ManagerMessage:
    """Return the message that the manager sent, or raise `ProtocolError`. It keeps no reference to the payload."""
    try:
        return _manager_messages.decode(payload)
    except _UNDECODABLE as error:
        raise ProtocolError(f"the manager sent something that is not our protocol: {error}") from error


def decode_from_client(payload: bytes | bytearray) -> ClientMessage | PartlyDecodedRequest:
    """Return the message that a peer sent, or raise `ProtocolError`.

    A request with a malformed command is returned as a `PartlyDecodedRequest`.
    """
    try:
        return _client_messages.decode(payload)
    except msgspec.ValidationError as error:
        return _decode_partly(payload, error)
    except _UNDECODABLE as error:
        raise ProtocolError(f"that is not our protocol: {error}") from error


def _decode_partly(payload: bytes | bytearray, error: msgspec.ValidationError) -> PartlyDecodedRequest:
    """Decode a request command by command. Raises `ProtocolError` if it is not even the envelope of a request."""
    try:
        envelope = _envelopes.decode(payload)
    except _UNDECODABLE:
        raise ProtocolError(f"that is not a message of ours: {error}") from error
    atomic = envelope.kind == TransactionRequest.__name__
    try:
        commands = _raw_commands.decode(envelope.commands)  # their number is checked before any of them is allocated
    except _UNDECODABLE:
        problem = InvalidArgument(f"send 1 to {limits.BATCH_COMMANDS_MAX} commands in one request")
        return PartlyDecodedRequest(envelope.request_id, (problem,), atomic, envelope.answered)
    return PartlyDecodedRequest(
        envelope.request_id, tuple(_command(each) for each in commands), atomic, envelope.answered
    )


_envelopes = Decoder(_Envelope)
_raw_commands: Decoder[tuple[msgspec.Raw, ...]] = Decoder(
    Annotated[tuple[msgspec.Raw, ...], Meta(min_length=1, max_length=limits.BATCH_COMMANDS_MAX)]
)
_tags = Decoder(_Tagged)
# Only for requests that the fast decoder has refused; the decoders of whole messages are above.
_commands: Decoder[AnyCommand] = Decoder(AnyCommand)
_kinds: dict[str, type[Struct]] = {kind.__name__: kind for kind in AnyCommand.__args__}


def _command(raw: msgspec.Raw) -> Command[Reply] | InvalidArgument:
    """Return a command, or the error that explains what is wrong with it."""
    try:
        return _commands.decode(raw)
    except _UNDECODABLE as error:
        return _complaint(raw, error)


def _complaint(raw: msgspec.Raw, error: Exception) -> InvalidArgument:
    """Return the error for a malformed command: about its field if its name is known, about its name otherwise."""
    kind = _kinds.get(tag := _tag(raw))
    return InvalidArgument(explain(kind, error) if kind else f"{tag[:80]!r} is not a command that is allowed here")


def _tag(raw: msgspec.Raw) -> str:
    """Return the name of a command, whatever its fields are; empty if it has none."""
    try:
        return _tags.decode(raw).tag
    except _UNDECODABLE:
        return ""
