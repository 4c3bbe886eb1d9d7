"""The calls on actions, plans and their leases, subplans and decisions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ulid import ULID

from stepwell import limits
from stepwell.client.api.plan_leases import plan_of, project_links
from stepwell.client.api.service import BlockingService, BufferedService, method
from stepwell.client.api.subplans import SubplanCalls
from stepwell.client.session.calls import Call
from stepwell.domain.checks import require_instance
from stepwell.domain.plans.commands import (
    AdvancePlan,
    ArchiveAction,
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


class PlanCalls(SubplanCalls):
    """The calls on actions and plans; what they give depends on the service that has them."""

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
        """Create a template. An existing name is refused with `AlreadyExists`, never overwritten."""
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
        """One action, by any spelling of its name."""
        return Call(GetAction(name), lambda answered: answered.reply.action)

    @method
    def list_actions(self, *, limit: int = 100, cursor: str | None = None) -> Call[ActionPage]:
        """A page of actions in order of name."""
        return Call(ListActions(limit, cursor))

    @method
    def archive_action(self, name: str) -> Call[Action]:
        """Make an action unusable; its plans go on."""
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
    ) -> Call[Plan]:
        """Make a plan of an action: strategize/queued. Its validations come after those of the action."""
        command = UseAction(
            plan_id=str(ULID()),
            action_name=name,
            project_links=project_links(projects),
            arguments=dict(arguments or {}),
            invariants=tuple(invariants),
            validations=tuple(validations),
        )
        return Call(command, plan_of)

    @method
    def get_plan(self, plan_id: str) -> Call[Plan]:
        """A plan as it is now."""
        return Call(GetPlan(plan_id), plan_of)

    @method
    def list_plans(
        self,
        *,
        phase: Phase | None = None,
        state: PlanState | None = None,
        parent_plan_id: str | None = None,
        rolled_back: bool | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> Call[PlanPage]:
        """A page of plans in order of id, which is the order of time."""
        command = ListPlans(phase, state, parent_plan_id, limit, cursor, rolled_back)
        return Call(command)

    @method
    def start_strategize(
        self, plan_id: str, *, lease_ms: int = limits.LEASE_MS, expected_version: int | None = None
    ) -> Call[Plan]:
        """Take the lease on a queued plan; of all who call, one wins. This client remembers it."""
        return self._leasing_call(StartPhase(plan_id, Phase.STRATEGIZE, lease_ms, expected_version))

    @method
    def start_execute(
        self, plan_id: str, *, lease_ms: int = limits.LEASE_MS, expected_version: int | None = None
    ) -> Call[Plan]:
        """Take the lease on a plan that is queued for execution."""
        return self._leasing_call(StartPhase(plan_id, Phase.EXECUTE, lease_ms, expected_version))

    @method
    def start_apply(
        self, plan_id: str, *, lease_ms: int = limits.LEASE_MS, expected_version: int | None = None
    ) -> Call[Plan]:
        """Take the lease on a plan that is queued to be applied."""
        return self._leasing_call(StartPhase(plan_id, Phase.APPLY, lease_ms, expected_version))

    @method
    def complete_strategize(
        self, plan_id: str, *, lease: int | None = None, expected_version: int | None = None
    ) -> Call[Plan]:
        """Strategize is done; `execute_plan` queues what comes next."""
        return self._releasing_call(
            CompletePhase(plan_id, Phase.STRATEGIZE, self._lease_token(plan_id, lease), expected_version)
        )

    @method
    def complete_execute(
        self, plan_id: str, *, lease: int | None = None, expected_version: int | None = None
    ) -> Call[Plan]:
        """Execute is done: children finished, changesets closed."""
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
        """Applied, if `proof`, the digest now found at each path (None: no file), covers every entry.

        Every required validation has a result that passed. Called again with the same `lease=`, it gives the same plan.
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
        """A required validation failed, and nothing of the plan is in the tree."""
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
        """What an applied plan changed is undone, if `proof` has, at each path, what was there before it.

        It needs no lease: nobody works on an applied plan. A second call changes nothing, and gives the same.
        """
        return Call(RollBackPlan(plan_id, reason, _raw_digests(proof), expected_version), plan_of)

    @method
    def fail_strategize(
        self, plan_id: str, error: str, *, lease: int | None = None, expected_version: int | None = None
    ) -> Call[Plan]:
        """Strategize ended in an error; `retry_plan` and `cancel_plan` lead out."""
        return self._fail(plan_id, Phase.STRATEGIZE, error, lease, expected_version)

    @method
    def fail_execute(
        self, plan_id: str, error: str, *, lease: int | None = None, expected_version: int | None = None
    ) -> Call[Plan]:
        """Execute ended in an error; `retry_plan`, `revert_plan` and `cancel_plan` lead out."""
        return self._fail(plan_id, Phase.EXECUTE, error, lease, expected_version)

    @method
    def fail_apply(
        self, plan_id: str, error: str, *, lease: int | None = None, expected_version: int | None = None
    ) -> Call[Plan]:
        """Apply ended in an error; `retry_plan`, `revert_plan` and `cancel_plan` lead out."""
        return self._fail(plan_id, Phase.APPLY, error, lease, expected_version)

    @method
    def execute_plan(self, plan_id: str, *, expected_version: int | None = None) -> Call[Plan]:
        """Queue the execution of a plan whose strategy is complete."""
        return Call(AdvancePlan(plan_id, Phase.EXECUTE, expected_version), plan_of)

    @method
    def apply_plan(self, plan_id: str, *, expected_version: int | None = None) -> Call[Plan]:
        """Queue the application of a plan whose execution is complete."""
        return Call(AdvancePlan(plan_id, Phase.APPLY, expected_version), plan_of)

    @method
    def renew_lease(self, plan_id: str, *, lease: int | None = None, lease_ms: int = limits.LEASE_MS) -> Call[Plan]:
        """Keep a held lease for longer."""
        return Call(RenewLease(plan_id, self._lease_token(plan_id, lease), lease_ms), plan_of)

    @method
    def retry_plan(self, plan_id: str, *, expected_version: int | None = None) -> Call[Plan]:
        """An errored phase once more, as another attempt."""
        return Call(RetryPlan(plan_id, expected_version), plan_of)

    @method
    def revert_plan(self, plan_id: str, reason: str, *, expected_version: int | None = None) -> Call[Plan]:
        """Back to strategize, at most three times."""
        return self._releasing_call(RevertPlan(plan_id, reason, expected_version))

    @method
    def cancel_plan(self, plan_id: str, reason: str = "", *, expected_version: int | None = None) -> Call[Plan]:
        """End a plan and everybody below it, for good. What it changed stays readable."""
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
        """Add to a plan's tree of decisions. A revert supersedes what comes after the last checkpoint."""
        command = RecordDecision(
            plan_id=plan_id,
            decision_id=str(ULID()),
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
        """A page of a plan's decisions, superseded ones included."""
        return Call(ListDecisions(plan_id, limit, cursor))

    def _fail(
        self, plan_id: str, phase: Phase, error: str, lease: int | None, expected_version: int | None
    ) -> Call[Plan]:
        reason = str(error)[: limits.ERROR_CHARS_MAX]
        return self._releasing_call(
            FailPhase(plan_id, phase, self._lease_token(plan_id, lease), reason, expected_version)
        )


class BufferedPlans(PlanCalls, BufferedService):
    """Plans inside a batch or a transaction."""


class PlanApi(PlanCalls, BlockingService):
    """Plans, answered at once: all that other parts of the client ask of them."""


def _raw_digests(proof: Mapping[str, Digest | None]) -> dict[str, bytes | None]:
    for digest in proof.values():
        require_instance(digest, (Digest, type(None)), "a proof has the Digest found at each path, or None")
    return {path: digest.value if digest else None for path, digest in proof.items()}
