"""Bugs of the rules: checks that are missing, and changes that are made in part."""

from __future__ import annotations

from contextlib import AbstractContextManager
from unittest import mock

from stepwell.domain import leases, machine
from stepwell.domain.changesets import rules as changeset_rules
from stepwell.domain.changesets.commands import RecordChange
from stepwell.domain.changesets.model import Changeset, ChangesetOwner, ChangesetState
from stepwell.domain.plans import decisions, subplans, transitions
from stepwell.domain.plans import rules as plan_rules
from stepwell.domain.plans.model import Lease, Plan
from stepwell.domain.replies import FragmentChecked
from stepwell.domain.state import State
from stepwell.domain.tiers import rules as tier_rules
from stepwell.domain.tiers.budget import FragmentChanged
from stepwell.domain.tiers.commands import RequireFragment
from stepwell.domain.tiers.fast_path import StoreRun
from stepwell.domain.tiers.model import FragmentRow
from stepwell.domain.tiers.table import Key
from stepwell.domain.tiers.tier_index import FragmentEntry
from stepwell.domain.verdict import DECIDERS, Origin, RowChanged, Verdict
from stepwell.errors import NoActiveChangeset, PlanNotReady
from stepwell.manager.housekeeping import Housekeeping
from stepwell.manager.state_owner import MANAGER, StateOwner
from tests.simulator.bugs.registry import bug, do_nothing, patched


@bug("Any token is accepted while a plan is leased: an earlier holder is not fenced off.")
def fencing_check_missing() -> AbstractContextManager[None]:
    def require_lease(plan: Plan, _token: int | None, _origin: Origin) -> Lease:
        if plan.lease is None:
            raise PlanNotReady(f"plan {plan.plan_id!r} has no lease")
        return plan.lease

    owners = (leases, plan_rules, subplans, decisions, transitions)
    return patched(*((owner, "require_lease", require_lease) for owner in owners))


@bug("The token of a lease is the number of the attempt, so that two holders have the same token.")
def tokens_repeat() -> AbstractContextManager[None]:
    def grant_lease(_state: State, plan: Plan, origin: Origin, lease_ms: int) -> Lease:
        return Lease(plan.attempt, origin.session_id, origin.now_ms + lease_ms)

    return patched((transitions, "grant_lease", grant_lease))


@bug("Leases that are over by time are not taken back.")
def lease_does_not_expire() -> AbstractContextManager[None]:
    return patched((Housekeeping, "expire_leases", do_nothing))


@bug("A store with an expected revision does not compare it.")
def expected_revision_ignored() -> AbstractContextManager[None]:
    return patched((tier_rules, "_require_revision", do_nothing))


@bug("A command on a plan with an expected version does not compare it.")
def expected_version_ignored() -> AbstractContextManager[None]:
    owners = (plan_rules, transitions)
    return patched(*((owner, "require_version", do_nothing) for owner in owners))


@bug("The commands before the refused one of a transaction are not undone.")
def transaction_in_part() -> AbstractContextManager[None]:
    return patched((machine, "_undo", do_nothing))


@bug("The budget is enforced by the next housekeeping, after the reply, and not in the step that exceeds it.")
def budget_enforced_after_reply() -> AbstractContextManager[None]:
    housekeep = StateOwner.housekeep

    def place(
        _state: State, before: FragmentRow | None, row: FragmentRow, _origin: Origin
    ) -> tuple[FragmentChanged, ...]:
        return (RowChanged(before, row),)

    def enforce_late(self: StateOwner, now_s: float) -> None:
        housekeep(self, now_s)
        latest_ms = max((entry.touched_at_ms for entry in self._state.fragments), default=0)
        self.enforce_budget(None, Origin(MANAGER, latest_ms))

    return patched(
        (tier_rules, "place", place),
        (machine, "apply_store_run", lambda *_: StoreRun()),
        (StateOwner, "housekeep", enforce_late),
    )


@bug("A change without a named changeset goes to the latest one of the plan, even of another context.")
def change_in_other_context() -> AbstractContextManager[None]:
    def target(state: State, _command: RecordChange, plan: ChangesetOwner) -> Changeset:
        rows = (state.changesets.rows[changeset_id] for changeset_id in plan.changeset_ids)
        still_open = [each for each in rows if each.state is ChangesetState.OPEN]
        if not still_open:
            raise NoActiveChangeset("this plan has no active changeset")
        return still_open[-1]

    return patched((changeset_rules, "_target_changeset", target))


@bug("A change is recorded into a changeset that is closed already.")
def closed_changeset_grows() -> AbstractContextManager[None]:
    open_changeset = changeset_rules._open_changeset

    def any_changeset(state: State, changeset_id: str, plan: ChangesetOwner, context_id: str) -> Changeset:
        found = state.changesets.get(changeset_id)
        return found if found is not None else open_changeset(state, changeset_id, plan, context_id)

    return patched((changeset_rules, "_open_changeset", any_changeset))


@bug("The manager compares no time of expiry: a fragment that has expired is there for every command.")
def expiry_is_ignored() -> AbstractContextManager[None]:
    return patched(
        (FragmentEntry, "is_expired", lambda _self, _now_ms: False),
        (Housekeeping, "has_expired", False),
        (StateOwner, "next_fragment_expiry_ms", None),
    )


@bug("A store with `unique` does not find the equal body of another session.")
def unique_within_a_session() -> AbstractContextManager[None]:
    find_equal = tier_rules._find_equal

    def find_own(state: State, key: Key, digest: bytes, origin: Origin) -> FragmentRow | None:
        found = find_equal(state, key, digest, origin)
        return found if found and found.writer and found.writer.session_id == origin.session_id else None

    return patched((tier_rules, "_find_equal", find_own))


@bug("`require` compares nothing in a transaction.")
def require_ignored() -> AbstractContextManager[None]:
    def allow(_state: State, _command: RequireFragment, _origin: Origin) -> Verdict:
        return Verdict(FragmentChecked(None))

    return mock.patch.dict(DECIDERS, {RequireFragment: allow})
