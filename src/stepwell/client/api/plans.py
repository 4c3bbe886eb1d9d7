"""The calls on actions, plans, leases and decisions, and `PlanApi`, which performs them for a blocking client.

An action is a template; `use_action` makes a plan of it. A plan goes through three phases: strategize, execute, apply.
Each phase is queued, then processed by the session that holds the plan's lease, and ends complete or errored:

    start_X → (lease) → complete_X or fail_X → execute_plan / apply_plan queues the next phase

`begin` leads from an action to the execute phase in one call.

Common arguments: `lease` is the token that `start_*` returned; without it the session's own is used. A call with a
lease that is over raises `LeaseLost`. `expected_version` raises `Conflict` if the plan has changed since the caller
read it. A call that the plan's phase and state do not allow raises `PlanNotReady`, whose message names the legal ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from stepwell import limits
from stepwell.client.api.apply_queue import ApplyQueueCalls
from stepwell.client.api.plan_leases import name_tuple, plan_of, project_links
from stepwell.client.api.service import BlockingService, BufferedService, method
from stepwell.client.api.subplans import SubplanCalls
from stepwell.client.session.calls import Call
from stepwell.domain.checks import require_instance
from stepwell.domain.plans.commands import (
    AdvancePlan,
    ArchiveAction,
    BeginPlan,
    CancelPlan,
    CompleteApply,
    CompletePhase,
    ConstrainApply,
    CreateAction,
    FailPhase,
    GetAction,
    GetPlan,
    ListActions,
    ListDecisions,
    ListPlans,
    RecordDecision,
    RenewLease,
    RetryPlan,
    RevertPlan,
    RollBackPlan,
    StartPhase,
    UseAction,
)
from stepwell.domain.plans.model import (
    Action,
    Argument,
    ArgumentValue,
    Decision,
    Phase,
    Plan,
    PlanState,
    ProjectLink,
)
from stepwell.domain.plans.validations import Validation, ValidationResult
from stepwell.domain.replies import ActionPage, DecisionPage, PlanPage
from stepwell.domain.tiers.body_refs import Digest


class PlanCalls(SubplanCalls, ApplyQueueCalls):
    """The calls on actions and plans, children included; their result depends on the kind of service."""

    @method
    def create_action(
        self,
        name: str,
        *,
        description: str,
        definition_of_done: str,
        strategy_actor: str,
        execution_actor: str,
        estimation_actor: str | None = None,
        review_actor: str | None = None,
        apply_actor: str | None = None,
        invariant_actor: str | None = None,
        arguments: Sequence[Argument] = (),
        invariants: Sequence[str] = (),
        automation_profile: str | None = None,
        reusable: bool = True,
        read_only: bool = False,
        validations: Sequence[Validation] = (),
    ) -> Call[Action]:
        """Create an action and return it. An existing name is refused with `AlreadyExists`, never overwritten.

        The actors name the programs or agents that do the work of a phase; the manager stores them and does not
        interpret them. `description` and `definition_of_done` may have `{name}` placeholders for `arguments`. Each plan
        of the action has its `invariants` and `validations` too. `reusable=False` allows one plan only.
        """
        command = CreateAction(
            name=name,
            description=description,
            definition_of_done=definition_of_done,
            strategy_actor=strategy_actor,
            execution_actor=execution_actor,
            estimation_actor=estimation_actor,
            review_actor=review_actor,
            apply_actor=apply_actor,
            invariant_actor=invariant_actor,
            arguments=tuple(arguments),
            invariants=tuple(invariants),
            automation_profile=automation_profile,
            reusable=reusable,
            read_only=read_only,
            validations=tuple(validations),
        )
        return Call(command, lambda answered: answered.reply.action)

    @method
    def get_action(self, name: str) -> Call[Action]:
        """Return an action, by any spelling of its name."""
        return Call(GetAction(name), lambda answered: answered.reply.action)

    @method
    def list_actions(self, *, limit: int = 100, cursor: str | None = None) -> Call[ActionPage]:
        """Return a page of actions in order of name."""
        return Call(ListActions(limit, cursor))

    @method
    def archive_action(self, name: str) -> Call[Action]:
        """Archive an action, so that it cannot be used any more. Its plans go on."""
        return Call(ArchiveAction(name), lambda answered: answered.reply.action)

    @method
    def use_action(
        self,
        name: str,
        *,
        projects: Sequence[str | ProjectLink],
        arguments: Mapping[str, ArgumentValue] | None = None,
        invariants: Sequence[str] = (),
        validations: Sequence[Validation] = (),
        labels: Sequence[str] = (),
    ) -> Call[Plan]:
        """Create a plan from an action, queued for strategize. Its own validations come after those of the action.

        `labels` say what an agent has to be able to do for the plan; the order is of no importance.
        It raises `ActionUnavailable` if the action is archived, or is not reusable and was used.
        """
        command = UseAction(
            plan_id=self.session.new_id(),
            action_name=name,
            project_links=project_links(projects),
            arguments=dict(arguments or {}),
            invariants=tuple(invariants),
            validations=tuple(validations),
            labels=name_tuple(labels) or (),
        )
        return Call(command, plan_of)

    @method
    def begin(
        self,
        action: str | Action,
        *,
        projects: Sequence[str | ProjectLink],
        arguments: Mapping[str, ArgumentValue] | None = None,
        invariants: Sequence[str] = (),
        validations: Sequence[Validation] = (),
        lease_ms: int = limits.LEASE_MS,
        labels: Sequence[str] = (),
    ) -> Call[Plan]:
        """Create a plan from an action, or its name, and start its execute phase: one request from an action to work.

        It stands for `use_action`, `start_strategize` and `proceed`, for plans that need no strategy of their own, and
        takes effect in one step: if it is refused, there is no plan. The session remembers the lease, as it does that
        of `start_execute`.
        """
        command = BeginPlan(
            plan_id=self.session.new_id(),
            action_name=action.name if isinstance(action, Action) else action,
            project_links=project_links(projects),
            arguments=dict(arguments or {}),
            invariants=tuple(invariants),
            validations=tuple(validations),
            lease_ms=lease_ms,
            labels=name_tuple(labels) or (),
        )
        return self._leasing_call(command)

    @method
    def get_plan(self, plan_id: str) -> Call[Plan]:
        """Return a plan as it is now."""
        return Call(GetPlan(plan_id), plan_of)

    @method
    def list_plans(
        self,
        *,
        phase: Phase | None = None,
        state: PlanState | None = None,
        parent_plan_id: str | None = None,
        rolled_back: bool | None = None,
        label: str | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> Call[PlanPage]:
        """Return a page of plans in order of id, which is the order of creation.

        All given conditions must hold. `rolled_back` selects applied plans that were, or were not, rolled back; `label`
        selects plans that have this label among others.
        """
        command = ListPlans(phase, state, parent_plan_id, limit, cursor, rolled_back, label)
        return Call(command)

    @method
    def start_strategize(
        self, plan_id: str, *, lease_ms: int = limits.LEASE_MS, expected_version: int | None = None
    ) -> Call[Plan]:
        """Take the lease on a plan that is queued for strategize, and return the plan.

        One of all callers succeeds, and its session remembers the lease; the others get `PlanNotReady`. A lease that is
        not renewed within `lease_ms` is lost: the plan is queued again as another attempt, and its open changesets are
        aborted.
        """
        return self._leasing_call(StartPhase(plan_id, Phase.STRATEGIZE, lease_ms, expected_version))

    @method
    def start_execute(
        self, plan_id: str, *, lease_ms: int = limits.LEASE_MS, expected_version: int | None = None
    ) -> Call[Plan]:
        """Take the lease on a plan that is queued for execute, as `start_strategize` does."""
        return self._leasing_call(StartPhase(plan_id, Phase.EXECUTE, lease_ms, expected_version))

    @method
    def start_apply(
        self, plan_id: str, *, lease_ms: int = limits.LEASE_MS, expected_version: int | None = None, tree: str = ""
    ) -> Call[Plan]:
        """Take the lease on a plan that is queued for apply, as `start_strategize` does.

        With `tree`, the real path of its root, the plan does not overtake those that wait for this tree: `TreeQueued`.
        """
        return self._leasing_call(StartPhase(plan_id, Phase.APPLY, lease_ms, expected_version, tree))

    @method
    def complete_strategize(
        self, plan_id: str, *, lease: int | None = None, expected_version: int | None = None
    ) -> Call[Plan]:
        """Complete the strategize phase; `execute_plan` queues the next one."""
        return self._releasing_call(
            CompletePhase(plan_id, Phase.STRATEGIZE, self._lease_token(plan_id, lease), expected_version)
        )

    @method
    def complete_execute(
        self, plan_id: str, *, lease: int | None = None, expected_version: int | None = None
    ) -> Call[Plan]:
        """Complete the execute phase.

        All children must be finished and merged, and all changesets closed.
        """
        return self._releasing_call(
            CompletePhase(plan_id, Phase.EXECUTE, self._lease_token(plan_id, lease), expected_version)
        )

    @method
    def complete_apply(
        self,
        plan_id: str,
        *,
        proof: Mapping[str, Digest | None],
        validations: Sequence[ValidationResult] = (),
        root: str = "",
        lease: int | None = None,
        expected_version: int | None = None,
    ) -> Call[Plan]:
        """Complete the apply phase, if `proof` covers every entry of the plan and every required validation has passed.

        `proof` has the digest that is now found at each path; None says that there is no file. It raises `NotProven` or
        `NotValidated` otherwise. A second call with the same `lease=` returns the same plan.
        """
        command = CompleteApply(
            plan_id=plan_id,
            lease=self._lease_token(plan_id, lease),
            proof=_raw_digests(proof),
            expected_version=expected_version,
            validations=tuple(validations),
            root=root,
        )
        return self._releasing_call(command)

    @method
    def constrain_apply(
        self,
        plan_id: str,
        reason: str,
        *,
        validations: Sequence[ValidationResult] = (),
        lease: int | None = None,
        expected_version: int | None = None,
    ) -> Call[Plan]:
        """End the apply phase because a required validation failed and no change of the plan is in the tree.

        `validations` has the results, among them the failed one.
        """
        token = self._lease_token(plan_id, lease)
        return self._releasing_call(ConstrainApply(plan_id, token, reason, expected_version, tuple(validations)))

    @method
    def roll_back(
        self,
        plan_id: str,
        reason: str = "",
        *,
        proof: Mapping[str, Digest | None],
        expected_version: int | None = None,
    ) -> Call[Plan]:
        """Record that the changes of an applied plan are undone, if `proof` has the earlier content at each path.

        It needs no lease, because no session works on an applied plan. A second call changes nothing and returns the
        same plan.
        """
        return Call(RollBackPlan(plan_id, reason, _raw_digests(proof), expected_version), plan_of)

    @method
    def fail_strategize(
        self, plan_id: str, error: str, *, lease: int | None = None, expected_version: int | None = None
    ) -> Call[Plan]:
        """End the strategize phase with an error; `retry_plan` or `cancel_plan` lead on."""
        return self._fail(plan_id, Phase.STRATEGIZE, error, lease, expected_version)

    @method
    def fail_execute(
        self, plan_id: str, error: str, *, lease: int | None = None, expected_version: int | None = None
    ) -> Call[Plan]:
        """End the execute phase with an error; `retry_plan`, `revert_plan` or `cancel_plan` lead on.

        Open changesets are aborted. A child that has retries left is queued again in the same step.
        """
        return self._fail(plan_id, Phase.EXECUTE, error, lease, expected_version)

    @method
    def fail_apply(
        self, plan_id: str, error: str, *, lease: int | None = None, expected_version: int | None = None
    ) -> Call[Plan]:
        """End the apply phase with an error; `retry_plan`, `revert_plan` or `cancel_plan` lead on."""
        return self._fail(plan_id, Phase.APPLY, error, lease, expected_version)

    @method
    def execute_plan(self, plan_id: str, *, expected_version: int | None = None) -> Call[Plan]:
        """Queue the execute phase of a plan whose strategize phase is complete."""
        return Call(AdvancePlan(plan_id, Phase.EXECUTE, expected_version), plan_of)

    @method
    def apply_plan(self, plan_id: str, *, expected_version: int | None = None) -> Call[Plan]:
        """Queue the apply phase of a plan whose execute phase is complete."""
        return Call(AdvancePlan(plan_id, Phase.APPLY, expected_version), plan_of)

    @method
    def renew_lease(self, plan_id: str, *, lease: int | None = None, lease_ms: int = limits.LEASE_MS) -> Call[Plan]:
        """Extend a lease to `lease_ms` from now. `LeaseLost` tells the caller to stop working on the plan."""
        return Call(RenewLease(plan_id, self._lease_token(plan_id, lease), lease_ms), plan_of)

    @method
    def retry_plan(self, plan_id: str, *, expected_version: int | None = None) -> Call[Plan]:
        """Queue an errored phase again, as another attempt."""
        return Call(RetryPlan(plan_id, expected_version), plan_of)

    @method
    def revert_plan(self, plan_id: str, reason: str, *, expected_version: int | None = None) -> Call[Plan]:
        """Move a plan back to strategize, at most three times.

        Decisions after the last checkpoint are superseded, open changesets aborted, and children cancelled.
        """
        return self._releasing_call(RevertPlan(plan_id, reason, expected_version))

    @method
    def cancel_plan(self, plan_id: str, reason: str = "", *, expected_version: int | None = None) -> Call[Plan]:
        """End a plan and all plans below it for good. Their changesets are closed and stay readable."""
        return self._releasing_call(CancelPlan(plan_id, reason, expected_version))

    @method
    def record_decision(
        self,
        plan_id: str,
        *,
        question: str,
        choice: str,
        rationale: str = "",
        parent_id: str | None = None,
        checkpoint: bool = False,
        lease: int | None = None,
    ) -> Call[Decision]:
        """Add a decision to the plan's tree of decisions. A revert supersedes the ones after the last checkpoint."""
        command = RecordDecision(
            plan_id=plan_id,
            decision_id=self.session.new_id(),
            lease=self._lease_token(plan_id, lease),
            question=question,
            choice=choice,
            rationale=rationale,
            parent_id=parent_id,
            checkpoint=checkpoint,
        )
        return Call(command, lambda answered: answered.reply.decision)

    @method
    def list_decisions(self, plan_id: str, *, limit: int = 100, cursor: str | None = None) -> Call[DecisionPage]:
        """Return a page of a plan's decisions, superseded ones included."""
        return Call(ListDecisions(plan_id, limit, cursor))

    def _fail(
        self, plan_id: str, phase: Phase, error: str, lease: int | None, expected_version: int | None
    ) -> Call[Plan]:
        """Return a call that ends a phase with an error; a long message is cut."""
        reason = str(error)[: limits.ERROR_CHARS_MAX]
        return self._releasing_call(
            FailPhase(plan_id, phase, self._lease_token(plan_id, lease), reason, expected_version)
        )


class BufferedPlans(PlanCalls, BufferedService):
    """The calls on plans inside a batch or a transaction."""


class PlanApi(PlanCalls, BlockingService):
    """The calls on plans, blocking, as workflows use them. Any number of threads may use it.

    The facade `PlanLifecycleService` derives from it and adds the workflows.
    """


def _raw_digests(proof: Mapping[str, Digest | None]) -> dict[str, bytes | None]:
    """Return a proof with raw digests, as it is sent; `InvalidArgument` if it has anything but `Digest` or None."""
    for digest in proof.values():
        require_instance(digest, (Digest, type(None)), "a proof has the Digest found at each path, or None")
    return {path: digest.value if digest else None for path, digest in proof.items()}
