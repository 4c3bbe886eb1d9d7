"""`AsyncConnection`: a socket that an event loop drives, with many requests in flight and nothing that blocks.

The manager answers the requests of a connection in their order. So each answer belongs to the oldest request that has
none. The answer of a cancelled task is received too, and dropped; otherwise later answers would go to the wrong tasks.

An error reaches the waiting tasks as the *result* of their future and is raised where they wait (`answer_or_raise`). An
exception that is set on a future whose task was cancelled at the same moment would be reported as never retrieved.
"""

from __future__ import annotations

import asyncio
import socket
from asyncio import AbstractEventLoop, Future
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from stepwell import limits
from stepwell.errors import OutcomeUnknown, ProtocolError, RuntimeLost, StepwellError, revive
from stepwell.protocol.codec import decode_from_manager, encode_frame
from stepwell.protocol.messages import ClientMessage, ManagerMessage, OutOfBand, Rejected
from stepwell.transport.frame_socket import FrameSocket, OnOutOfBand

AnswerFuture = Future[ManagerMessage | StepwellError]
"""The future of an answer, or of the error that came in its place."""


class _AwaitedAnswer(NamedTuple):
    """A request in flight: the future of its answer, and what is needed when the connection breaks."""

    answer: AnswerFuture
    ends_at: int  # the position behind the last byte of the request, counted like `AsyncConnection._sent`
    on_end: Callable[[], None] | None  # called when it is answered, or never will be


class AsyncConnection(FrameSocket):
    """One connection of an event loop, used from the loop's thread only. The channel or the watch that dialled owns it.

    `error` is None while the connection is usable. After that it is the reason, and all methods that send raise
    `RuntimeLost`, because their message was not sent.
    """

    def __init__(self, connected: socket.socket, on_out_of_band: OnOutOfBand, loop: AbstractEventLoop) -> None:
        super().__init__(connected)
        self.generation = 0
        self.seen_before = 0
        self.is_used = False
        self.error: StepwellError | None = None
        self._on_out_of_band = on_out_of_band
        self._loop = loop
        self._awaited: deque[_AwaitedAnswer] = deque()
        self._pushed: deque[ManagerMessage] | None = None  # None: pushed messages are a protocol error
        self._unsent = bytearray()
        self._sent = 0  # bytes of frames that the socket has accepted since the beginning
        self._is_reading = self._is_writing = False
        self._progress = asyncio.Event()  # bytes were sent, a message was pushed, or the connection has ended
        self._watch_reads()

    def accept_pushed(self) -> None:
        """Accept messages that answer no request, from now on; `receive_pushed` returns them."""
        self._pushed = deque()

    # Sending.

    def send(self, message: ClientMessage) -> None:
        """Send a message that has no answer."""
        self._require_open()
        encode_frame(message, self._unsent)
        self._flush()

    def send_with_next(self, message: ClientMessage) -> None:
        """Put a message that has no answer ahead of the next one that is sent."""
        self._require_open()
        encode_frame(message, self._unsent)

    def send_request(self, message: ClientMessage, on_end: Callable[[], None] | None = None) -> AnswerFuture:
        """Send a message and return the future of its answer. `on_end` is called when it is answered or never will be.

        A message that cannot be encoded raises before a byte is sent.
        """
        self._require_open()
        encode_frame(message, self._unsent)
        answer: AnswerFuture = self._loop.create_future()
        self._awaited.append(_AwaitedAnswer(answer, self._sent + len(self._unsent), on_end))
        self._flush()
        return answer

    async def exchange(self, message: ClientMessage) -> ManagerMessage:
        """Send a message and return its answer. It raises the same errors as a blocking connection."""
        return answer_or_raise(await self.send_request(message))

    async def wait_for_room(self) -> None:
        """Wait while too many bytes are unsent because the manager does not read."""
        while len(self._unsent) > limits.UNSENT_BYTES_MAX and self.error is None:
            await self._wait_for_progress()
        self._require_open()

    async def wait_until_sent(self) -> None:
        """Wait until all bytes are sent or the connection has ended."""
        while self._unsent and self.error is None:
            await self._wait_for_progress()

    async def send_body(self, body: bytes | memoryview) -> None:
        """Send all bytes of a body that the manager has granted. No other task may send meanwhile.

        The body is sent in parts, and other tasks run between them. If the manager rejects the client meanwhile, the
        manager's reason is raised, not the broken connection.
        """
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
                    await asyncio.sleep(0)  # a large body must not keep the loop from other tasks

    async def _wait_for_progress(self) -> None:
        """Wait until the socket accepts bytes or the connection has ended."""
        self._progress.clear()
        self._watch_writes()
        await self._progress.wait()

    def _flush(self) -> None:
        """Send as many bytes as the socket accepts; the loop goes on when it accepts more."""
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
        """Continue to send. The loop calls it."""
        self._flush()
        if not self._unsent:
            self._ignore_writes()
        self._progress.set()

    def _on_send_error(self, error: OSError) -> None:
        """End the connection after a failed send, with the manager's own reason if that has arrived.

        A manager that rejects a client sends the reason and closes. So what has arrived is read before the connection
        is failed.
        """
        while self.error is None and self._read():
            pass
        if self.error is None:
            self._fail(RuntimeLost(f"the connection to the manager is gone: {error.strerror}"))

    # Receiving.

    async def receive_pushed(self) -> ManagerMessage:
        """Return the next pushed message, or raise the error that has ended the connection."""
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
        """Receive what has arrived. The loop calls it."""
        self._read()

    def _read(self) -> bool:
        """Receive once and dispatch all complete frames. Return True if there may be more."""
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
        """Give a message to its receiver: out of band, the oldest request in flight, or the queue of pushed messages.

        A `Rejected` answers the oldest request and ends the connection. When the queue of pushed messages is full, the
        loop stops reading this socket, so that a slow watch makes the manager wait.
        """
        if isinstance(message, OutOfBand):
            self._on_out_of_band(self, message)
        elif self._awaited:
            self._answer(message)
            if isinstance(message, Rejected):
                raise OutcomeUnknown("the manager has ended the connection: the request may have taken effect")
        elif isinstance(message, Rejected) and self._pushed is None:
            raise message.refusal.error()
        elif self._pushed is not None:
            self._pushed.append(message)
            if len(self._pushed) >= limits.PUSHED_FRAMES_MAX:
                self._ignore_reads()
            self._progress.set()
        else:
            raise ProtocolError(f"the manager sent {type(message).__name__}, for which there was no request")

    def _answer(self, message: ManagerMessage | StepwellError) -> None:
        """Complete the oldest request in flight, with an answer or an error.

        The future of a cancelled task is done already; its `on_end` is called all the same, because it frees a slot.
        """
        expected = self._awaited.popleft()
        if not expected.answer.done():
            expected.answer.set_result(message)
        if expected.on_end is not None:
            expected.on_end()

    # Ending.

    def _require_open(self) -> None:
        """Raise `RuntimeLost` if the connection has ended: the message was not sent."""
        if self.error is not None:
            raise RuntimeLost(self.error.message) from self.error

    def _fail(self, error: StepwellError) -> None:
        """End the connection and complete all requests in flight with an error.

        A request that was not sent completely cannot have taken effect (`RuntimeLost`). The outcome of the others is
        unknown.
        """
        self.close()
        self.error = error
        while self._awaited:
            if self._awaited[0].ends_at > self._sent:
                lost = RuntimeLost("the connection to the manager is gone: not all of the request went")
                lost.__cause__ = error
                self._answer(lost)
            elif isinstance(error, RuntimeLost):
                self._answer(OutcomeUnknown("the connection broke before the answer came"))
            else:
                self._answer(_copy_of(error))
        self._progress.set()

    def close(self) -> None:
        """Close the socket and all descriptors that were not taken, and remove the socket from the loop."""
        if self._socket.fileno() >= 0:
            self._ignore_reads()
            self._ignore_writes()
        super().close()

    def terminate(self) -> None:
        """End a connection that is not used any more; tasks that still await an answer get `OutcomeUnknown`."""
        if self.error is None:
            self._fail(OutcomeUnknown("the connection was closed before the answer came"))

    def detach_in_forked_child(self) -> None:
        """Close the child's copy of the socket without touching the loop, which watches it on behalf of the parent."""
        self._is_reading = self._is_writing = False
        self.error = RuntimeLost("this client is another process's: connect anew")
        super().close()

    def _watch_reads(self) -> None:
        """Have the loop call `_on_readable`."""
        if not self._is_reading:
            self._is_reading = True
            self._loop.add_reader(self._socket, self._on_readable)

    def _ignore_reads(self) -> None:
        """Stop reading; a closed loop has forgotten the socket already."""
        if self._is_reading and not self._loop.is_closed():
            self._loop.remove_reader(self._socket)
        self._is_reading = False

    def _watch_writes(self) -> None:
        """Have the loop call `_on_writable`."""
        if not self._is_writing and self.error is None:
            self._is_writing = True
            self._loop.add_writer(self._socket, self._on_writable)

    def _ignore_writes(self) -> None:
        """Stop writing; otherwise the loop would call `_on_writable` without pause while there is nothing to send."""
        if self._is_writing and not self._loop.is_closed():
            self._loop.remove_writer(self._socket)
        self._is_writing = False


def answer_or_raise(received: ManagerMessage | StepwellError) -> ManagerMessage:
    """Return an answer, or raise the error that came in its place."""
    if isinstance(received, StepwellError):
        raise received
    return received


def _copy_of(error: StepwellError) -> StepwellError:
    """Return a copy of an error for one of several tasks, so that each has a traceback of its own."""
    copy = revive(error.kind, error.message, error.details)
    copy.__cause__ = error
    return copy
