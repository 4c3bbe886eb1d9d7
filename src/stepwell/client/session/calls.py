"""`Call`: a command together with the function that turns its answer into a result.

A method of a service builds a `Call`; it never sends anything itself. The session (or, for an event loop, the async
caller) sends the command and applies `Call.finish` to the answer. Therefore each method is written once, although it
can be called in four ways: blocking, awaited, in a batch and in a transaction.

A body that is too large for a frame is uploaded before the request. The command then holds the number of the upload
in place of the bytes. Numbers are assigned when a request is put together (`Call.prepare`), because several calls may
share one request.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Generic, Protocol, TypeVar, cast, overload

from msgspec import Struct
from msgspec.structs import replace

from stepwell.domain.commands import Command
from stepwell.domain.replies import AnyReply, Reply
from stepwell.errors import InvalidArgument, PartlyRefused, StepwellError
from stepwell.protocol.handles import Handle

R_co = TypeVar("R_co", covariant=True)
ReplyT = TypeVar("ReplyT", bound=Reply)
ReplyT_co = TypeVar("ReplyT_co", bound=Reply, covariant=True)


class NoEviction(Struct, frozen=True):
    """A large body for which the manager demotes no fragment: if there is no room, it refuses the command."""

    body: bytes


LargeBody = bytes | memoryview | NoEviction
"""A body that is uploaded beside the request that refers to it."""


class Answered(Protocol[ReplyT_co]):
    """The manager's answer to one command: the reply, its revision and the handles of the bodies it refers to."""

    @property
    def reply(self) -> ReplyT_co: ...
    @property
    def revision(self) -> int: ...
    @property
    def handles(self) -> dict[bytes, Handle]: ...


class Call(Generic[R_co]):
    """A command, and the function that makes a result of its answer; by default the result is the reply itself.

    `large` maps names of the command's fields to bodies that no frame can carry. A call is immutable and holds no
    connection, so it may be performed again, for example after a body was moved between the answer and the read.
    """

    __slots__ = ("_large", "command", "finish")

    @overload
    def __init__(
        self: Call[ReplyT], command: Command[ReplyT], finish: None = None, large: Mapping[str, LargeBody] | None = None
    ) -> None: ...
    @overload
    def __init__(
        self,
        command: Command[ReplyT],
        finish: Callable[[Answered[ReplyT]], R_co],
        large: Mapping[str, LargeBody] | None = None,
    ) -> None: ...

    def __init__(
        self,
        command: Command[ReplyT],
        finish: Callable[[Answered[ReplyT]], R_co] | None = None,
        large: Mapping[str, LargeBody] | None = None,
    ) -> None:
        self.command: Command[Reply] = command
        # The type of a command fixes the type of its reply. The protocol's union of replies cannot express that.
        self.finish = cast("Callable[[Answered[AnyReply]], R_co]", finish or _reply_of)
        self._large = large

    @property
    def has_large(self) -> bool:
        """True if a body of the command has to be uploaded before the request."""
        return bool(self._large)

    def retried(self, _answered: Answered[AnyReply]) -> Call[R_co]:
        """Return the call to perform after `finish` has raised `BodyGone`, because a body was moved.

        A call that reads is performed again. One that writes must not be: it returns a call that reads the bodies.
        """
        return self

    def prepare(self, uploads: list[LargeBody]) -> Command[Reply]:
        """Return the command as it is sent, after appending its large bodies to `uploads`.

        Each field of a large body gets the body's position in `uploads`, the number under which it is uploaded.
        """
        if not self._large:
            return self.command
        numbers = {field: len(uploads) + index for index, field in enumerate(self._large)}
        uploads.extend(self._large.values())
        return replace(self.command, **numbers)


class Pending(Generic[R_co]):
    """The future result of a call in a batch or a transaction; available once the `with` block has ended.

    It belongs to the thread that runs the block. The block sets the outcome of every `Pending` that it gave out, also
    when sending fails, so `result` never waits.
    """

    def __init__(self) -> None:
        self._outcome: object = None
        self._revision: int | None = None
        self._done = False

    def set_outcome(self, outcome: object, revision: int | None = None) -> None:
        """Store the result or, as a `StepwellError`, the refusal of the call."""
        self._outcome, self._revision, self._done = outcome, revision, True

    def result(self) -> R_co:
        """Return the result of the call, or raise its refusal; `InvalidArgument` before the block has ended."""
        if not self._done:
            raise InvalidArgument("this is not sent yet: leave the `with` block first")
        if isinstance(self._outcome, StepwellError):
            raise self._outcome
        return cast(R_co, self._outcome)

    @property
    def revision(self) -> int:
        """The revision at which a write took effect or that a read saw; raises the refusal if there was one."""
        self.result()
        assert self._revision is not None
        return self._revision


def partly_refused(outcomes: Sequence[object]) -> PartlyRefused:
    """Return the error for a bulk operation of which at least one part was refused; it carries all outcomes."""
    refused = [each for each in outcomes if isinstance(each, StepwellError)]
    return PartlyRefused(
        f"{len(refused)} of {len(outcomes)} were refused, the others took effect; the first: {refused[0].message}",
        outcomes,
    )


def _reply_of(answered: Answered[ReplyT]) -> ReplyT:
    return answered.reply
