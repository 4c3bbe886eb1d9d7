"""A connection that an event loop drives: many requests on their way at once, and nothing in it waits.

The manager answers a connection's requests in their order, so that the first answer to come is the answer to the first
request that has none. An answer that nobody awaits any more is received all the same, and dropped: what comes behind
it still finds whom it is for.

Whatever ends a connection reaches those who await it as a value, and is raised where they are: an exception that is
put in a future whose owner was cancelled at the same moment would be reported as one that nobody has seen.
"""

from __future__ import annotations

import asyncio
from asyncio import AbstractEventLoop, Future
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from stepwell import limits
from stepwell.errors import OutcomeUnknown, ProtocolError, RuntimeLost, StepwellError, revive
from stepwell.protocol.codec import decode_from_manager, encode_frame
from stepwell.protocol.messages import ClientMessage, ManagerMessage, Rejected, SegmentsAdded, SegmentsRetired
from stepwell.transport.frame_socket import FrameSocket, OnOutOfBand

AnswerFuture = Future[ManagerMessage | StepwellError]
"""An answer, or why there is none."""


class _AwaitedAnswer(NamedTuple):
    """Whom the next answer is for."""

    answer: AnswerFuture
    ends_at: int  # the last byte of its request, counted like `AsyncConnection._sent`
    on_end: Callable[[], None] | None  # called when it was answered, or never will be


class AsyncConnection(FrameSocket):
    """Used by one loop, from its thread alone."""

    def __init__(self, address: str, on_out_of_band: OnOutOfBand, loop: AbstractEventLoop) -> None:
        super().__init__(address, 0.0)
        self.generation = 0
        self.is_used = False
        self.error: StepwellError | None = None  # why it is over
        self._on_out_of_band = on_out_of_band
        self._loop = loop
        self._awaited: deque[_AwaitedAnswer] = deque()
        self._pushed: deque[ManagerMessage] | None = None  # what the manager says unasked, where that is wanted
        self._unsent = bytearray()
        self._sent = 0  # bytes, of all that was ever sent in frames
        self._is_reading = self._is_writing = False
        self._progress = asyncio.Event()  # something was sent or told, or it is over
        self._watch_reads()

    def accept_pushed(self) -> None:
        """From now on the manager speaks unasked."""
        self._pushed = deque()

    # What goes out.

    def send(self, message: ClientMessage) -> None:
        """Send something that has no answer."""
        self._require_open()
        encode_frame(message, self._unsent)
        self._flush()

    def send_request(self, message: ClientMessage, on_end: Callable[[], None] | None = None) -> AnswerFuture:
        """Send something whose answer is awaited. What cannot be encoded raises before a byte is sent."""
        self._require_open()
        encode_frame(message, self._unsent)
        answer: AnswerFuture = self._loop.create_future()
        self._awaited.append(_AwaitedAnswer(answer, self._sent + len(self._unsent), on_end))
        self._flush()
        return answer

    async def exchange(self, message: ClientMessage) -> ManagerMessage:
        """Send, and await the answer. Errors are those of a blocking connection."""
        return answer_or_raise(await self.send_request(message))

    async def wait_for_room(self) -> None:
        """Wait while the manager does not take what it was sent."""
        while len(self._unsent) > limits.UNSENT_BYTES_MAX and self.error is None:
            await self._wait_for_progress()
        self._require_open()

    async def wait_until_sent(self) -> None:
        """Wait until everything is sent, or it is over."""
        while self._unsent and self.error is None:
            await self._wait_for_progress()

    async def send_body(self, body: bytes | memoryview) -> None:
        """Send the bytes that a grant allows, as they are. Nobody else may send meanwhile."""
        await self.wait_until_sent()
        with memoryview(body) as out:
            sent = 0
            while sent < len(out):
                if self.error is not None and not isinstance(self.error, OutcomeUnknown):
                    raise _copy_of(self.error)
                self._require_open()
                try:
                    sent += self._socket.send(out[sent : sent + limits.UNSENT_BYTES_MAX])
                except BlockingIOError:
                    await self._wait_for_progress()
                except OSError as error:
                    self._on_send_error(error)
                else:
                    await asyncio.sleep(0)  # others have their turn

    async def _wait_for_progress(self) -> None:
        self._progress.clear()
        self._watch_writes()
        await self._progress.wait()

    def _flush(self) -> None:
        try:
            while self._unsent:
                sent = self._socket.send(self._unsent)
                del self._unsent[:sent]
                self._sent += sent
        except BlockingIOError:
            self._watch_writes()
        except OSError as error:
            self._on_send_error(error)

    def _on_writable(self) -> None:
        self._flush()
        if not self._unsent:
            self._ignore_writes()
        self._progress.set()

    def _on_send_error(self, error: OSError) -> None:
        """It cannot be written to any more. Why, may have been said before the door was shut."""
        while self.error is None and self._read():
            pass
        if self.error is None:
            self._fail(RuntimeLost(f"the connection to the manager is gone: {error.strerror}"))

    # What comes in.

    async def receive_pushed(self) -> ManagerMessage:
        """The next message that nobody asked for."""
        assert self._pushed is not None
        while not self._pushed:
            if self.error is not None:
                raise _copy_of(self.error)
            self._progress.clear()
            await self._progress.wait()
        message = self._pushed.popleft()
        if self.error is None:
            self._watch_reads()
        return message

    def _on_readable(self) -> None:
        self._read()

    def _read(self) -> bool:
        """Take what has come; whether there may be more."""
        try:
            if not (size := self._receive_some()):
                raise OutcomeUnknown("the manager went away before it answered: the request may have taken effect")
            self._feed(size)
            while (frame := self._framer.next_frame()) is not None:
                self._dispatch(decode_from_manager(frame))
        except BlockingIOError:
            return False
        except OSError as error:
            self._fail(OutcomeUnknown(f"the connection broke before the answer came: {error.strerror}"))
        except StepwellError as error:
            self._fail(error)
        return self.error is None

    def _dispatch(self, message: ManagerMessage) -> None:
        if isinstance(message, SegmentsAdded | SegmentsRetired):
            self._on_out_of_band(self, message)
        elif self._awaited:
            self._answer(message)
            if isinstance(message, Rejected):
                raise OutcomeUnknown("the manager has ended the connection: the request may have taken effect")
        elif isinstance(message, Rejected) and self._pushed is None:
            raise message.refusal.error()
        elif self._pushed is not None:
            self._pushed.append(message)
            if len(self._pushed) >= limits.FRAMES_AHEAD_MAX:
                self._ignore_reads()
            self._progress.set()
        else:
            raise ProtocolError(f"the manager said {type(message).__name__}, which nobody has asked for")

    def _answer(self, message: ManagerMessage | StepwellError) -> None:
        expected = self._awaited.popleft()
        if not expected.answer.done():
            expected.answer.set_result(message)
        if expected.on_end is not None:
            expected.on_end()

    # The end.

    def _require_open(self) -> None:
        """A message on a connection that is over has not gone."""
        if self.error is not None:
            raise RuntimeLost(self.error.message) from self.error

    def _fail(self, error: StepwellError) -> None:
        """It is over. What was not sent entirely cannot have taken effect; of the rest, nobody knows."""
        self.close()
        self.error = error
        while self._awaited:
            if self._awaited[0].ends_at > self._sent:
                self._answer(RuntimeLost("the connection to the manager is gone: not all of the request went"))
            elif isinstance(error, RuntimeLost):
                self._answer(OutcomeUnknown("the connection broke before the answer came"))
            else:
                self._answer(_copy_of(error))
        self._progress.set()

    def close(self) -> None:
        """Let go of the socket, of every descriptor that nobody took, and of the loop."""
        if self._socket.fileno() >= 0:
            self._ignore_reads()
            self._ignore_writes()
        super().close()

    def terminate(self) -> None:
        """Nobody uses it any more; whoever still awaits something on it is told so."""
        if self.error is None:
            self._fail(OutcomeUnknown("the connection was closed before the answer came"))

    def detach_in_forked_child(self) -> None:
        """In a forked child, which must not touch the loop: it watches on behalf of the parent."""
        self._is_reading = self._is_writing = False
        self.error = RuntimeLost("this client is another process's: connect anew")
        super().close()

    def _watch_reads(self) -> None:
        if not self._is_reading:
            self._is_reading = True
            self._loop.add_reader(self._socket, self._on_readable)

    def _ignore_reads(self) -> None:
        if self._is_reading and not self._loop.is_closed():
            self._loop.remove_reader(self._socket)
        self._is_reading = False

    def _watch_writes(self) -> None:
        if not self._is_writing and self.error is None:
            self._is_writing = True
            self._loop.add_writer(self._socket, self._on_writable)

    def _ignore_writes(self) -> None:
        if self._is_writing and not self._loop.is_closed():
            self._loop.remove_writer(self._socket)
        self._is_writing = False


def answer_or_raise(came: ManagerMessage | StepwellError) -> ManagerMessage:
    """What came, or why nothing did, raised."""
    if isinstance(came, StepwellError):
        raise came
    return came


def _copy_of(error: StepwellError) -> StepwellError:
    """The same, for one of many who are told: each has a traceback of its own."""
    copy = revive(error.kind, error.message, error.details)
    copy.__cause__ = error
    return copy
