"""The invariants of the state, each a function whose name is the claim. `check` returns the violations.

An invariant recomputes from the rows whatever the tables derive from them: indexes, sums, orders, counts of references.
That costs a scan of the state. The tests check all invariants after every command, `stepwell doctor` checks a data
directory, and a manager checks all of them when it starts from a store. Nothing on the path of a request does.

To add one, write a generator that yields the place of each violation, and decorate it with `@invariant`. The invariants
of logs and of token pools are in the modules of these subjects.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import pairwise
from typing import Final

from stepwell import limits
from stepwell.domain.bounded_types import canonical
from stepwell.domain.changesets.model import ChangesetState, derive_operation
from stepwell.domain.changesets.paths import check_mode
from stepwell.domain.invariant_registry import INVARIANTS as INVARIANTS  # noqa: PLC0414 - for all who check
from stepwell.domain.invariant_registry import check as check  # noqa: PLC0414
from stepwell.domain.invariant_registry import invariant
from stepwell.domain.logs import invariants as log_invariants
from stepwell.domain.plans.lifecycle import POSITIONS, TERMINAL
from stepwell.domain.plans.model import Phase, PlanState, Position
from stepwell.domain.plans.validations import not_passed
from stepwell.domain.pools import invariants as pool_invariants
from stepwell.domain.state import State
from stepwell.domain.tiers.body_refs import BodyTable
from stepwell.domain.tiers.model import Tier
from stepwell.domain.tiers.source_outline import stands_for_file
from stepwell.domain.tiers.tier_index import KEPT_TIERS, FragmentEntry, Usage
from stepwell.text import plural

SUBJECTS: Final = (log_invariants, pool_invariants)
"""The modules with the invariants of one subject. Importing a module enters them into `INVARIANTS`."""


def _lists(state: State) -> Iterator[tuple[bool, Tier, Iterator[FragmentEntry]]]:
    """Yield the lists of all projects, each with its tier, and whether it is one of fragments with `keep`."""
    yield from ((False, tier, state.fragments.oldest(tier)) for tier in Tier)
    yield from ((True, tier, state.fragments.oldest_kept(tier)) for tier in KEPT_TIERS)


@invariant
def each_fragment_is_in_exactly_one_tier(state: State) -> Iterator[str]:
    """The LRU lists of all tiers together have every fragment once, in the list of the tier that its row names.

    A fragment in two lists would be demoted twice. A fragment in none could never be evicted. Fragments with `keep`
    have lists of their own, which no eviction and no retention reads.
    """
    placed: set[tuple[str, str]] = set()
    for keep, tier, entries in _lists(state):
        for entry in entries:
            row = entry.row
            key = row.key
            if (row.keep, row.tier) != (keep, tier):
                yield f"{key} has {row.tier} in its row and is in {'the kept ones of ' if keep else ''}{tier}"
            if key in placed:
                yield f"{key} is in 2 tiers"
            placed.add(key)
    for key in placed ^ state.fragments.entries.keys():
        yield f"{key} is {'not listed' if key in placed else 'in 0 tiers'}"


@invariant
def every_tier_is_within_its_budget(state: State) -> Iterator[str]:
    """Hot is bounded by tokens, warm and cold by entries, bodies and arena by bytes, receipts by number and bytes."""
    budget, usage = state.budget, state.fragments.usage
    for name, used, bound in (
        ("hot tokens", usage(Tier.HOT).tokens, budget.hot_tokens),
        ("warm entries", usage(Tier.WARM).entries, budget.warm_entries),
        ("cold entries", usage(Tier.COLD).entries, budget.cold_entries),
        ("kept entries", state.fragments.kept_entries, budget.kept_entries),
        ("body bytes", state.bodies.bytes, budget.bodies_bytes),
        ("arena bytes", state.bodies.arena_bytes, budget.live_bytes),
        ("receipts", len(state.receipts), limits.RECEIPTS_MAX),
        ("receipt bytes", state.receipts.bytes, budget.receipts_bytes),
    ):
        if used > bound:
            yield f"{name}: {used} of {bound}"


BUDGET: Final = every_tier_is_within_its_budget.__name__
"""The only invariant that a manager can repair: it demotes fragments and deletes old receipts until it holds."""


@invariant
def sums_equal_what_they_sum(state: State) -> Iterator[str]:
    """The usage of each tier, of all projects and of each one, is the sum over its fragments.

    Budgets are enforced by these sums: one that drifts away would let a tier grow, or refuse stores for no reason.
    """
    actual: defaultdict[tuple[str | None, Tier], Usage] = defaultdict(Usage)
    kept: defaultdict[tuple[str | None, Tier], Usage] = defaultdict(Usage)
    files: Counter[tuple[str | None, Tier]] = Counter()
    for entry in state.fragments:
        row = entry.row
        if row.keep:
            for scope in (None, row.project):
                kept[scope, row.tier].add(row)
            continue
        actual[row.project, row.tier].add(row)
        files.update({(scope, row.tier): int(stands_for_file(row)) for scope in (None, row.project)})
    for (_, tier), part in list(actual.items()):
        actual[None, tier] = actual[None, tier].plus(part)
    for scope in (None, *state.fragments.projects_after("")):
        for tier in Tier:
            usage = state.fragments.usage(tier, None if scope is None else (scope,))
            if usage != actual[scope, tier]:
                yield f"{scope or 'all'}/{tier}: {usage}"
            if state.fragments.files(tier, None if scope is None else (scope,)) != files[scope, tier]:
                yield f"{scope or 'all'}/{tier}: not {files[scope, tier]} rows that stand for files"
        for tier, usage in state.fragments.kept_usage(None if scope is None else (scope,)).items():
            if usage != kept[scope, tier]:
                yield f"{scope or 'all'}/kept {tier}: {usage}"


@invariant
def what_expires_is_filed_by_its_time(state: State) -> Iterator[str]:
    """The order of expiry has each fragment that expires once, at its time, and no other one.

    A fragment that is missing there would never be deleted.
    """
    actual = {each.row.key: at_ms for each in state.fragments if (at_ms := each.expires_at_ms) is not None}
    if actual != state.fragments.expiry.times():
        yield "fragments by expiry differ"


@invariant
def equal_bodies_are_found(state: State) -> Iterator[str]:
    """The index of bodies of a project, if it has one that is complete, has each of its fragments under its body.

    A store with `unique` relies on it: a fragment that is missing there would be stored twice.
    """
    for project in state.fragments.projects_after(""):
        index = state.fragments.equal_bodies(project)
        if index is None or not index.is_complete:
            continue
        actual = defaultdict[bytes, set[str]](set)
        for fragment_id, entry in state.fragments.by_id(project).items():
            actual[entry.row.digest].add(fragment_id)
        if actual != index.ids():
            yield f"the index of bodies of {project} differs"


@invariant
def orders_of_use_are_orders_of_time(state: State) -> Iterator[str]:
    """Along each LRU list ticks increase and times do not decrease.

    A sweep stops at the first fragment that is not idle, and a scoped eviction merges the lists by tick.
    """
    lists = [("all", "kept" if keep else tier, [*entries]) for keep, tier, entries in _lists(state)]
    for scope in state.fragments.projects_after(""):
        lists += [(scope, tier, [*state.fragments.oldest(tier, (scope,))]) for tier in Tier]
    for scope, tier, entries in lists:
        for older, newer in pairwise(entries):
            if older.tick >= newer.tick or older.touched_at_ms > newer.touched_at_ms:
                yield f"{scope}/{tier}: {older.row.key} before {newer.row.key}"


@invariant
def projects_have_their_fragments_in_order_of_creation(state: State) -> Iterator[str]:
    """The serial index of each project has every fragment exactly once and in order, so that pages show each once.

    No serial is as large as the next one, because a new fragment must come behind all others.
    """
    listed = 0
    next_serial = state.fragments.next_serial
    for project in state.fragments.projects_after(""):
        last = 0
        for entry in state.fragments.created_after(project, 0):
            row = entry.row
            listed += 1
            if row.serial <= last:
                yield f"{row.key} has serial {row.serial} behind serial {last}"
            last = row.serial
            if state.fragments.find(*row.key) is not entry:
                yield f"{row.key} is listed, and another under its name"
            if row.serial >= next_serial:
                yield f"{row.key} has serial {row.serial} from the future"
    if listed != len(state.fragments):
        yield f"{listed} of {plural(len(state.fragments), 'fragment')} listed"


@invariant
def bodies_are_counted_exactly(state: State) -> Iterator[str]:
    """A body is counted while a fragment, an entry, a receipt or a task refers to it, once for each and by tier."""
    actual = BodyTable()
    for fragment in state.fragments:
        row = fragment.row
        actual.retain((row.digest, row.size), row.tier)
    for entries in state.entries.by_changeset.values():
        for entry in entries:
            for body in entry.held:
                actual.retain(body, entry.tier)
    for row in (*state.receipts, *state.tasks):
        for body in row.held:
            actual.retain(body, row.tier)
    for run in state.logs.entries.by_log.values():
        for appended in run:
            actual.retain((appended.digest, appended.size), appended.tier)
    for digest, count in state.bodies.counts.items():
        if count.is_tried:  # the only part of a count that no row determines
            actual.note_packed(digest, count.packed)
    for name, kept, referred in (
        ("bodies", state.bodies.counts, actual.counts),
        ("bytes", state.bodies.bytes, actual.bytes),
        ("arena bytes", state.bodies.arena_bytes, actual.arena_bytes),
    ):
        if kept != referred:
            yield f"{name}: {kept} kept, {referred} referred to"


@invariant
def pages_have_every_row(state: State) -> Iterator[str]:
    """The order of the keys of a table that is read in pages has each of its rows once."""
    for table in (state.actions, state.plans, state.receipts, state.tasks, state.workers):
        if list(table.order) != sorted(map(str, table.rows)):
            yield f"the order of {type(table).__name__} differs"


@invariant
def actions_are_filed_under_their_names(state: State) -> Iterator[str]:
    """An action is filed under its canonical name, so that one name cannot mean two actions."""
    for name, action in state.actions.rows.items():
        if name != action.name or canonical(action.name) != action.name:
            yield f"{action.name} under {name}"


@invariant
def plans_are_where_plans_can_be(state: State) -> Iterator[str]:
    """Every plan is in a phase and state that the lifecycle has. Counters are within bounds, labels in order."""
    for plan in state.plans:
        if plan.position not in POSITIONS:
            yield f"{plan.plan_id} is {plan.position}"
        if list(plan.labels) != sorted({*plan.labels}) or len(plan.labels) > limits.PLAN_LABELS_MAX:
            yield f"{plan.plan_id} has labels {plan.labels}"
        if plan.version < 1 or plan.attempt < 1 or not 0 <= plan.reversion_count <= limits.REVERSIONS_MAX:
            yield f"{plan.plan_id} has impossible counters"


@invariant
def processing_means_leased(state: State) -> Iterator[str]:
    """A plan has a lease if and only if it is `processing`, and the indexes of leases agree.

    A plan that is processing without a lease would never expire, and no session could continue it.
    """
    leased = {plan.plan_id: plan.lease for plan in state.plans if plan.lease}
    for plan in state.plans:
        if (plan.state is PlanState.PROCESSING) != (plan.plan_id in leased):
            yield f"{plan.plan_id} is {plan.position}, lease {plan.lease}"
    by_expiry = {(lease.expires_at_ms, plan_id) for plan_id, lease in leased.items()}
    by_session = {(lease.session_id, plan_id) for plan_id, lease in leased.items()}
    if by_expiry != set(state.plans.by_expiry):
        yield "leases by expiry differ"
    if by_session != {(key, each) for key, ids in state.plans.by_session.items() for each in ids}:
        yield "leases by session differ"


@invariant
def tickets_are_in_order(state: State) -> Iterator[str]:
    """A queue of applies has the places of its order without gaps, and the indexes of tickets agree.

    A ticket belongs to a plan that is queued for apply or being applied. At the first place, a plan that is queued has
    a turn with an end; otherwise a caller that is gone would hold up all others.
    """
    table = state.tickets
    for tree in {ticket.tree for ticket in table}:
        queue = [(state.plans.rows[each.plan_id], each) for each in table if each.tree == tree]
        queue.sort(key=lambda pair: (pair[0].lease is None, -pair[1].priority, pair[1].revision, pair[1].ticket_id))
        places = {plan_id: place for place, plan_id in enumerate(dict.fromkeys(each.plan_id for _, each in queue), 1)}
        for plan, ticket in queue:
            if plan.phase is not Phase.APPLY or plan.state not in {PlanState.QUEUED, PlanState.PROCESSING}:
                yield f"{ticket.ticket_id} is of {plan.plan_id}, which is {plan.position}"
            has_turn = ticket.place == 1 and plan.state is PlanState.QUEUED
            if ticket.place != places[ticket.plan_id] or has_turn != (ticket.turn_until_ms is not None):
                yield f"{ticket.ticket_id} is at place {ticket.place}, until {ticket.turn_until_ms}"
    for index, name in ((table.by_tree, "tree"), (table.by_plan, "plan_id"), (table.by_session, "session_id")):
        if {(key, each) for key, ids in index.items() for each in ids} != {
            (getattr(ticket, name), ticket.ticket_id) for ticket in table
        }:
            yield f"tickets by {name} differ"
    if [*table.by_turn] != sorted((each.turn_until_ms, each.ticket_id) for each in table if each.turn_until_ms):
        yield "tickets by turn differ"


@invariant
def plan_trees_agree(state: State) -> Iterator[str]:
    """A declared child exists and names its parent, no plan outlives its parent, and the index of trees agrees."""
    trees: dict[str, set[str]] = {}
    for plan in state.plans:
        trees.setdefault(plan.root_plan_id, set()).add(plan.plan_id)
        parent = state.plans.get(plan.parent_plan_id) if plan.parent_plan_id else None
        if plan.parent_plan_id and parent is None:
            yield f"{plan.plan_id} has no parent {plan.parent_plan_id}"
        if plan.root_plan_id != (parent.root_plan_id if parent else plan.plan_id):
            yield f"{plan.plan_id} is in the tree of {plan.root_plan_id}, and its parent is not"
        for child in plan.subplans.children if plan.subplans else ():
            row = state.plans.get(child.plan_id)
            if row is None or row.parent_plan_id != plan.plan_id or row.root_plan_id != plan.root_plan_id:
                yield f"{child.plan_id} is not a child of {plan.plan_id}"
    if trees != state.plans.by_root:
        yield "trees differ"


@invariant
def roots_that_are_over_are_filed_by_their_end(state: State) -> Iterator[str]:
    """The index by end has each root that has ended, once, and no other plan.

    Retention deletes in the order of this index, and must never find a plan there that a session still works on.
    """
    over = [plan for plan in state.plans if plan.plan_id == plan.root_plan_id and plan.position in TERMINAL]
    if sorted((plan.ended_at_ms or 0, plan.plan_id) for plan in over) != list(state.plans.by_end):
        yield "roots by end differ"
    for plan in over:
        if plan.ended_at_ms is None:
            yield f"{plan.plan_id} is {plan.position} since an unknown time"


@invariant
def decisions_form_trees(state: State) -> Iterator[str]:
    """Each decision belongs to the plan that lists it, and its parent is an earlier decision of that plan."""
    for plan in state.plans:
        earlier: set[str | None] = {None}
        for decision_id in plan.decision_ids:
            decision = state.decisions.get(decision_id)
            if decision is None or decision.plan_id != plan.plan_id or decision.parent_id not in earlier:
                yield f"{decision_id} of {plan.plan_id}"
            earlier.add(decision_id)
    if sum(len(plan.decision_ids) for plan in state.plans) != len(state.decisions):
        yield "a decision has no plan"


@invariant
def changesets_belong_to_plans(state: State) -> Iterator[str]:
    """Each changeset is listed by its plan, and an open one belongs to the attempt that is executing.

    A plan that is retried or reverted must not get changes of its earlier attempt.
    """
    listed = {changeset_id: plan for plan in state.plans for changeset_id in plan.changeset_ids}
    if listed.keys() != state.changesets.rows.keys():
        yield "plans list other changesets than there are"
    for changeset in state.changesets:
        plan = listed.get(changeset.changeset_id)
        if plan is None or plan.plan_id != changeset.plan_id:
            yield f"{changeset.changeset_id} is not of {changeset.plan_id}"
        elif changeset.state is ChangesetState.OPEN and (
            plan.position != Position(Phase.EXECUTE, PlanState.PROCESSING) or plan.attempt != changeset.attempt
        ):
            yield f"{changeset.changeset_id} is open while {plan.plan_id} is {plan.position}"


@invariant
def contexts_own_exactly_their_open_changesets(state: State) -> Iterator[str]:
    """The stack of a context has open changesets of that context, each once, and every open one is on a stack."""
    stacked: Counter[str] = Counter()
    for context in state.contexts:
        stacked.update(context.active)
        owners = {
            (state.changesets.rows[each].context_id, state.changesets.rows[each].plan_id) for each in context.active
        }
        if owners != {(context.context_id, context.plan_id)}:
            yield f"{context.context_id} owns {sorted(context.active)}"
    if stacked != Counter(each.changeset_id for each in state.changesets if each.state is ChangesetState.OPEN):
        yield "stacks and open changesets differ"


@invariant
def entries_are_numbered_without_gaps(state: State) -> Iterator[str]:
    """The entries of a changeset are numbered from 1, in order, and are as many as the changeset says.

    The number is the cursor of pages and part of the key in the store.
    """
    by_plan: Counter[str] = Counter()
    for changeset in state.changesets:
        entries = state.entries.of(changeset.changeset_id)
        by_plan[changeset.plan_id] += len(entries)
        if [entry.seq for entry in entries] != list(range(1, changeset.entry_count + 1)):
            yield f"{changeset.changeset_id} has {len(entries)} of {plural(changeset.entry_count, 'entry', 'entries')}"
        if any((each.changeset_id, each.plan_id) != (changeset.changeset_id, changeset.plan_id) for each in entries):
            yield f"{changeset.changeset_id} holds another's entry"
    if +by_plan != +Counter(state.entries.by_plan):
        yield "entries by plan differ"


@invariant
def entries_are_in_order_of_recording(state: State) -> Iterator[str]:
    """The ordinals of a plan's entries are distinct and increase within each changeset.

    0 means: from before ordinals.
    """
    for plan in state.plans:
        numbers: set[int] = set()
        for changeset_id in plan.changeset_ids:
            counted = [entry.ordinal for entry in state.entries.of(changeset_id) if entry.ordinal]
            if counted != sorted({*counted}) or not numbers.isdisjoint(counted):
                yield f"{changeset_id} of {plan.plan_id}"
            numbers.update(counted)


@invariant
def merges_are_of_children(state: State) -> Iterator[str]:
    """A merge is of declared children that have executed, in declared order, and conflicts belong to a merge.

    A plan leaves the execute phase only without open conflicts.
    """
    for plan in state.plans:
        merged = plan.merged
        if merged is None:
            if plan.conflicts:
                yield f"{plan.plan_id} has conflicts of no merge"
            continue
        declared = [child.plan_id for child in plan.subplans.children] if plan.subplans else []
        if list(merged.children) != [each for each in declared if each in merged.children]:
            yield f"{plan.plan_id} merged {merged.children}"
        if plan.position not in TERMINAL and any(
            state.plans.rows[each].position != Position(Phase.EXECUTE, PlanState.COMPLETE) for each in merged.children
        ):
            yield f"{plan.plan_id} merged a child that has not executed"
        if not {conflict.plan_id for conflict in plan.conflicts} <= {*merged.children}:
            yield f"{plan.plan_id} has a conflict with no merged child"
        if plan.open_conflicts and plan.position not in _UNRESOLVED:
            yield f"{plan.plan_id} is {plan.position} with open conflicts"


_UNRESOLVED: Final = {
    Position(Phase.EXECUTE, state) for state in (PlanState.PROCESSING, PlanState.ERRORED, PlanState.CANCELLED)
}
"""The positions in which a plan may have open conflicts."""


@invariant
def contents_of_conflicts_are_held(state: State) -> Iterator[str]:
    """The contents of a conflict can be read until the whole tree of plans has ended: a caller chooses among them."""
    for plan in state.plans:
        is_over = state.plans.rows[plan.root_plan_id].position in TERMINAL
        for conflict in () if is_over else plan.conflicts:
            for side in (conflict.base, conflict.ours, conflict.theirs, conflict.chosen):
                if side is not None and side.digest not in state.bodies:
                    yield f"{conflict.path} of {plan.plan_id}"


@invariant
def endings_agree_with_positions(state: State) -> Iterator[str]:
    """The record of an application, with all required validations, or of a rollback implies the state `applied`."""
    for plan in state.plans:
        at = plan.state
        if plan.applied and (at is not PlanState.APPLIED or not_passed(plan.validations, plan.applied.validations)):
            yield f"{plan.plan_id} is {plan.position}, and was applied"
        if plan.rolled_back and at is not PlanState.APPLIED:
            yield f"{plan.plan_id} is {plan.position}, and was rolled back"
        for ending in (plan.applied, plan.constrained):
            if ending and not 0 < ending.attempt <= plan.attempt:
                yield f"{plan.plan_id} ended in attempt {ending.attempt} of {plan.attempt}"
        if not 0 <= plan.retries_left <= (limits.SUBPLAN_RETRIES_MAX if plan.parent_plan_id else 0):
            yield f"{plan.plan_id} has {plan.retries_left} retries left"
        if len({each.name for each in plan.validations}) < len(plan.validations):
            yield f"{plan.plan_id} has two validations of one name"


@invariant
def entries_change_leaves(state: State) -> Iterator[str]:
    """Both sides of an entry are files, links or empty directories, and the operation is the one that they show."""
    for entries in state.entries.by_changeset.values():
        for entry in entries:
            for side in (entry.before, entry.after):
                check_mode(side.mode if side else None, side.digest if side else None, entry.path)
            if derive_operation(entry.before, entry.after, entry.path, entry.source_path) is not entry.operation:
                yield f"{entry.path} of {entry.changeset_id} is no {entry.operation}"


@invariant
def receipts_are_in_order_and_summed(state: State) -> Iterator[str]:
    """The serial index has each receipt once, and the sum of bytes is that of the receipts.

    The projects of a receipt are sorted and distinct, so that equal receipts compare equal.
    """
    table = state.receipts
    if dict(table.by_serial) != {row.serial: row.receipt_id for row in table} or len(table.by_serial) != len(table):
        yield "receipts by serial differ"
    if table.bytes != sum(row.size for row in table):
        yield f"receipts have {table.bytes} bytes"
    for row in table:
        if row.revision > state.revision:
            yield f"{row.receipt_id} is of revision {row.revision}, from the future"
        if list(row.projects) != sorted({*row.projects}):
            yield f"{row.receipt_id} has projects {row.projects}"
