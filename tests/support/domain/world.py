"""A world to try commands in: it applies them, and checks every invariant after each.

`image` is the whole of a state as plain values. Two states with equal images cannot be told apart by any
command, so that "changed nothing" is a comparison and not a matter of opinion.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from typing import TypeVar, cast

import pytest
from msgspec.structs import astuple

from stepwell import limits
from stepwell.domain import invariants, machine
from stepwell.domain.changesets.commands import EndChangeset, RecordChange, StartChangeset
from stepwell.domain.changesets.model import Changeset
from stepwell.domain.commands import Command, Write
from stepwell.domain.plans.commands import (
    AdvancePlan,
    CompletePhase,
    CreateAction,
    DeclareSubplans,
    FailPhase,
    StartPhase,
    SubplanSpec,
    UseAction,
)
from stepwell.domain.plans.model import Argument, MergeStrategy, Phase, Plan, ProjectLink, SubplanMode
from stepwell.domain.replies import AnyReply, FragmentPlaced, Reply
from stepwell.domain.state import State
from stepwell.domain.tiers.commands import StoreFragment, StoreOptions
from stepwell.domain.tiers.lru import InnerLruList, LruList, LruNode
from stepwell.domain.tiers.model import FragmentRow, Tier, TierBudget
from stepwell.domain.tiers.tier_index import KEPT_TIERS, FragmentEntry
from stepwell.domain.verdict import Origin
from stepwell.errors import Refused, StepwellError, TransactionAborted
from stepwell.protocol.codec import decode_from_manager, encode_frame
from stepwell.protocol.framing import HEADER
from stepwell.protocol.messages import CommandResult, Response
from tests.support.measurement import untraced

M = TypeVar("M", bound=LruNode)
R = TypeVar("R", bound=Reply)

NOON_MS = 1_700_000_000_000
LINKS = (ProjectLink("p"),)


def origin(session_id: str = "alice", now_ms: int = NOON_MS, projects: Collection[str] | None = None) -> Origin:
    """Return the origin of a command, unrestricted unless projects are given."""
    return Origin(session_id, now_ms, None if projects is None else frozenset(projects))


def check(state: State) -> None:
    """Assert that all invariants hold. Their own tests measure them; here they would take half of the time."""
    with untraced():
        assert invariants.check(state) == []


def image(state: State) -> dict[str, object]:
    """Everything that can be seen of a state, and what a later command or undo would build upon."""
    table = state.fragments
    scopes: list[str | None] = [None, *table.projects_after("")]
    return {
        "revision": state.revision,
        "budget": state.budget,
        "bodies": {digest: astuple(count) for digest, count in state.bodies.counts.items()},
        "bytes": (state.bodies.bytes, state.bodies.arena_bytes, sorted(state.bodies._released)),
        "fragments": {key: _entry_image(entry) for key, entry in table.entries.items()},
        "clocks": (table.next_serial, table._tick),
        "undo": (len(table._removed), sorted(table._emptied)),
        "orders": {(scope, tier): _both_ways(state, tier, scope) for scope in scopes for tier in Tier},
        "usage": {(scope, tier): table.usage(tier, scope and (scope,)) for scope in scopes for tier in Tier},
        "kept": {scope: table.kept_usage(scope and (scope,)) for scope in scopes},
        "kept orders": {(scope, tier): _kept_both_ways(state, tier, scope) for scope in scopes for tier in KEPT_TIERS},
        "expiry": (table.expiry.times(), [*table.expiry.due(2**63)]),
        "created": {each: [e.row.key for e in table.created_after(each, 0)] for each in table.projects_after("")},
        "pages": [[*table.order] for table in (state.actions, state.plans, state.pools, state.receipts, state.tasks)],
        "actions": dict(state.actions.rows),
        "plans": dict(state.plans.rows),
        "leases": (
            {session: sorted(ids) for session, ids in state.plans.by_session.items()},
            list(state.plans.by_expiry),
        ),
        "trees": ({root: sorted(ids) for root, ids in state.plans.by_root.items()}, list(state.plans.by_end)),
        "decisions": dict(state.decisions.rows),
        "contexts": dict(state.contexts.rows),
        "changesets": dict(state.changesets.rows),
        "entries": {key: list(rows) for key, rows in state.entries.by_changeset.items()},
        "entries by plan": dict(state.entries.by_plan),
        "receipts": (dict(state.receipts.rows), dict(state.receipts.by_serial), state.receipts.bytes),
        "pools": (dict(state.pools.rows), {key: dict(names) for key, names in state.pools.by_session.items()}),
        "logs": (dict(state.logs.rows), [*state.logs.order], dict(state.logs.by_serial), [*state.logs.due]),
        "log entries": {serial: [*run] for serial, run in state.logs.entries.by_log.items()},
        "log sums": [(run.bytes_from(0), len(run)) for run in state.logs.entries.by_log.values()],
        "log count": len(state.logs.entries),
        "tickets": (
            dict(state.tickets.rows),
            {tree: sorted(ids) for tree, ids in state.tickets.by_tree.items()},
            {plan_id: sorted(ids) for plan_id, ids in state.tickets.by_plan.items()},
            {session: sorted(ids) for session, ids in state.tickets.by_session.items()},
            list(state.tickets.by_turn),
        ),
        "tasks": (dict(state.tasks.rows), state.tasks.next_serial),
        "workers": (dict(state.workers.rows), dict(state.workers.offered)),
    }


def _entry_image(entry: FragmentEntry) -> tuple[object, ...]:
    return (
        entry.row,
        entry.tick,
        entry.touched_at_ms,
        entry.last_accessed_ms,
        entry.access_count,
        entry.accesses_since_move,
    )


def _both_ways(state: State, tier: Tier, scope: str | None) -> tuple[list[object], list[object]]:
    """Return an order of use, read along both directions of its list."""
    table = state.fragments
    return _lists((table._tiers if scope is None else table._projects[scope].tiers)[tier].lru)


def _kept_both_ways(state: State, tier: Tier, scope: str | None) -> tuple[list[object], list[object]]:
    """The same of the fragments with `keep`."""
    table = state.fragments
    return _lists((table._kept if scope is None else table._projects[scope].kept)[tier].lru)


def _lists(lru: LruList[FragmentEntry] | InnerLruList[FragmentEntry]) -> tuple[list[object], list[object]]:
    return [entry.row.key for entry in lru], [entry.row.key for entry in backwards(lru)]


def backwards(lru: LruList[M] | InnerLruList[M]) -> Iterator[M]:
    """Iterate over a list from the most to the least recently used node."""
    before = "before" if isinstance(lru, LruList) else "inner_before"
    node = getattr(lru._sentinel, before)
    while node is not lru._sentinel:
        yield node
        node = getattr(node, before)


def arrives(reply: AnyReply, revision: int) -> bool:
    """Return True if a reply arrives at a client as it was sent."""
    sent = Response(1, (CommandResult(revision, reply),))
    frame = bytearray()
    encode_frame(sent, frame)
    return decode_from_manager(frame[HEADER.size :]) == sent


class World:
    """A state, a clock that stands until it is moved, and the commands that tests give most."""

    def __init__(self, budget: TierBudget | None = None) -> None:
        self.state = State(budget)
        self.now_ms = NOON_MS

    def origin(self, session: str = "alice", projects: Collection[str] | None = None) -> Origin:
        return origin(session, self.now_ms, projects)

    def do(self, command: Command[R], *, session: str = "alice", projects: Collection[str] | None = None) -> R:
        """Apply; the invariants hold afterwards, and a client can read the reply."""
        outcome = machine.apply(self.state, command, self.origin(session, projects))
        check(self.state)
        assert arrives(outcome.reply, outcome.revision)
        return cast("R", outcome.reply)

    def refuse(
        self,
        command: Command[Reply],
        kind: type[Refused],
        message: str,
        *,
        session: str = "alice",
        projects: Collection[str] | None = None,
    ) -> Refused:
        """Apply; it is refused as exactly that kind, in those words, and nothing has changed."""
        before = image(self.state)
        with pytest.raises(StepwellError) as caught:
            machine.apply(self.state, command, self.origin(session, projects))
        error = caught.value
        assert type(error) is kind, repr(error)
        assert isinstance(error, Refused)
        assert re.search(message, error.message), error.message
        assert image(self.state) == before
        check(self.state)
        return error

    def abort(self, commands: Sequence[Write[Reply]]) -> TransactionAborted:
        """A transaction whose last command is refused, and which leaves no trace."""
        before = image(self.state)
        with pytest.raises(TransactionAborted) as caught:
            machine.apply_all(self.state, commands, self.origin())
        assert image(self.state) == before
        check(self.state)
        return caught.value

    # Tiers.

    def store(
        self,
        fragment_id: str,
        tokens: int = 1,
        *,
        project: str = "p",
        tier: Tier = Tier.HOT,
        body: bytes = b"",
        options: StoreOptions | None = None,
    ) -> FragmentPlaced:
        body = body or fragment_id.encode()
        return self.do(StoreFragment(project, fragment_id, body, tokens, tier, options=options))

    def row(self, fragment_id: str, project: str = "p") -> FragmentRow:
        row = self.state.fragments.get((project, fragment_id))
        assert row is not None
        return row

    def order(self, tier: Tier, projects: Collection[str] | None = None) -> list[str]:
        """The ids in a tier, the least recently used first."""
        return [entry.row.fragment_id for entry in self.state.fragments.oldest(tier, projects)]

    def kept(self, tier: Tier = Tier.HOT) -> list[str]:
        """The ids of the fragments with `keep` whose bodies are there, the least recently used first."""
        return [entry.row.fragment_id for entry in self.state.fragments.oldest_kept(tier)]

    def tiers(self) -> tuple[list[str], list[str], list[str]]:
        return self.order(Tier.HOT), self.order(Tier.WARM), self.order(Tier.COLD)

    # Plans.

    def action(
        self,
        name: str = "act",
        *,
        arguments: tuple[Argument, ...] = (),
        reusable: bool = True,
        read_only: bool = False,
        invariants: tuple[str, ...] = (),
        actors: tuple[str, str] = ("planner", "coder"),
    ) -> None:
        self.do(
            CreateAction(
                name,
                "do {what}",
                "{what} is done",
                *actors,
                arguments=arguments,
                reusable=reusable,
                read_only=read_only,
                invariants=invariants,
            )
        )

    def use(self, plan_id: str = "plan", action: str = "act", *, project: str = "p") -> Plan:
        """A plan in strategize/queued; its action is made if it is not there."""
        if self.state.actions.get(f"local/{action}") is None:
            self.action(action)
        return self.do(UseAction(plan_id, action, (ProjectLink(project),))).plan

    def plan(self, plan_id: str = "plan") -> Plan:
        plan = self.state.plans.get(plan_id)
        assert plan is not None
        return plan

    def lease(self, plan_id: str = "plan") -> int:
        """The token of the plan's present lease."""
        lease = self.plan(plan_id).lease
        assert lease is not None
        return lease.token

    def start(self, plan_id: str = "plan", *, session: str = "alice", lease_ms: int = limits.LEASE_MS) -> int:
        """Start the phase that the plan is queued for, and return the lease."""
        self.do(StartPhase(plan_id, self.plan(plan_id).phase, lease_ms), session=session)
        return self.lease(plan_id)

    def complete(self, plan_id: str = "plan") -> Plan:
        return self.do(CompletePhase(plan_id, self.plan(plan_id).phase, self.lease(plan_id))).plan

    def fail(self, plan_id: str = "plan", error: str = "it broke") -> Plan:
        return self.do(FailPhase(plan_id, self.plan(plan_id).phase, self.lease(plan_id), error)).plan

    def execute(self, plan_id: str = "plan") -> int:
        """Take a queued plan through strategize into execute/processing."""
        self.start(plan_id)
        self.complete(plan_id)
        self.do(AdvancePlan(plan_id, Phase.EXECUTE))
        return self.start(plan_id)

    def finish(self, plan_id: str = "plan") -> None:
        """Take a queued plan to execute/complete."""
        self.execute(plan_id)
        self.complete(plan_id)

    def declare(
        self,
        *children: str,
        mode: SubplanMode = SubplanMode.PARALLEL,
        max_parallel: int = limits.MAX_PARALLEL,
        fail_fast: bool = False,
        needs: dict[str, tuple[str, ...]] | None = None,
        plan_id: str = "plan",
        retries: int = 0,
        merge: MergeStrategy = MergeStrategy.GIT_THREE_WAY,
        labels: dict[str, tuple[str, ...]] | None = None,
    ) -> Plan:
        """Children whose id is their alias."""
        specs = tuple(
            SubplanSpec(
                child, child, "act", depends_on=(needs or {}).get(child, ()), labels=(labels or {}).get(child, ())
            )
            for child in children
        )
        lease = self.lease(plan_id)
        return self.do(
            DeclareSubplans(
                plan_id, lease, specs, mode, max_parallel, fail_fast=fail_fast, merge=merge, retries=retries
            )
        ).plan

    # Changesets.

    def open(self, changeset_id: str = "cs", context_id: str = "ctx", plan_id: str = "plan") -> Changeset:
        return self.do(StartChangeset(plan_id, context_id, changeset_id, self.lease(plan_id))).changeset

    def record(
        self,
        path: str = "a.py",
        *,
        before: bytes | None = None,
        after: bytes | None = b"new",
        source_path: str | None = None,
        context_id: str = "ctx",
        changeset_id: str | None = None,
        plan_id: str = "plan",
    ) -> str:
        """Record, and say which changeset it went to."""
        command = RecordChange(
            plan_id,
            context_id,
            self.lease(plan_id),
            path,
            before=before,
            after=after,
            source_path=source_path,
            changeset_id=changeset_id,
        )
        return self.do(command).entry.changeset_id

    def change(
        self, path: str, before: bytes | None, after: bytes | None, *, plan_id: str = "plan", name: str = ""
    ) -> str:
        """A closed changeset with one change, under its path's name unless given another."""
        changeset_id = name or f"{plan_id}-{path.partition('.')[0]}"
        self.open(changeset_id, changeset_id, plan_id)
        self.record(path, before=before, after=after, context_id=changeset_id, plan_id=plan_id)
        self.do(EndChangeset(plan_id, changeset_id, self.lease(plan_id), changeset_id))
        return changeset_id

    def end(self, changeset_id: str = "cs", *, abort: bool = False, plan_id: str = "plan") -> Changeset:
        return self.do(EndChangeset(plan_id, "ctx", self.lease(plan_id), changeset_id, abort=abort)).changeset
