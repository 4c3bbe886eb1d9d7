"""Defects that break the promises of one winner and of the right changeset."""

from __future__ import annotations

from tests.promises.model import Defect

WINNER = "one wins and the others get a typed refusal"
LEASE = "A phase in progress carries a lease."
DEATH = "When its owner dies, the plan goes back to the queue at once"
FENCED = "the old lease's token can no longer complete, fail or record anything"
STEP = "The manager decides to which changeset a change belongs in the step that records it."
CONTEXTS = "Two execution contexts never see each other's."

LIFECYCLE = "features/plan_lifecycle.feature"
RACES = "tests/crossprocess/test_races.py"
PLANS = "tests/property/test_plans.py::TestPlans"
LEASES = "tests/unit/domain/plans/test_leases.py"
CHANGESETS = "tests/property/test_changesets.py::TestChangesets"
RULES = "tests/unit/domain/changesets/test_rules.py::TestRecord"

DEFECTS = (
    Defect(
        4,
        WINNER,
        "An action is created again under a name that exists.",
        "domain/plans/actions.py",
        "    if state.actions.get(name):\n",
        "    if state.actions.get(name) and not name:\n",
        (
            f"{LIFECYCLE}: One name, many creators",
            f"{LIFECYCLE}: One name, many processes",
            f"{RACES}::test_one_creator_of_a_name_wins",
        ),
    ),
    Defect(
        4,
        WINNER,
        "A phase that is in progress can be started again.",
        "domain/plans/lifecycle.py",
        '    **_each_phase("start", _QUEUED, _PROCESSING),\n',
        '    **_each_phase("start", _QUEUED, _PROCESSING),\n    **_each_phase("start", _PROCESSING, _PROCESSING),\n',
        (
            f"{LIFECYCLE}: Two who start one execution",
            f"{RACES}::test_one_starter_of_a_plan_wins",
            PLANS,
            f"{LEASES}::test_one_winner",
        ),
    ),
    Defect(
        4,
        LEASE,
        "A lease that has expired can still be used.",
        "domain/leases.py",
        " and origin.now_ms < plan.lease.expires_at_ms:",
        ":",
        (f"{LEASES}::test_ends_in_time",),
    ),
    Defect(
        4,
        DEATH,
        "The death of a process is not noticed: its leases stay until they expire.",
        "manager/loop.py",
        "            for session in self._sessions.by_pidfd(fd):\n                self._on_process_death(session)\n",
        "            self._epoll.unregister(fd)\n",
        ("tests/crossprocess/test_leases.py::test_child_that_holds_the_socket_does_not_hold_the_lease",),
    ),
    Defect(
        4,
        DEATH,
        "A plan whose owner has died does not go back to the queue: it has failed.",
        "domain/plans/lifecycle.py",
        "    **{(PlanEvent.LOSE_LEASE, Position(p, _PROCESSING)): Position(p, _QUEUED) for p in Phase},\n",
        "    **{(PlanEvent.LOSE_LEASE, Position(p, _PROCESSING)): Position(p, _ERRORED) for p in Phase},\n",
        (PLANS, f"{LEASES}::test_expiry_queues_again"),
    ),
    Defect(
        4,
        FENCED,
        "Any token is accepted while a plan has a lease.",
        "domain/leases.py",
        "    if plan.lease is not None and plan.lease.token == token and origin",
        "    if plan.lease is not None and token is not None and origin",
        (PLANS, f"{LEASES}::test_wrong_token"),
    ),
    Defect(
        5,
        STEP,
        "A change without a named changeset goes to the latest one of the plan, of whatever context.",
        "domain/changesets/rules.py",
        "    return _open_changeset(state, context.active[-1], plan, command.context_id)",
        "    return state.changesets.rows[plan.changeset_ids[-1]]",
        (
            "features/changesets.feature: Many contexts in threads",
            "features/changesets.feature: Many contexts in processes",
            CHANGESETS,
            f"{RULES}::test_contexts_do_not_see_each_other",
            f"{RACES}::test_changes_go_to_their_own_changeset",
        ),
    ),
    Defect(
        5,
        STEP,
        "A change is recorded into a changeset that is closed already.",
        "domain/changesets/rules.py",
        "    if changeset.state is not ChangesetState.OPEN:",
        "    if changeset.state is ChangesetState.ABORTED:",
        (f"{RULES}::test_ended_is_immutable",),
    ),
    Defect(
        5,
        CONTEXTS,
        "A context can name the changeset of another one, and record into it.",
        "domain/changesets/rules.py",
        "    if changeset is None or (changeset.plan_id, changeset.context_id) != (plan.plan_id, context_id):",
        "    if changeset is None or (changeset.plan_id, context_id) != (plan.plan_id, context_id):",
        (CHANGESETS, f"{RULES}::test_explicit_id_of_another_context"),
    ),
)
