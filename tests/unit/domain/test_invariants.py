"""Each invariant can fail: a healthy state is damaged by hand, and exactly that claim, or more, complains."""

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from stepwell import limits
from stepwell.domain import invariants
from stepwell.domain.applies.commands import JoinApplyQueue
from stepwell.domain.changesets.model import ChangesetState, Content, Operation
from stepwell.domain.invariants import INVARIANTS
from stepwell.domain.logs.commands import AppendToLog, DeleteLog, NewEntry, PopFromLog, RetainInLog
from stepwell.domain.plans.commands import (
    AdvancePlan,
    CancelPlan,
    CompleteApply,
    ConflictFound,
    CreateAction,
    RecordDecision,
    RecordMerge,
    RollBackPlan,
    UseAction,
)
from stepwell.domain.plans.model import Action, Applied, Child, Constrained, Decision, Lease, Phase, Plan, PlanState
from stepwell.domain.plans.validations import Validation, ValidationResult
from stepwell.domain.pools.model import TokenLease, TokenPool
from stepwell.domain.receipts.commands import StoreReceipt
from stepwell.domain.state import State
from stepwell.domain.tiers.body_refs import BodyCount, digest_of
from stepwell.domain.tiers.commands import StoreOptions
from stepwell.domain.tiers.model import Tier, TierBudget
from stepwell.domain.tiers.tier_index import FragmentEntry
from tests.support.domain.world import LINKS, NOON_MS, World, image

Damage = Callable[[State], None]
TESTS = Validation("tests", ("pytest",))


@pytest.fixture
def state() -> State:
    """Some of everything, all of it sound."""
    world = World(TierBudget(hot_tokens=10, warm_entries=3, cold_entries=3))
    for name in "abc":
        world.store(name, 3)
    world.store("w", tier=Tier.WARM, project="q")
    world.store("k", options=StoreOptions(keep=True, expires_after_ms=1_000))
    world.store("u", tier=Tier.COLD, project="u", options=StoreOptions(unique=True, expires_at_ms=2 * NOON_MS))
    world.store("v", project="u", body=b"u", options=StoreOptions(unique=True))
    world.store("v", tier=Tier.COLD, project="u", body=b"v")
    world.use("old")
    world.do(CancelPlan("old"))
    world.use()
    world.execute()
    world.declare("kid")
    world.execute("kid")
    world.open("cs1", "ctx")
    world.record()
    world.record("b.py")
    world.open("cs2", "ctx")
    world.open("cs3", "kids", "kid")
    world.use("merged")
    world.execute("merged")
    world.declare("first", "second", plan_id="merged")
    for child in ("first", "second"):
        world.execute(child)
        world.change("a.py", b"base", child.encode(), plan_id=child)
        world.complete(child)
    world.change("a.py", b"base", b"first", plan_id="merged")
    found = (ConflictFound("a.py", "second"),)
    world.do(RecordMerge("merged", world.lease("merged"), ("first", "second"), "merged-a", found))
    world.do(CreateAction("checked", "", "", "planner", "coder", validations=(TESTS,)))
    world.do(UseAction("applied", "checked", LINKS))
    world.finish("applied")
    world.do(AdvancePlan("applied", Phase.APPLY))
    passed = (ValidationResult.of(TESTS, 0, 1, b""),)
    world.do(CompleteApply("applied", world.start("applied"), {}, validations=passed))
    world.do(RollBackPlan("applied", "", {}))
    world.do(RecordDecision("plan", "d1", world.lease(), "q", "c"))
    world.do(RecordDecision("plan", "d2", world.lease(), "q", "c", parent_id="d1"))
    for number, name in enumerate(("waiting", "late"), 1):
        world.use(name)
        world.finish(name)
        world.do(AdvancePlan(name, Phase.APPLY))
        world.do(JoinApplyQueue(f"t{number}", name, "/tree"))
    for name in ("r1", "r2"):
        world.do(StoreReceipt(name, ("p", "q"), "a title", name.encode()))
    world.do(AppendToLog("p", "log", tuple(NewEntry(body) for body in (b"r1", b"two", b"three", b"popped"))))
    world.do(PopFromLog("p", "log"))
    world.do(RetainInLog("p", "log", keep_ms=1_000))
    world.do(AppendToLog("p", "gone", (NewEntry(b"of a log that is gone"),)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "LOG_ROWS_PER_STEP", 0)
        world.do(DeleteLog("p", "gone"))
    return world.state


def plan_of(state: State, plan_id: str = "plan") -> Plan:
    plan = state.plans.get(plan_id)
    assert plan is not None
    return plan


def decision_of(state: State, decision_id: str) -> Decision:
    decision = state.decisions.get(decision_id)
    assert decision is not None
    return decision


def action_of(state: State) -> Action:
    action = state.actions.get("local/act")
    assert action is not None
    return action


def changed(plan_id: str, **fields: object) -> Damage:
    """A plan that has something else in some fields."""
    return lambda state: put(state, replace(plan_of(state, plan_id), **fields))


def entry_with(**fields: object) -> Damage:
    """A changeset whose second entry has something else in some fields."""

    def damage(state: State) -> None:
        entries = state.entries.by_changeset["cs1"]
        entries[1] = replace(entries[1], **fields)

    return damage


def ordinal_of_another_changeset(state: State) -> None:
    entries = state.entries.by_changeset
    entries["cs2"] = [replace(entries["cs1"][0], changeset_id="cs2")]


def merge_with(**fields: object) -> Damage:
    def damage(state: State) -> None:
        merged = plan_of(state, "merged").merged
        assert merged is not None
        put(state, replace(plan_of(state, "merged"), merged=replace(merged, **fields)))

    return damage


def conflict_with(**fields: object) -> Damage:
    def damage(state: State) -> None:
        (conflict,) = plan_of(state, "merged").conflicts
        put(state, replace(plan_of(state, "merged"), conflicts=(replace(conflict, **fields),)))

    return damage


def put(state: State, plan: Plan) -> None:
    """Replace a row behind the back of every index."""
    state.plans.rows[plan.plan_id] = plan


def file_twice(state: State) -> None:
    table = state.fragments
    entry = table.entries["p", "a"]
    again = FragmentEntry(entry.row, entry.tick, entry.touched_at_ms, entry.last_accessed_ms)
    table._tiers[Tier.WARM].lru.extend((again,))


def lose_from_ring(state: State) -> None:
    table = state.fragments
    table._tiers[Tier.HOT].lru.unlink(table.entries["p", "a"])


def change_tier_of_row(state: State) -> None:
    entry = state.fragments.entries["p", "a"]
    entry.row = replace(entry.row, tier=Tier.COLD)


def lower_budget(**bounds: int) -> Damage:
    def damage(state: State) -> None:
        state._budget.row = TierBudget(**{"hot_tokens": 10, "warm_entries": 3, "cold_entries": 3, **bounds})

    return damage


def overfill_warm(state: State) -> None:
    state.fragments._tiers[Tier.WARM].usage.entries = 4


def overfill_cold(state: State) -> None:
    state.fragments._tiers[Tier.COLD].usage.entries = 4


def overfill_kept(state: State) -> None:
    state.fragments._kept[Tier.COLD].usage.entries = limits.KEPT_ENTRIES


def miscount_tokens(state: State) -> None:
    state.fragments._tiers[Tier.HOT].usage.tokens -= 1


def miscount_files(state: State) -> None:
    state.fragments._tiers[Tier.HOT].files += 1


def miscount_bytes_of_a_project(state: State) -> None:
    state.fragments._projects["q"].tiers[Tier.WARM].usage.bytes += 1


def miscount_kept(state: State) -> None:
    state.fragments._kept[Tier.HOT].usage.tokens += 1


def miscount_kept_of_a_project(state: State) -> None:
    state.fragments._projects["p"].kept[Tier.HOT].usage.bytes += 1


def keep_and_count_in_a_tier(state: State) -> None:
    table = state.fragments
    entry = table.entries["p", "k"]
    table._kept[Tier.HOT].lru.unlink(entry)
    table._tiers[Tier.HOT].lru.extend((entry,))


def lose_from_expiry(state: State) -> None:
    state.fragments.expiry.set(("p", "k"), None)


def expire_earlier(state: State) -> None:
    state.fragments.expiry.set(("p", "k"), 1)


def expire_what_stays(state: State) -> None:
    state.fragments.expiry.set(("p", "a"), 1)


def read_without_moving_the_expiry(state: State) -> None:
    state.fragments.entries["p", "k"].last_accessed_ms += 1


def lose_an_equal_body(state: State) -> None:
    index = state.fragments.equal_bodies("u")
    assert index is not None
    index._ids.popitem()


def find_what_is_not_equal(state: State) -> None:
    index = state.fragments.equal_bodies("u")
    assert index is not None
    index._ids[digest_of(b"u")] = {"u": None, "v": None}


def shuffle_ring(state: State) -> None:
    table = state.fragments
    table._tiers[Tier.HOT].lru.touch(table.entries["p", "a"])


def shuffle_ring_of_a_project(state: State) -> None:
    table = state.fragments
    table._projects["p"].tiers[Tier.HOT].lru.touch(table.entries["p", "a"])


def turn_back_time(state: State) -> None:
    state.fragments.entries["p", "c"].touched_at_ms -= 1


def lose_from_pages(state: State) -> None:
    state.fragments._projects["p"].by_serial.remove(1)


def shuffle_pages(state: State) -> None:
    state.fragments._projects["p"].by_serial._places.reverse()


def serial_from_the_future(state: State) -> None:
    state.fragments.next_serial = 1


def forget_a_body(state: State) -> None:
    state.bodies.counts.popitem()


def keep_a_body(state: State) -> None:
    state.bodies.counts[b"nobody's"] = BodyCount(0, 0, cold=1)


def keep_a_released_body(state: State) -> None:
    state.bodies.counts[b"nobody's"] = BodyCount(0, 0)


def count_a_body_in_another_tier(state: State) -> None:
    digest = digest_of(b"a")
    state.bodies.counts[digest] = replace(state.bodies.counts[digest], hot=0, warm=1)


def miscount_body_bytes(state: State) -> None:
    state.bodies.bytes += 1


def miscount_arena_bytes(state: State) -> None:
    state.bodies.arena_bytes -= 1


def pack_unnoticed(state: State) -> None:
    digest = digest_of(b"w")
    state.bodies.counts[digest] = replace(state.bodies.counts[digest], packed=0, is_tried=True)


def lose_order_of_actions(state: State) -> None:
    state.actions.order.clear()


def file_action_elsewhere(state: State) -> None:
    state.actions.rows["local/other"] = action_of(state)


def file_action_uncanonically(state: State) -> None:
    action = replace(action_of(state), name="act")
    state.actions.rows.clear()
    state.actions.rows["act"] = action


def impossible_position(state: State) -> None:
    put(state, replace(plan_of(state), state=PlanState.APPLIED))


def impossible_counters(field: str, value: int) -> Damage:
    return lambda state: put(state, replace(plan_of(state), **{field: value}))


def processing_without_lease(state: State) -> None:
    put(state, replace(plan_of(state), lease=None))


def lease_without_processing(state: State) -> None:
    plan = plan_of(state)
    put(state, replace(plan, state=PlanState.COMPLETE))


def lease_not_filed_by_expiry(state: State) -> None:
    state.plans.by_expiry.clear()


def lease_filed_under_another_session(state: State) -> None:
    plan = plan_of(state)
    assert plan.lease is not None
    put(state, replace(plan, lease=Lease(plan.lease.token, "mallory", plan.lease.expires_at_ms)))


def declare_nobody(state: State) -> None:
    plan = plan_of(state)
    assert plan.subplans is not None
    put(state, replace(plan, subplans=replace(plan.subplans, children=(Child("nobody", "nobody"),))))


def disown(state: State) -> None:
    put(state, replace(plan_of(state, "kid"), parent_plan_id=None))


def uproot(state: State) -> None:
    put(state, replace(plan_of(state, "kid"), root_plan_id="kid"))


def lose_from_tree(state: State) -> None:
    state.plans.by_root["plan"].discard("kid")


def lose_a_root(state: State) -> None:
    plan = plan_of(state)
    put(state, replace(plan_of(state, "kid"), parent_plan_id="nobody"))
    put(state, replace(plan, subplans=None))


def lose_from_ends(state: State) -> None:
    state.plans.by_end.clear()


def file_under_another_end(state: State) -> None:
    old = plan_of(state, "old")
    times = {phase: replace(each, ended_at_ms=1) for phase, each in old.times.items()}
    put(state, replace(old, times=times))


def file_what_goes_on(state: State) -> None:
    state.plans.by_end.add((1, "plan"))


def end_at_no_time(state: State) -> None:
    put(state, replace(plan_of(state, "old"), times={}))
    state.plans.by_end.clear()
    state.plans.by_end.add((0, "old"))


def lose_a_decision(state: State) -> None:
    del state.decisions.rows["d2"]


def decision_of_another_plan(state: State) -> None:
    state.decisions.rows["d1"] = replace(decision_of(state, "d1"), plan_id="kid")


def decision_on_a_later_one(state: State) -> None:
    state.decisions.rows["d1"] = replace(decision_of(state, "d1"), parent_id="d2")


def decision_without_a_plan(state: State) -> None:
    state.decisions.rows["d3"] = replace(decision_of(state, "d1"), decision_id="d3")


def unlist_a_changeset(state: State) -> None:
    put(state, replace(plan_of(state), changeset_ids=("cs1",)))


def changeset_of_another_plan(state: State) -> None:
    state.changesets.rows["cs1"] = replace(state.changesets.rows["cs1"], plan_id="kid")


def open_in_another_attempt(state: State) -> None:
    put(state, replace(plan_of(state), attempt=2))


def open_in_another_phase(state: State) -> None:
    put(state, replace(plan_of(state), phase=Phase.STRATEGIZE))


def close_but_leave_on_the_stack(state: State) -> None:
    state.changesets.rows["cs2"] = replace(state.changesets.rows["cs2"], state=ChangesetState.CLOSED)


def open_on_no_stack(state: State) -> None:
    del state.contexts.rows["ctx"]


def open_on_two_stacks(state: State) -> None:
    state.contexts.rows["kids"] = replace(state.contexts.rows["kids"], active=("cs3", "cs2"))


def empty_stack(state: State) -> None:
    state.contexts.rows["none"] = replace(state.contexts.rows["ctx"], context_id="none", active=())


def lose_an_entry(state: State) -> None:
    state.entries.by_changeset["cs1"].pop(0)


def miscount_entries_of_a_changeset(state: State) -> None:
    state.changesets.rows["cs1"] = replace(state.changesets.rows["cs1"], entry_count=1)


def entry_of_another(state: State) -> None:
    entries = state.entries.by_changeset["cs1"]
    entries[1] = replace(entries[1], changeset_id="cs2")


def miscount_entries_of_a_plan(state: State) -> None:
    state.entries.by_plan["plan"] += 1


def overfill_receipts(state: State) -> None:
    for number in range(limits.RECEIPTS_MAX):
        state.receipts.rows[str(number)] = state.receipts.rows["r1"]


def overfill_receipt_bytes(state: State) -> None:
    state.receipts.bytes = limits.RECEIPTS_BYTES_MAX + 1


def change_receipt(**fields: object) -> Damage:
    def damage(state: State) -> None:
        state.receipts.rows["r1"] = replace(state.receipts.rows["r1"], **fields)

    return damage


def change_ticket(ticket_id: str, **fields: object) -> Damage:
    def damage(state: State) -> None:
        state.tickets.rows[ticket_id] = replace(state.tickets.rows[ticket_id], **fields)

    return damage


def lose_turn(state: State) -> None:
    state.tickets.by_turn.clear()


def miscount_receipt_bytes(state: State) -> None:
    state.receipts.bytes += 1


def lose_from_order(state: State) -> None:
    del state.receipts.by_serial[1]


def lose_tokens_of_a_session(state: State) -> None:
    change_pool()(state)
    state.pools.by_session.clear()


def change_pool(**fields: object) -> Damage:
    """A pool of which a session holds tokens, with other fields."""
    lease = TokenLease("lease", "alice", "", 5, 0, 1)
    pool = TokenPool("team", 10, None, 80, 0, 1, (lease,), 1, 1)
    return lambda state: state.pools.swap(None, replace(pool, **fields))


def change_log(**fields: object) -> Damage:
    def damage(state: State) -> None:
        row = state.logs.rows["p", "log"]
        state.logs.rows[row.key] = state.logs.by_serial[row.serial] = replace(row, **fields)

    return damage


def change_entry(position: int, /, **fields: object) -> Damage:
    def damage(state: State) -> None:
        rows = state.logs.entries.by_log[state.logs.rows["p", "log"].serial]._rows
        for at, row in enumerate(rows):
            if row is not None and row.position == position:
                rows[at] = replace(row, **fields)

    return damage


def lose_last_entry(state: State) -> None:
    run = state.logs.entries.by_log[state.logs.rows["p", "log"].serial]
    run.remove(run[-1])


def miscount_entries_of_logs(state: State) -> None:
    state.logs.entries._count += 1


def lose_from_names(state: State) -> None:
    state.logs.order.clear()


def lose_from_serials(state: State) -> None:
    state.logs.by_serial.clear()


def lose_what_is_due(state: State) -> None:
    state.logs.due.clear()


DAMAGES: dict[str, list[Damage]] = {
    "pages_have_every_row": [lose_order_of_actions],
    "each_fragment_is_in_exactly_one_tier": [file_twice, lose_from_ring, change_tier_of_row, keep_and_count_in_a_tier],
    "what_expires_is_filed_by_its_time": [
        lose_from_expiry,
        expire_earlier,
        expire_what_stays,
        read_without_moving_the_expiry,
    ],
    "equal_bodies_are_found": [lose_an_equal_body, find_what_is_not_equal],
    "every_tier_is_within_its_budget": [
        lower_budget(hot_tokens=8),
        overfill_warm,
        overfill_cold,
        overfill_kept,
        lower_budget(bodies_bytes=1),
        lower_budget(arena_bytes=1),
        overfill_receipts,
        overfill_receipt_bytes,
    ],
    "sums_equal_what_they_sum": [
        miscount_tokens,
        miscount_bytes_of_a_project,
        miscount_files,
        miscount_kept,
        miscount_kept_of_a_project,
    ],
    "orders_of_use_are_orders_of_time": [shuffle_ring, shuffle_ring_of_a_project, turn_back_time],
    "projects_have_their_fragments_in_order_of_creation": [lose_from_pages, shuffle_pages, serial_from_the_future],
    "bodies_are_counted_exactly": [
        forget_a_body,
        keep_a_body,
        keep_a_released_body,
        count_a_body_in_another_tier,
        miscount_body_bytes,
        miscount_arena_bytes,
        pack_unnoticed,
        change_receipt(digest=digest_of(b"other")),
    ],
    "pools_agree_with_their_leases": [lose_tokens_of_a_session, change_pool(spent_parts=-1)],
    "actions_are_filed_under_their_names": [file_action_elsewhere, file_action_uncanonically],
    "plans_are_where_plans_can_be": [
        impossible_position,
        impossible_counters("version", 0),
        impossible_counters("attempt", 0),
        impossible_counters("reversion_count", 4),
        impossible_counters("reversion_count", -1),
    ],
    "processing_means_leased": [
        processing_without_lease,
        lease_without_processing,
        lease_not_filed_by_expiry,
        lease_filed_under_another_session,
    ],
    "plan_trees_agree": [declare_nobody, disown, uproot, lose_from_tree, lose_a_root],
    "roots_that_are_over_are_filed_by_their_end": [
        lose_from_ends,
        file_under_another_end,
        file_what_goes_on,
        end_at_no_time,
    ],
    "decisions_form_trees": [
        lose_a_decision,
        decision_of_another_plan,
        decision_on_a_later_one,
        decision_without_a_plan,
    ],
    "changesets_belong_to_plans": [
        unlist_a_changeset,
        changeset_of_another_plan,
        open_in_another_attempt,
        open_in_another_phase,
    ],
    "contexts_own_exactly_their_open_changesets": [
        close_but_leave_on_the_stack,
        open_on_no_stack,
        open_on_two_stacks,
        empty_stack,
    ],
    "entries_are_numbered_without_gaps": [
        lose_an_entry,
        miscount_entries_of_a_changeset,
        entry_of_another,
        miscount_entries_of_a_plan,
    ],
    "entries_are_in_order_of_recording": [
        entry_with(ordinal=1),
        entry_with(ordinal=-1),
        ordinal_of_another_changeset,
    ],
    "merges_are_of_children": [
        changed("merged", merged=None),
        merge_with(children=("second", "first")),
        merge_with(children=("first", "nobody")),
        merge_with(children=("first",)),
        changed("first", state=PlanState.CANCELLED),
        changed("merged", state=PlanState.COMPLETE),
    ],
    "contents_of_conflicts_are_held": [
        conflict_with(ours=Content(digest_of(b"nobody's"), 1, held=True)),
        conflict_with(chosen=Content(digest_of(b"nobody's"), 1, held=True)),
    ],
    "endings_agree_with_positions": [
        changed("applied", state=PlanState.CONSTRAINED),
        changed("applied", applied=None, state=PlanState.CONSTRAINED),
        changed("applied", applied=Applied(1, 1, "alice", 0, "")),
        changed("plan", constrained=Constrained(1, 2, "alice", "")),
        changed("plan", retries_left=1),
        changed("kid", retries_left=limits.SUBPLAN_RETRIES_MAX + 1),
        changed("plan", validations=(TESTS, TESTS)),
    ],
    "entries_change_leaves": [
        entry_with(after=Content(digest_of(b"new"), 3, held=True, mode=0o644)),
        entry_with(operation=Operation.DELETE),
        entry_with(after=None),
    ],
    "tickets_are_in_order": [
        change_ticket("t1", place=2),
        change_ticket("t2", place=1),
        change_ticket("t2", place=3),
        change_ticket("t2", priority=9),
        change_ticket("t1", turn_until_ms=None),
        change_ticket("t1", turn_until_ms=7),
        change_ticket("t2", turn_until_ms=7),
        change_ticket("t2", tree="/other"),
        change_ticket("t2", session_id="bob"),
        change_ticket("t2", plan_id="waiting"),
        lose_turn,
        changed("waiting", phase=Phase.EXECUTE),
        changed("late", state=PlanState.ERRORED),
    ],
    "receipts_are_in_order_and_summed": [
        miscount_receipt_bytes,
        lose_from_order,
        change_receipt(serial=2),
        change_receipt(serial=7),
        change_receipt(revision=1_000),
        change_receipt(projects=("q", "p")),
        change_receipt(projects=("p", "p")),
    ],
    "logs_are_filed": [lose_from_names, lose_from_serials, lose_what_is_due],
    "entries_of_logs_are_in_order": [
        miscount_entries_of_logs,
        lose_last_entry,
        change_entry(3, position=1),
        change_entry(2, at_ms=0),
        change_entry(2, log=7),
        change_entry(2, size=9),
        change_entry(3, revision=1_000_000),
        change_log(head=1_000_000),
        change_log(first_position=9),
        change_log(last_position=2),
        change_log(last_position=4),
        change_log(next_position=1),
    ],
}
"""What breaks each invariant, in each of the ways that it speaks of."""


def test_sound_state(state: State) -> None:
    """Nothing is wrong with the state that is damaged below, nor with an empty one."""
    assert invariants.check(state) == []
    assert invariants.check(State()) == []


def test_checking_changes_nothing(state: State) -> None:
    """A check is no access."""
    before = image(state)
    invariants.check(state)
    assert image(state) == before


def test_every_invariant_is_broken_here() -> None:
    """An invariant that nobody can break says nothing."""
    assert DAMAGES.keys() == INVARIANTS.keys()


@pytest.mark.parametrize(
    "name, damage",
    [
        pytest.param(name, damage, id=f"{name}-{number}")
        for name in INVARIANTS
        for number, damage in enumerate(DAMAGES.get(name, [lambda _: None]))
    ],
)
def test_can_fail(state: State, name: str, damage: Damage) -> None:
    """The damage is found under the name of the invariant that it breaks."""
    damage(state)
    assert name in {violation.partition(":")[0] for violation in invariants.check(state)}
