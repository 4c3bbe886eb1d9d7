"""Every error that stepwell raises. The name says whose fault it is; `retry` says whether trying again can help.

    StepwellError
    ├── Refused                  understood and refused: nothing changed
    │   ├── InvalidArgument      an argument is outside its bounds (also a ValueError)
    │   │   └── EscapesRoot      a path leads out of its root, or to something that is not part of a tree
    │   ├── OutOfScope           names a project that the session may not touch
    │   ├── NotFound             nothing has that name (also a LookupError)
    │   ├── AlreadyExists        something already has that name
    │   ├── Conflict             another client changed it first: read again, then decide
    │   │   ├── BrokenChain      changes of one path that do not follow from each other; `details["paths"]`
    │   │   └── TreeConflict     files are not what a change expects; `details["paths"]` has each
    │   ├── TierFull             there is no room left: delete, or raise the budget
    │   ├── ResourceExhausted    the machine gives no more memory or descriptors: raise the limit that is named
    │   ├── StepTooLarge         would move more than one step may: do it in parts
    │   ├── Busy                 overloaded now: try again later
    │   │   ├── PoolEmpty        a pool has too few tokens; `details` has when to try again
    │   │   ├── TreeInUse        a tree is being captured; `details` has its process, plan and tool
    │   │   └── TreeQueued       other plans wait for the tree; `details` has the place in their queue
    │   ├── TransactionAborted   one command of a transaction was refused, so none happened
    │   └── PlanError            the plan's state does not allow it
    │       ├── PlanNotReady     not from this phase and state
    │       ├── ActionUnavailable  archived, or already spent
    │       ├── LeaseLost        another session may be working on it now
    │       ├── NotProven        an entry has no proof that it was applied, or rolled back
    │       ├── NotValidated     a required validation has not passed
    │       ├── ValidationFailed  an apply was undone by a validation; `.command`, `.exit_code` and `.output`
    │       ├── AlreadyRolledBack  applied once, and taken back: it is not applied again
    │       ├── MergeConflicts   children changed the same lines; `details["paths"]` are to be resolved
    │       ├── NoActiveChangeset  start one first
    │       └── ChangesetClosed  a closed changeset is immutable
    ├── PartlyRefused            some of many were refused; `.outcomes` has each
    ├── RuntimeFault             something broke, through no fault of the request
    │   ├── StartFailed          the manager did not come up
    │   ├── RuntimeLost          there is no manager at that address
    │   │   └── HistoryLost      the manager has lost writes that this client has seen
    │   ├── StoreFailed          the data directory could not be written: the manager stopped
    │   ├── StoreDamaged         the data directory does not hold what was written there
    │   ├── OutcomeUnknown       the answer was lost: it may or may not have happened
    │   │   └── SessionExpired   the same, and the manager has forgotten the session: its leases are over
    │   ├── EventsMissed         a watcher was too slow; `details["resume"]` is where it goes on
    │   │   └── EntriesMissed    the same of a log: entries were removed before they were read
    │   ├── TaskFailed           a strategy did not end with a result
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

Each error travels over the wire as itself (`kind`, `message`, `details`) and is raised as itself on the client.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

Detail = str | int | bool | list[str] | None


class StepwellError(Exception):
    """The root of all errors.

    `message` is a sentence that says what to do. `details` are the facts in it, by name, so that a program need not
    parse the message. `retry` is True if the same call can succeed later without a change.
    """

    retry: ClassVar[bool] = False
    kinds: ClassVar[dict[str, type[StepwellError]]] = {}

    def __init__(self, message: str, **details: Detail) -> None:
        super().__init__(message)
        self.message = message
        self.details = details

    def __init_subclass__(cls) -> None:
        """Register the class under its name."""
        StepwellError.kinds[cls.__name__] = cls

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle the error by its kind, so that it survives a process boundary with its details."""
        return revive, (self.kind, self.message, self.details)

    @property
    def kind(self) -> str:
        """The name under which this error travels."""
        return type(self).__name__


def revive(kind: str, message: str, details: dict[str, Detail]) -> StepwellError:
    """Return the error that a peer raised. A kind that this version does not know is a plain `StepwellError`."""
    return StepwellError.kinds.get(kind, StepwellError)(message, **details)


class Refused(StepwellError):
    """The manager or the client understood the request and refused it. Nothing changed.

    The cause is the request or the present state, not a failure. The caller changes the request, or waits for another
    state.
    """


class InvalidArgument(Refused, ValueError):
    """An argument is outside its bounds, or of the wrong type. The message names the bounds.

    It is the caller's mistake: change the argument. Most are raised in the client, before anything is sent.
    """


class EscapesRoot(InvalidArgument):
    """A path leads out of its root, through a symbolic link, or to something that is not part of a tree.

    Nothing was touched. It is a mistake, or an attack, of the author of the path: change the path.
    """


class OutOfScope(Refused):
    """The request names a project that its session was not opened for.

    It is the caller's mistake: open a client with `projects=` that includes the project.
    """


class NotFound(Refused, LookupError):
    """Nothing has that name: it never existed, was deleted, or has expired.

    The caller checks the name, or treats the thing as gone. Trying again does not help.
    """


class AlreadyExists(Refused):
    """Something already has that name; it was left as it is.

    The caller uses the existing one, or chooses another name.
    """


class Conflict(Refused):
    """The state has changed since the caller read it, so the expected revision or value does not match.

    No caller made a mistake: another client was faster. Read again, decide again, and then try again.
    """

    retry = True


class TreeConflict(Conflict):
    """Files are not what a change expects. `details` has `paths` and, in the same order, `expected` and `found`.

    Another program has changed the tree since the change was recorded. No file was touched. Trying again does not help
    until the files are restored, or the change is recorded anew. `details["diff"]` is a short diff from the expected
    texts to those that were found, where it is known; as a text, the error ends with it.
    """

    retry = False  # the files do not return to the expected state by themselves

    def __str__(self) -> str:
        diff = self.details.get("diff")
        return f"{self.message}\n{diff}" if diff else self.message


class BrokenChain(Conflict):
    """A change of a path does not begin with what the change before it left there. `details["paths"]` names the paths.

    The caller recorded changes out of order, or left one out. Record the missing change, or start again from the files.
    """

    retry = False


class TierFull(Refused):
    """There is no room left, not even in the cold tier.

    The caller deletes fragments, or an operator raises the budget.
    """


class ResourceExhausted(Refused):
    """The operating system gives the manager no more memory, descriptors or disk. The message names the limit.

    It is the fault of the machine or of the manager's process limits, not of the budget and not of the request. An
    operator raises the limit, or frees the resource.
    """


class StepTooLarge(Refused):
    """One step would have to move more fragments than one step may, because the loop would stop for too long.

    The caller divides the request, for instance into several smaller changes of the budget.
    """


class Busy(Refused):
    """A named limit of the manager is reached now. Nothing happened.

    It is a matter of load: try again later, after a pause.
    """

    retry = True


class TreeInUse(Busy):
    """Another call is capturing the tree, or one that contains it or lies in it.

    Each would record the changes of the other as its own. `details` has the `pid`, `plan_id`, `tool` and `root` of the
    capture. The caller tries again when it has ended, or works in a copy: `context.workspace(root)`.
    """


class PoolEmpty(Busy):
    """A token pool has fewer free tokens than were asked for. `details` has `free` and `retry_after_ms`.

    The caller tries again after that time. If it is None, other leases have to be returned, or the pool be resized.
    """

    @property
    def retry_after_ms(self) -> int | None:
        """The milliseconds after which enough tokens are free if no other session leases them, or None."""
        return given if isinstance(given := self.details.get("retry_after_ms"), int) else None


class TreeQueued(Busy):
    """Other plans are before this one in the queue of the tree. `details` has the `tree`, its `plans` and the `place`.

    The caller joins the queue with `apply(wait=True)`, or tries again later.
    """


class TransactionAborted(Refused):
    """The command at `details["index"]` was refused, so none of the transaction happened.

    The message and the details have the reason. Change that command, and send the whole transaction again.
    """


class PlanError(Refused):
    """The state of a plan does not allow the request. The subclass says which rule it is.

    The caller reads the plan again. Trying the same again does not help until the plan changes.
    """


class PlanNotReady(PlanError):
    """The transition is not legal in the plan's phase and state.

    The caller reads the plan, and takes the steps that come before.
    """


class ActionUnavailable(PlanError):
    """The action is archived, or it is not reusable and has been used.

    The caller chooses another action, or creates one.
    """


class LeaseLost(PlanError):
    """The lease is not, or no longer, the plan's current one: it expired, or another session has taken the plan over.

    The caller stops working on the plan at once, because another session may be working on it.
    """


class NotProven(PlanError):
    """Not every entry of the plan is proven to be applied, or to be rolled back.

    The caller applies or rolls back the tree first; that records the proofs.
    """


class NotValidated(PlanError):
    """A required validation of the plan has no passing result. `details["validations"]` names them.

    The caller runs the validations, and repairs what fails.
    """


class ValidationFailed(PlanError):
    """A required validation failed in the changed tree, so the tree was restored and the plan is constrained.

    The properties describe the first validation that failed, and `details["validations"]` names all. The caller reverts
    the plan and repairs what the output shows, or cancels the plan. Applying it again raises the same error.
    """

    @property
    def command(self) -> tuple[str, ...]:
        """The program and its arguments; empty if the session that ended the apply gave no result."""
        return tuple(given) if isinstance(given := self.details.get("command"), list) else ()

    @property
    def exit_code(self) -> int | None:
        """The exit code; None if the command was stopped at its time limit, was killed, or could not be started."""
        return given if isinstance(given := self.details.get("exit_code"), int) else None

    @property
    def output(self) -> str:
        """The end of the output, as far as it is stored."""
        return given if isinstance(given := self.details.get("output"), str) else ""


class AlreadyRolledBack(PlanError):
    """The plan was applied and rolled back. A plan is applied once, so nothing of it is in a tree, and stays so.

    The caller makes another plan of the same action, and records the changes there.
    """


class MergeConflicts(PlanError):
    """Children of the plan changed the same lines of a file.

    The caller resolves the conflicts at `details["paths"]` first, and then merges again.
    """


class NoActiveChangeset(PlanError):
    """The execution context has no open changeset.

    It is the caller's mistake: call `start_changeset()` first.
    """


class ChangesetClosed(PlanError):
    """The changeset is closed, or belongs to an earlier attempt. A closed changeset never changes.

    The caller starts another changeset.
    """


class PartlyRefused(StepwellError):
    """Some of many requests were refused. `.outcomes` has, in order, each result or its error.

    The others took effect. The caller handles each refused one by its own error.
    """

    def __init__(self, message: str, outcomes: Sequence[object] = (), **details: Detail) -> None:
        super().__init__(message, **details)
        self.outcomes = [*outcomes]

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.message, self.outcomes), {"details": self.details}


class RuntimeFault(StepwellError):
    """Something broke, through no fault of the request. The subclass says what, and whether the request took effect."""


class StartFailed(RuntimeFault):
    """The manager, or a worker, did not come up. The message has the reason, as far as the process could tell it.

    The operator removes the cause, such as a full disk or a wrong setting. Nothing is running.
    """


class RuntimeLost(RuntimeFault):
    """There is no manager at that address, or it has ended, or it has refused the connection.

    The request had no effect. The caller starts a runtime, or connects to another address.
    """


class HistoryLost(RuntimeLost):
    """The manager is at an earlier revision of its epoch than this client has seen: acknowledged writes are lost.

    Its data directory was damaged or replaced by an older one. The session of this client is over, because the same
    revision may now mean another state. `details` has `seen`, `found` and `epoch`. The operator runs `stepwell doctor`,
    or restores a backup. The caller connects anew, and reads the state.
    """


class OutcomeUnknown(RuntimeFault):
    """The connection broke before the answer came: the request may or may not have taken effect.

    The caller reads the state before it sends the request again.
    """


class SessionExpired(OutcomeUnknown):
    """The manager has forgotten the session, because it was disconnected for longer than the grace.

    Its leases are lost, and so is the outcome of its last requests. The caller opens a new client, and reads the state.
    """


class EventsMissed(RuntimeFault):
    """Events were dropped before the watcher read them. The watch goes on behind the revision `details["resume"]`.

    The watcher was too slow, or came too late. It reads the state anew, and then watches from that revision.
    """


class EntriesMissed(EventsMissed):
    """Entries of a log were removed before the watch of that log read them, but not by a pop, whose caller has them.

    The watch goes on behind the position `details["resume"]`.
    """


class StoreFailed(RuntimeFault):
    """The data directory could not be written, for instance because the disk is full. The manager stopped.

    Nothing that was not written has been acknowledged. The operator makes room, and starts the manager again.
    """


class StoreDamaged(RuntimeFault):
    """The data directory holds something that stepwell did not write. It was left as it is.

    The disk or another program has changed it. The operator runs `stepwell doctor`, or restores a backup.
    """


class TaskFailed(RuntimeFault):
    """A strategy raised an error, or could not be run. The message has the strategy's own message.

    It is the fault of the strategy. Trying again helps only if the strategy or its input changes.
    """


class DeadlineExceeded(TaskFailed):
    """A task took longer than its deadline, and its worker was stopped. It is not tried again.

    The caller gives it more time, or less to do.
    """


class MemoryExceeded(TaskFailed):
    """A strategy wanted more memory than its worker may have.

    The operator raises the limit, or the request is made smaller.
    """


class TaskQuarantined(TaskFailed):
    """Several workers died while they had the task, so it is not given to another one.

    `details["evidence"]` has what each of them left, for the author of the strategy. The caller gives up.
    """


class CircuitOpen(TaskFailed):
    """A strategy has failed several times in a row, so it was not asked.

    After `details["retry_s"]` seconds it is asked again. The caller goes on without it, or tries again then.
    """

    retry = True


class BodyGone(RuntimeFault, LookupError):
    """A body that a view or a receipt names was deleted since, and its memory is gone.

    The caller opens a new view, or goes on without that fragment.
    """


class ProtocolError(RuntimeFault):
    """The other side sent a message that is not our protocol, or of another version.

    Both sides have to be of the same version. The connection is closed; trying again does not help.
    """


class WorkerDied(RuntimeFault):
    """The worker process ended while it ran a function. It is not known how far the function came.

    The function is not run again by itself, because it may have had effects. The caller decides.
    """


class TreeFailed(RuntimeFault):
    """The file system refused a step of a change, for instance because the disk is full. Remove the cause, try again.

    The tree is as it was, or the message says what is left to be done.
    """


class ToolMissing(RuntimeFault):
    """A program that is needed, such as git, is not installed or does not run. The operator installs it."""


class ManagerFault(RuntimeFault):
    """A defect inside the manager. The request changed nothing.

    It is our mistake: report it, with the manager's log. Other requests are served as before.
    """


class NotOwner(StepwellError):
    """State was used outside the process and thread that own it, for instance after a fork, or by unpickling.

    It is the caller's mistake. The state has one owner; other processes send requests: `stepwell.connect(address)`.
    """
