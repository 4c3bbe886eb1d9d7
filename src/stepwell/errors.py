"""Every error that stepwell raises. The name says whose fault it is; `retry`, whether trying again can help.

    StepwellError
    ├── Refused                  understood and refused: nothing changed
    │   ├── InvalidArgument      an argument is outside its bounds (also a ValueError)
    │   │   └── EscapesRoot      a path that leads out of its root, or to what is not part of a tree
    │   ├── OutOfScope           names a project that the session may not touch
    │   ├── NotFound             nothing has that name (also a LookupError)
    │   ├── AlreadyExists        something already has that name
    │   ├── Conflict             somebody changed it first: read again, then decide
    │   │   ├── BrokenChain      changes of one path that do not follow from each other; `details["paths"]`
    │   │   └── TreeConflict     files are not what a change expects; `details["paths"]` has each
    │   ├── TierFull             there is no room left: delete, or raise the budget
    │   ├── StepTooLarge         would move more than one step may: do it in parts
    │   ├── Busy                 overloaded now: try again later
    │   ├── TransactionAborted   one command of a transaction was refused, so none happened
    │   └── PlanError            the plan's state does not allow it
    │       ├── PlanNotReady     not from this phase and state
    │       ├── ActionUnavailable  archived, or already spent
    │       ├── LeaseLost        somebody else may be working on it now
    │       ├── NotProven        an entry has no proof that it was applied, or rolled back
    │       ├── NotValidated     a required validation has not passed
    │       ├── MergeConflicts   children changed the same lines; `details["paths"]` are to be resolved
    │       ├── NoActiveChangeset  start one first
    │       └── ChangesetClosed  a closed changeset is immutable
    ├── PartlyRefused            some of many were refused; `.outcomes` has each
    ├── RuntimeFault             something broke, through no fault of the request
    │   ├── StartFailed          the manager did not come up
    │   ├── RuntimeLost          there is no manager at that address
    │   ├── StoreFailed          the data directory could not be written: the manager stopped
    │   ├── StoreDamaged         what is in the data directory is not what was written there
    │   ├── OutcomeUnknown       the answer was lost: it may or may not have happened
    │   │   └── SessionExpired   so it was, and the manager has forgotten the session: its leases are over
    │   ├── EventsMissed         a watcher was too slow; `details["resume"]` is where it goes on
    │   ├── TaskFailed           a strategy did not come to an end that is a result
    │   │   ├── DeadlineExceeded   it took longer than it may, and was stopped
    │   │   ├── MemoryExceeded   it wanted more memory than it may have
    │   │   ├── TaskQuarantined  workers died of it, again and again; `details["evidence"]` has what they left
    │   │   └── CircuitOpen      it has failed too often in a row: try again in `details["retry_s"]` seconds
    │   ├── BodyGone             a body of a view was deleted meanwhile (also a LookupError)
    │   ├── ProtocolError        the other side does not speak our protocol
    │   ├── WorkerDied           the process that ran a function ended with it
    │   ├── TreeFailed           a tree could not be read or written: it is as it was
    │   ├── ToolMissing          a program that is needed is not installed
    │   └── ManagerFault         a defect inside the manager; nothing changed
    └── NotOwner                 state was used outside the process and thread that own it

Each travels over the wire as itself (`kind`, `message`, `details`) and is raised as itself on the client.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

Detail = str | int | bool | list[str] | None


class StepwellError(Exception):
    """The root. `message` is a sentence that says what to do; `details` are the facts in it, by name."""

    retry: ClassVar[bool] = False
    kinds: ClassVar[dict[str, type[StepwellError]]] = {}

    def __init__(self, message: str, **details: Detail) -> None:
        super().__init__(message)
        self.message = message
        self.details = details

    def __init_subclass__(cls) -> None:
        StepwellError.kinds[cls.__name__] = cls

    def __reduce__(self) -> tuple[object, ...]:
        return revive, (self.kind, self.message, self.details)

    @property
    def kind(self) -> str:
        """The name under which this error travels."""
        return type(self).__name__


def revive(kind: str, message: str, details: dict[str, Detail]) -> StepwellError:
    """The error that a peer raised. A kind that we do not know yet is still a `StepwellError`."""
    return StepwellError.kinds.get(kind, StepwellError)(message, **details)


class Refused(StepwellError):
    """The request was understood and refused. Nothing changed."""


class InvalidArgument(Refused, ValueError):
    """An argument is outside its bounds; the message says which bounds."""


class EscapesRoot(InvalidArgument):
    """A path leads out of its root, through a symbolic link, or to what is not part of a tree. Nothing was touched."""


class OutOfScope(Refused):
    """The request names a project that its session was not opened for."""


class NotFound(Refused, LookupError):
    """Nothing has that name."""


class AlreadyExists(Refused):
    """Something already has that name; it was left as it is."""


class Conflict(Refused):
    """What the caller expected to find has changed since. Read again, then decide."""

    retry = True


class TreeConflict(Conflict):
    """Files are not what a change expects. `details` has `paths` and, in the same order, `expected` and `found`."""

    retry = False  # they do not become so by themselves


class BrokenChain(Conflict):
    """A change found something else at its path than the change before it left there. `details["paths"]` says where."""

    retry = False


class TierFull(Refused):
    """There is no room left, not even in cold."""


class StepTooLarge(Refused):
    """One step would have to move more fragments than one step may."""


class Busy(Refused):
    """A named limit is reached. Nothing happened; try again later."""

    retry = True


class TransactionAborted(Refused):
    """The command at `details["index"]` was refused, so that none of the transaction happened."""


class PlanError(Refused):
    """The plan's state does not allow it."""


class PlanNotReady(PlanError):
    """The event is not legal in the plan's phase and state."""


class ActionUnavailable(PlanError):
    """The action is archived, or was not reusable and has been used."""


class LeaseLost(PlanError):
    """The lease is not, or no longer, the plan's current one. Stop working on it."""


class NotProven(PlanError):
    """Not every entry of the plan is proven to be applied, or to be rolled back."""


class NotValidated(PlanError):
    """A required validation of the plan has no passing result: `details["validations"]` says which."""


class MergeConflicts(PlanError):
    """Children changed the same lines of a file: resolve the conflicts at `details["paths"]` first."""


class NoActiveChangeset(PlanError):
    """The execution context has no open changeset. Call `start_changeset()` first."""


class ChangesetClosed(PlanError):
    """The changeset is closed, or belongs to an earlier attempt."""


class PartlyRefused(StepwellError):
    """Some of many were refused. `.outcomes` has, in order, each result or its error."""

    def __init__(self, message: str, outcomes: Sequence[object] = (), **details: Detail) -> None:
        super().__init__(message, **details)
        self.outcomes = [*outcomes]

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.message, self.outcomes), {"details": self.details}


class RuntimeFault(StepwellError):
    """Something broke, through no fault of the request."""


class StartFailed(RuntimeFault):
    """The manager did not come up."""


class RuntimeLost(RuntimeFault):
    """There is no manager at that address, or it ended."""


class OutcomeUnknown(RuntimeFault):
    """The connection broke before the answer came: the request may or may not have taken effect."""


class SessionExpired(OutcomeUnknown):
    """The manager has forgotten the session: whether its last requests took effect cannot be told any more."""


class EventsMissed(RuntimeFault):
    """Events were forgotten before the watcher came to them. It goes on behind the revision `details["resume"]`."""


class StoreFailed(RuntimeFault):
    """The data directory could not be written. Nothing that was not written has been acknowledged."""


class StoreDamaged(RuntimeFault):
    """The data directory holds something that stepwell did not write. It was left as it is."""


class TaskFailed(RuntimeFault):
    """A strategy raised, or could not be run; the message says what it said."""


class DeadlineExceeded(TaskFailed):
    """A task took longer than its deadline, and its worker was stopped. It is not tried again."""


class MemoryExceeded(TaskFailed):
    """A strategy wanted more memory than its worker may have."""


class TaskQuarantined(TaskFailed):
    """Several workers died while they had the task. `details["evidence"]` says of each what it has left."""


class CircuitOpen(TaskFailed):
    """A strategy has failed several times in a row, and was not asked; after `details["retry_s"]` seconds it is."""

    retry = True


class BodyGone(RuntimeFault, LookupError):
    """A body that a view names was deleted since, and its memory is gone."""


class ProtocolError(RuntimeFault):
    """The other side sent something that is not our protocol, or not our version of it."""


class WorkerDied(RuntimeFault):
    """The worker process ended while it ran the function: how far that came is not known, and it is not run again."""


class TreeFailed(RuntimeFault):
    """The file system refused a step. The tree is as it was, or the message says what is left to be done."""


class ToolMissing(RuntimeFault):
    """A program that is needed is not installed, or does not run."""


class ManagerFault(RuntimeFault):
    """A defect inside the manager. The request changed nothing."""


class NotOwner(StepwellError):
    """State was used outside the process and thread that own it.

    The manager's state has one owner. Everybody else sends requests: `stepwell.connect(address)`.
    """
