"""Batches and transactions: many calls in one frame, sent when a `with` block ends.

In a batch each command has an outcome of its own. A transaction takes effect at one revision or not at all. Inside the
block a service method returns a `Pending`. An exception in the block sends nothing.

`CommandBuffer` and `WriteBuffer` hold everything that does not wait. The blocking blocks are below; the asynchronous
ones are in `stepwell.aio.batch`.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Self, TypeVar

from stepwell import limits
from stepwell.client.api.changesets import BufferedChangesets, ChangesetCalls
from stepwell.client.api.logs import BufferedLog
from stepwell.client.api.plans import BufferedPlans
from stepwell.client.api.pools import BufferedPools
from stepwell.client.api.tiers import BufferedTiers
from stepwell.client.session.calls import Call, Pending
from stepwell.client.session.session import Session
from stepwell.domain.commands import Write
from stepwell.errors import InvalidArgument, OutcomeUnknown, StepwellError

R = TypeVar("R")


class CommandBuffer:
    """The calls of one block, and their `Pending` results. It belongs to the thread or task that runs the block.

    It guarantees that every `Pending` has an outcome after the block: a result, a refusal, or the reason why the call
    was not sent.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._calls: list[Call[object]] = []
        self._pending: list[Pending[object]] = []
        self._is_over = False
        self.tiers = BufferedTiers(session, self)
        self.plans = BufferedPlans(session, self)
        self.pools = BufferedPools(session, self)

    def execution(self, context: ChangesetCalls) -> BufferedChangesets:
        """Return an execution context whose calls join this block; it records into the same changesets as `context`."""
        return BufferedChangesets(self._session, self, context)

    def log(self, name: str, *, project: str | None = None) -> BufferedLog:
        """Return a log whose calls join this block."""
        return BufferedLog(self._session, self, self._session.project_or_default(project), name)

    def enlist(self, call: Call[R]) -> Pending[R]:
        """Add a call and return its `Pending`.

        It raises `InvalidArgument` after the end of the block, and if the block has too many commands for one frame.
        """
        if self._is_over:
            raise InvalidArgument("this was sent already: begin another one")
        if len(self._calls) >= limits.BATCH_COMMANDS_MAX:
            raise InvalidArgument(f"at most {limits.BATCH_COMMANDS_MAX} commands go in one: send them in parts")
        pending: Pending[R] = Pending()
        self._calls.append(call)
        self._pending.append(pending)
        return pending

    def __len__(self) -> int:
        return len(self._calls)

    def close_for_sending(self, failure: BaseException | None) -> bool:
        """End the block, and return True if there are calls to send.

        After an exception (`failure`) nothing is sent, and each `Pending` raises `InvalidArgument`.
        """
        self._is_over = True
        if failure is None and self._calls:
            return True
        self._fail_all(InvalidArgument("this was never sent: the `with` block ended in an exception"))
        return False

    @contextmanager
    def outcomes_set_on_exit(self) -> Generator[list[tuple[object, int]]]:
        """Yield a list for the outcomes, and give them to the `Pending` results at the end.

        If sending raises, all results get that error. An interruption leaves the outcome unknown.
        """
        outcomes: list[tuple[object, int]] = []
        try:
            yield outcomes
        except StepwellError as failure:
            self._fail_all(failure)
            raise
        except BaseException:
            self._fail_all(OutcomeUnknown("sending was interrupted: it may have taken effect"))
            raise
        for pending, (outcome, revision) in zip(self._pending, outcomes, strict=True):
            pending.set_outcome(outcome, revision)

    def _fail_all(self, failure: StepwellError) -> None:
        """Set an error as the outcome of all calls."""
        for pending in self._pending:
            pending.set_outcome(failure)


class WriteBuffer(CommandBuffer):
    """A buffer that refuses reads: the results of a transaction are one revision, which a read could not see yet."""

    def enlist(self, call: Call[R]) -> Pending[R]:
        if not isinstance(call.command, Write):
            raise InvalidArgument("a transaction has no reads: read before it, or after")
        return super().enlist(call)

    def require(self, fragment_id: str, *, revision: int, project: str | None = None) -> None:
        """Let the transaction happen only if a fragment is at a revision, 0 for "absent"."""
        self.tiers.require(fragment_id, revision=revision, project=project)


class BufferedCalls(CommandBuffer):
    """A `with` block that sends its calls at its end and waits for their outcomes."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self.close_for_sending(error):
            with self.outcomes_set_on_exit() as outcomes:
                outcomes.extend(self._send())

    def _send(self) -> Sequence[tuple[object, int]]:
        """Send all calls, and return the outcome and the revision of each."""
        raise NotImplementedError


class Batch(BufferedCalls):
    """Many commands in one frame with an outcome each; not atomic.

    `pending.result()` returns it or raises its refusal.
    """

    def _send(self) -> Sequence[tuple[object, int]]:
        return self._session.perform_each(self._calls)


class Transaction(WriteBuffer, BufferedCalls):
    """Writes that take effect together at one revision, or not at all: then the block raises `TransactionAborted`."""

    def _send(self) -> Sequence[tuple[object, int]]:
        return self._session.perform_together(self._calls)
