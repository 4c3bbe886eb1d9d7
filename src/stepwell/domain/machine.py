"""The state machine: every change of a state goes through one of the functions in this module.

    apply(state, command, origin)             one command: the general entry
    apply_all(state, commands, origin)        a transaction: all commands at one revision, or none
    apply_get_run, apply_store_run            the fast path: a run of simple reads or stores, in one step
    count_reads(state, reads, origin)         reads that clients made without a request
    note_packed_bytes(bodies, digest, size)   a measured fact about a body, which is no command of a client
    track_reads(state), drain_reads(state, n) the list of entries that were read, for the journal

A command is handled in two steps. `decide` reads the state and returns a `Verdict`, or raises a refusal; it changes
nothing. `evolve` makes the changes that the verdict lists, and cannot fail. Nothing happens between the two steps,
because the state has one owner, which applies one command at a time. Two guarantees follow:

- A refused command has changed nothing, because refusals are raised while deciding.
- A transaction that fails half-way is undone by its own changes, applied backwards: the rows, all indexes and even
  the order of eviction are what they were before.

A new `State` is filled by `State.restore` before it is used. Recency and access counts change with each read, but they
are no rows: no revision counts them.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

from msgspec import Struct

from stepwell import limits
from stepwell.domain.applies import rules as apply_rules
from stepwell.domain.applies.turns import end_tickets
from stepwell.domain.changesets import rules as changeset_rules
from stepwell.domain.commands import Command, Ephemeral, EphemeralInternal, Write
from stepwell.domain.logs import rules as log_rules
from stepwell.domain.plans import actions, decisions, merge, retention, subplans
from stepwell.domain.plans import apply as plan_apply
from stepwell.domain.plans import rules as plan_rules
from stepwell.domain.pools import rules as pool_rules
from stepwell.domain.receipts import rules as receipt_rules
from stepwell.domain.replies import AnyReply, FragmentFound, Reply
from stepwell.domain.state import State
from stepwell.domain.tasks import rules as task_rules
from stepwell.domain.tiers import fast_path
from stepwell.domain.tiers import rules as tier_rules
from stepwell.domain.tiers.body_refs import BodyTable
from stepwell.domain.tiers.commands import GetFragment
from stepwell.domain.tiers.fast_path import StoreRun
from stepwell.domain.tiers.model import HOT
from stepwell.domain.tiers.tier_index import FragmentEntry
from stepwell.domain.verdict import DECIDERS, AnyChange, Origin, Verdict
from stepwell.errors import ManagerFault, Refused, ResourceExhausted, StepTooLarge, TransactionAborted

RULES = (
    actions,
    apply_rules,
    plan_apply,
    changeset_rules,
    decisions,
    log_rules,
    merge,
    plan_rules,
    pool_rules,
    receipt_rules,
    retention,
    subplans,
    task_rules,
    tier_rules,
)
"""The modules that contain deciders. Importing a module registers its deciders in `DECIDERS`."""


_EPHEMERAL = (Ephemeral, EphemeralInternal)


class Outcome(Struct, frozen=True, gc=False):
    """The effect of one command that was applied.

    `revision` is the state's revision after the command. `changes` are the rows that changed, in the order in which
    they changed. `bodies` are the bytes that arrived inside the command, by digest: the memory layer stores them.
    """

    reply: AnyReply
    revision: int
    changes: tuple[AnyChange, ...] = ()
    bodies: dict[bytes, bytes] = {}


def decide(state: State, command: Command[Reply], origin: Origin) -> Verdict:
    """Return what the command would do, without changing the state.

    Raises the refusal (a `Refused`) if the command is not allowed or finds no memory, and `ManagerFault` if its decider
    has a defect. The latter is reported like a refusal, because the state is still intact: the defect costs one
    request only.
    """
    try:
        verdict = DECIDERS[type(command)](state, command, origin)
        return end_tickets(state, command, verdict, origin) if state.tickets.rows else verdict
    except Refused:
        raise
    except MemoryError as error:
        raise ResourceExhausted(
            "the manager has no memory left for this request, and nothing changed: free memory, or raise the limit of "
            "the manager's process (`ulimit -v`) or of its control group"
        ) from error
    except Exception as error:
        raise ManagerFault(f"{type(command).__name__} met a defect ({error!r}); nothing changed") from error


def evolve(state: State, verdict: Verdict, now_ms: int) -> None:
    """Make the changes of a verdict. An exception in here is a defect that leaves the state unusable."""
    if verdict.accessed:
        # Before the changes: an access that lifts a fragment is an access in the tier that the fragment leaves.
        read = state.fragments.find(*verdict.accessed)
        assert read is not None
        state.fragments.touch(read, now_ms)
    for change in verdict.changes:
        state.make(change)


def apply(state: State, command: Command[Reply], origin: Origin) -> Outcome:
    """Decide and evolve one command, or raise its refusal.

    The revision grows by one for each `Write`, even if it changed no row, and for each other command that changed a
    row which survives the manager. Commands on tasks and workers never have a revision.
    """
    verdict = decide(state, command, origin)
    evolve(state, verdict, origin.now_ms)
    if verdict.changes or isinstance(command, Write):
        state.revision += not isinstance(command, _EPHEMERAL)
        state.forget_undo()
    return Outcome(verdict.reply, state.revision, verdict.changes, verdict.bodies)


def apply_all(state: State, commands: Sequence[Write[Reply]], origin: Origin) -> list[Outcome]:
    """Apply all commands at one revision, or none of them.

    Each command is decided on the state that the commands before it left. Raises `TransactionAborted` with the index of
    the first command that was refused, after the changes of the earlier ones were undone.
    """
    verdicts: list[Verdict] = []
    changed = 0
    try:
        for command in commands:
            verdict = decide(state, command, origin)
            changed += len(verdict.changes)
            if changed > limits.TRANSACTION_CHANGES_MAX:
                raise StepTooLarge(f"a transaction changes at most {limits.TRANSACTION_CHANGES_MAX} rows: split it")
            evolve(state, verdict, origin.now_ms)
            verdicts.append(verdict)
    except ManagerFault:
        _undo(state, verdicts)
        raise
    except Refused as error:
        _undo(state, verdicts)
        raise TransactionAborted(
            f"command {len(verdicts)} was refused, so none of the transaction happened: {error.message}",
            index=len(verdicts),
            cause=error.kind,
        ) from error
    state.revision += 1
    state.forget_undo()
    return [Outcome(each.reply, state.revision, each.changes, each.bodies) for each in verdicts]


def apply_get_run(state: State, commands: Sequence[object], origin: Origin) -> list[FragmentFound]:
    """Apply the reads of hot fragments at the beginning of `commands`, and return their replies.

    The result is the same as that of `apply` for each of them, and the revision stays as it is. The run ends before the
    first command that is not simple (see `fast_path`); the caller applies the rest one by one. A fragment with metadata
    or a long source ends it too: the results that are left are so small that those of a whole batch fit into one
    response, so that their sizes need not be added up.
    """
    # Deciding and evolving share one loop here. They do not disturb each other, because a touch changes nothing that a
    # condition reads, and a second pass over the run would cost 5 %.
    found: list[FragmentFound] = []
    table, now_ms, projects = state.fragments, origin.now_ms, origin.projects
    touch, project, present = table.touch, "", table.by_id("")
    for command in commands:
        if not isinstance(command, GetFragment) or (projects is not None and command.project not in projects):
            break
        if command.project != project:
            project, present = command.project, table.by_id(command.project)
        entry = present.get(command.fragment_id)
        if entry is None:
            break
        row = entry.row
        if (
            row.tier is not HOT
            or row.metadata
            or row.expires_at_ms is not None
            or len(row.source) > limits.SIMPLE_SOURCE_CHARS_MAX
        ):
            break
        touch(entry, now_ms)
        found.append(FragmentFound(row, now_ms, entry.access_count))
    return found


def apply_store_run(state: State, commands: Sequence[object], origin: Origin, room_bytes: int) -> StoreRun:
    """Apply the stores at the beginning of `commands` that `fast_path.decide_stores` accepts, and return them.

    Their bodies have at most `room_bytes` together, so that the caller can place all of them in shared memory without
    making room first.
    """
    try:
        run = fast_path.decide_stores(state, commands, origin, room_bytes)
    except MemoryError:  # nothing has changed yet: the general path decides, or refuses for want of memory
        return StoreRun()
    if rows := run.rows:
        state.revision = rows[-1].revision
        state.fragments.add(rows, run.demotions)
        state.bodies.add(rows if len(run.bodies) == len(rows) else [row for row in rows if row.digest in run.bodies])
        if run.demotions:
            for before, after in chain.from_iterable(run.demotions.values()):
                state.bodies.move(before.digest, before.tier, after.tier)
        if run.released:
            state.bodies.drop(run.released)
    return run


def count_reads(state: State, reads: Sequence[tuple[str, str, int]], origin: Origin) -> list[FragmentEntry]:
    """Count reads of hot fragments that clients made in shared memory: project, id and number of each.

    A client reports them after the fact. So they change recency and counts, and never a row. A fragment that is gone,
    or outside of the session's scope, is passed over. Return the entries of the others.
    """
    if (projects := origin.projects) is not None:
        reads = [read for read in reads if read[0] in projects]
    return state.fragments.count_reads(reads, origin.now_ms)


def note_packed_bytes(bodies: BodyTable, digest: bytes, packed_bytes: int) -> None:
    """Record the size that a body has when it is compressed. It can only lower the need for shared memory.

    The compressor finds the size out after the body was stored, at a time that no client chose. It is a property of the
    bytes and not a change: no revision counts it, no watcher hears of it and no transaction undoes it. That is why this
    is an entry of its own and not a command, whose verdict would hold no row.
    """
    bodies.note_packed(digest, packed_bytes)


def track_reads(state: State) -> None:
    """Remember from now on which fragments are read, for `drain_reads`. Only a durable manager needs that."""
    state.fragments.start_tracking_reads()


def drain_reads(state: State, limit: int) -> list[FragmentEntry]:
    """Return up to `limit` entries that were read since they were last returned, so that the store learns their use."""
    return state.fragments.drain_read_entries(limit)


def _undo(state: State, verdicts: Sequence[Verdict]) -> None:
    """Undo the changes of verdicts that were evolved, the latest first."""
    for verdict in reversed(verdicts):
        for change in reversed(verdict.changes):
            state.undo(change)
    state.forget_undo()
