"""Errors that end a connection, or the manager itself, as peers are told of them.

A manager that ends because of an error sends a farewell to every peer that can be told without waiting. It
acknowledges nothing. A peer that has sent a request and gets the farewell instead of an answer does not know whether
the request took effect: a commit that failed may have reached the disk. If another manager takes over the state, the
peer sends the request again and learns the outcome.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Generator
from contextlib import contextmanager

from stepwell import limits
from stepwell.errors import ManagerFault, OutcomeUnknown, ResourceExhausted, StepwellError
from stepwell.memory.writer.shortage import describe_shortage
from stepwell.protocol.codec import encode_frame
from stepwell.protocol.messages import ManagerEnded, Refusal


def defect_error(error: Exception, *, changed: bool) -> StepwellError:
    """Return the error for a peer whose message met a defect, or found no memory.

    `changed` says that the message may have taken effect: then the peer must not simply send it again.
    """
    text = f"your message met a defect ({error!r})"[: limits.ERROR_CHARS_MAX]
    if changed:
        return OutcomeUnknown(text)
    return ResourceExhausted(describe_shortage(error)) if isinstance(error, MemoryError) else ManagerFault(text)


def cause_of(error: BaseException) -> StepwellError:
    """Return the reason for the end of a manager, as its clients are told."""
    if isinstance(error, StepwellError):
        return error
    for each in (error, error.__cause__):
        if isinstance(each, MemoryError):
            return ResourceExhausted(describe_shortage(each))
    return ManagerFault(f"the manager met a defect ({error!r}): report it, with the manager's log")


@contextmanager
def farewell(send: Callable[[ManagerEnded], None]) -> Generator[None]:
    """Send the last message if the block ends with an error, and raise the error again."""
    try:
        yield
    except BaseException as error:
        send(ManagerEnded(Refusal.of(cause_of(error), 0)))
        raise


def reject_waiting(listener: socket.socket, last: ManagerEnded) -> None:
    """Send the last message to the peers that wait to be accepted, and hang up. Nothing here waits."""
    frame = bytearray()
    encode_frame(last, frame)
    for _ in range(limits.LISTEN_BACKLOG):
        try:
            waiting, _ = listener.accept()
        except OSError:  # no peer waits any more, or this process may open no more descriptors
            return
        with waiting:
            waiting.setblocking(False)  # noqa: FBT003
            try:
                waiting.send(frame)
            except OSError:  # the peer has gone already
                continue
