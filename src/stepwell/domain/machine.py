"""The machine: `apply(state, command, origin)` is the only way in.

`decide` reads the state and gives changes or raises a refusal; `evolve` makes the changes. Nothing happens
between the two, because there is one caller and it does one thing at a time. A refused command has therefore
changed nothing, and a transaction that fails half-way is undone by its own changes, backwards.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct, field

from stepwell import limits
from stepwell.domain.changesets import rules as changeset_rules
from stepwell.domain.commands import Command, Ephemeral, EphemeralInternal, Write
from stepwell.domain.plans import actions, decisions, merge, retention, subplans
from stepwell.domain.plans import apply as plan_apply
from stepwell.domain.plans import rules as plan_rules
from stepwell.domain.receipts import rules as receipt_rules
from stepwell.domain.replies import AnyReply, Reply
from stepwell.domain.state import State
from stepwell.domain.tasks import rules as task_rules
from stepwell.domain.tiers import rules as tier_rules
from stepwell.domain.verdict import DECIDERS, AnyChange, Origin, Verdict
from stepwell.errors import ManagerFault, Refused, StepTooLarge, TransactionAborted

RULES = (
    actions,
    plan_apply,
    changeset_rules,
    decisions,
    merge,
    plan_rules,
    receipt_rules,
    retention,
    subplans,
    task_rules,
    tier_rules,
)
"""The modules whose functions decide; importing them registers those."""


class Outcome(Struct, frozen=True, gc=False):
    """What a command came to, and at which revision."""

    reply: AnyReply
    revision: int
    changes: tuple[AnyChange, ...] = ()
    bodies: dict[bytes, bytes] = field(default_factory=dict[bytes, bytes])


def decide(state: State, command: Command[Reply], origin: Origin) -> Verdict:
    """What the command would do, or a refusal. Changes nothing."""
    try:
        return DECIDERS[type(command)](state, command, origin)
    except Refused:
        raise
    except Exception as error:  # nothing has changed yet, so the defect costs this request only
        raise ManagerFault(f"{type(command).__name__} met a defect ({error!r}); nothing changed") from error


def evolve(state: State, verdict: Verdict, now_ms: int) -> None:
    """Do what was decided."""
    if verdict.accessed:
        state.fragments.touch(state.fragments.entries[verdict.accessed], now_ms)
    for change in verdict.changes:
        state.forwards(change)


def apply(state: State, command: Command[Reply], origin: Origin) -> Outcome:
    """Decide and evolve. Whatever writes what is kept gets a revision of its own."""
    verdict = decide(state, command, origin)
    evolve(state, verdict, origin.now_ms)
    if verdict.changes or isinstance(command, Write):
        state.revision += not isinstance(command, Ephemeral | EphemeralInternal)
        state.settle()
    return Outcome(verdict.reply, state.revision, verdict.changes, verdict.bodies)


def apply_all(state: State, commands: Sequence[Write[Reply]], origin: Origin) -> list[Outcome]:
    """All of them at one revision, or none."""
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
    state.settle()
    return [Outcome(each.reply, state.revision, each.changes, each.bodies) for each in verdicts]


def _undo(state: State, verdicts: Sequence[Verdict]) -> None:
    for verdict in reversed(verdicts):
        for change in reversed(verdict.changes):
            state.backwards(change)
    state.settle()
