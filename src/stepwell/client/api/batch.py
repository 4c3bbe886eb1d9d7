"""Many commands in one frame: a batch, in which each has its own outcome, or a transaction, all or nothing."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Self, TypeVar

from stepwell import limits
from stepwell.client.api.changesets import BufferedChangesets, ChangesetCalls
from stepwell.client.api.plans import BufferedPlans
from stepwell.client.api.tiers import BufferedTiers
from stepwell.client.session.calls import Call, Pending
from stepwell.client.session.session import Session
from stepwell.domain.commands import Write
from stepwell.errors import InvalidArgument, OutcomeUnknown, StepwellError

R = TypeVar("R")


class CommandBuffer:
    """Takes calls inside a block, which are sent when it ends; an exception in the block sends nothing."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._calls: list[Call[object]] = []
        self._pending: list[Pending[object]] = []
        self._is_over = False
        self.tiers = BufferedTiers(session, self)
        self.plans = BufferedPlans(session, self)

    def execution(self, context: ChangesetCalls) -> BufferedChangesets:
        """An execution context, inside this bundle."""
        return BufferedChangesets(self._session, self, context)

    def enlist(self, call: Call[R]) -> Pending[R]:
        """Take a call; its result is there when the block has ended."""
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
        """The block has ended, well or not: whether there is anything to send."""
        self._is_over = True
        if failure is None and self._calls:
            return True
        self._fail_all(InvalidArgument("this was never sent: the `with` block ended in an exception"))
        return False

    @contextmanager
    def outcomes_set_on_exit(self) -> Generator[list[tuple[object, int]]]:
        """Around the sending: the outcomes go in the list, and from there to whoever asks for them."""
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
        for pending in self._pending:
            pending.set_outcome(failure)


class WriteBuffer(CommandBuffer):
    """Takes what a transaction can have."""

    def enlist(self, call: Call[R]) -> Pending[R]:
        if not isinstance(call.command, Write):
            raise InvalidArgument("a transaction has no reads: read before it, or after")
        return super().enlist(call)


class BufferedCalls(CommandBuffer):
    """A `with` block."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self.close_for_sending(error):
            with self.outcomes_set_on_exit() as outcomes:
                outcomes.extend(self._send())

    def _send(self) -> Sequence[tuple[object, int]]:
        raise NotImplementedError


class Batch(BufferedCalls):
    """Many commands, one frame, one outcome each; not atomic. `pending.result()` gives each, or raises its refusal."""

    def _send(self) -> Sequence[tuple[object, int]]:
        return self._session.perform_each(self._calls)


class Transaction(WriteBuffer, BufferedCalls):
    """Writes that take effect together at one revision, or not at all: then the block raises `TransactionAborted`."""

    def _send(self) -> Sequence[tuple[object, int]]:
        return self._session.perform_together(self._calls)
