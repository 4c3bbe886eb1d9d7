"""`PlanLifecycleService`: actions, plans and their leases, subplans and decisions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ulid import ULID

from stepwell import limits
from stepwell.client.calls import Answered, Answering, Call, Deferring, Service, method
from stepwell.domain.checks import require_instance
from stepwell.domain.commands import Command
from stepwell.domain.commands.plans import (
    AdvancePlan,
    ArchiveAction,
    CancelPlan,
    CompleteApply,
    CompletePhase,
    ConstrainApply,
    CreateAction,
    DeclareSubplans,
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
    StartPhase,
    SubplanSpec,
    UseAction,
)
from stepwell.domain.content import Digest
from stepwell.domain.plan import (
    Action,
    Argument,
    ArgumentValue,
    Decision,
    MergeStrategy,
    Phase,
    Plan,
    PlanState,
    ProjectLink,
    SubplanMode,
)
from stepwell.domain.replies import ActionPage, DecisionPage, PlanFound, PlanPage


class PlanCalls(Service):
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
        )
        return Call(command, lambda answered: answered.reply.action)

    @method
    def get_action(self, name: str) -> Call[Action]:
        """One action, by any spelling of its name."""
        return Call(GetAction(name), lambda answered: answered.reply.action)

    @method
    def list_actions(self, *, limit: int = 100, cursor: str | None = None) -> Call[ActionPage]:
        """A page of actions in order of name."""
        return Call(ListActions(limit, cursor), lambda answered: answered.reply)

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
    ) -> Call[Plan]:
        """Make a plan of an action: strategize/queued."""
        command = UseAction(
            plan_id=str(ULID()),
            action_name=name,
            project_links=_links(projects),
            arguments=dict(arguments or {}),
            invariants=tuple(invariants),
        )
        return Call(command, _plan)

    @method
    def get_plan(self, plan_id: str) -> Call[Plan]:
        """A plan as it is now."""
        return Call(GetPlan(plan_id), _plan)

    @method
    def list_plans(
        self,
        *,
        phase: Phase | None = None,
        state: PlanState | None = None,
        parent_plan_id: str | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> Call[PlanPage]:
        """A page of plans in order of id, which is the order of time."""
        command = ListPlans(phase, state, parent_plan_id, limit, cursor)
        return Call(command, lambda answered: answered.reply)

    @method
    def start_strategize(
        self, plan_id: str, *, lease_ms: int = limits.LEASE_MS, expected_version: int | None = None
    ) -> Call[Plan]:
        """Take the lease on a queued plan; of all who call, one wins. This client remembers it."""
        return self._start(StartPhase(plan_id, Phase.STRATEGIZE, lease_ms, expected_version))

    @method
    def start_execute(
        self, plan_id: str, *, lease_ms: int = limits.LEASE_MS, expected_version: int | None = None
    ) -> Call[Plan]:
        """Take the lease on a plan that is queued for execution."""
        return self._start(StartPhase(plan_id, Phase.EXECUTE, lease_ms, expected_version))

    @method
    def start_apply(
        self, plan_id: str, *, lease_ms: int = limits.LEASE_MS, expected_version: int | None = None
    ) -> Call[Plan]:
        """Take the lease on a plan that is queued to be applied."""
        return self._start(StartPhase(plan_id, Phase.APPLY, lease_ms, expected_version))

    @method
    def complete_strategize(
        self, plan_id: str, *, lease: int | None = None, expected_version: int | None = None
    ) -> Call[Plan]:
        """Strategize is done; `execute_plan` queues what comes next."""
        return self._finish(CompletePhase(plan_id, Phase.STRATEGIZE, self._lease(plan_id, lease), expected_version))

    @method
    def complete_execute(
        self, plan_id: str, *, lease: int | None = None, expected_version: int | None = None
    ) -> Call[Plan]:
        """Execute is done: children finished, changesets closed."""
        return self._finish(CompletePhase(plan_id, Phase.EXECUTE, self._lease(plan_id, lease), expected_version))

    @method
    def complete_apply(
        self,
        plan_id: str,
        *,
        proof: Mapping[str, Digest | None],
        lease: int | None = None,
        expected_version: int | None = None,
    ) -> Call[Plan]:
        """Applied, if `proof`, the digest now found at each path (None: no file), covers every entry."""
        for digest in proof.values():
            require_instance(digest, (Digest, type(None)), "a proof has the Digest found at each path, or None")
        found = {path: digest.value if digest else None for path, digest in proof.items()}
        return self._finish(CompleteApply(plan_id, self._lease(plan_id, lease), found, expected_version))

    @method
    def constrain_apply(
        self, plan_id: str, reason: str, *, lease: int | None = None, expected_version: int | None = None
    ) -> Call[Plan]:
        """A required validation failed."""
        return self._finish(ConstrainApply(plan_id, self._lease(plan_id, lease), reason, expected_version))

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
        return Call(AdvancePlan(plan_id, Phase.EXECUTE, expected_version), _plan)

    @method
    def apply_plan(self, plan_id: str, *, expected_version: int | None = None) -> Call[Plan]:
        """Queue the application of a plan whose execution is complete."""
        return Call(AdvancePlan(plan_id, Phase.APPLY, expected_version), _plan)

    @method
    def renew_lease(self, plan_id: str, *, lease: int | None = None, lease_ms: int = limits.LEASE_MS) -> Call[Plan]:
        """Keep a held lease for longer."""
        return Call(RenewLease(plan_id, self._lease(plan_id, lease), lease_ms), _plan)

    @method
    def retry_plan(self, plan_id: str, *, expected_version: int | None = None) -> Call[Plan]:
        """An errored phase once more, as another attempt."""
        return Call(RetryPlan(plan_id, expected_version), _plan)

    @method
    def revert_plan(self, plan_id: str, reason: str, *, expected_version: int | None = None) -> Call[Plan]:
        """Back to strategize, at most three times."""
        return self._finish(RevertPlan(plan_id, reason, expected_version))

    @method
    def cancel_plan(self, plan_id: str, reason: str = "", *, expected_version: int | None = None) -> Call[Plan]:
        """End a plan and everybody below it, for good. What it changed stays readable."""
        return self._finish(CancelPlan(plan_id, reason, expected_version))

    @method
    def declare_subplans(
        self,
        plan_id: str,
        children: Sequence[SubplanSpec],
        *,
        mode: SubplanMode = SubplanMode.PARALLEL,
        max_parallel: int = limits.MAX_PARALLEL,
        fail_fast: bool = False,
        merge: MergeStrategy = MergeStrategy.GIT_THREE_WAY,
        lease: int | None = None,
    ) -> Call[Plan]:
        """Make the children of an executing plan; `subplan()` describes one."""
        command = DeclareSubplans(
            plan_id=plan_id,
            lease=self._lease(plan_id, lease),
            children=tuple(children),
            mode=mode,
            max_parallel=max_parallel,
            fail_fast=fail_fast,
            merge=merge,
        )
        return Call(command, _plan)

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
            lease=self._lease(plan_id, lease),
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
        return Call(ListDecisions(plan_id, limit, cursor), lambda answered: answered.reply)

    def _lease(self, plan_id: str, given: int | None) -> int | None:
        return self.session.lease(plan_id, given)

    def _start(self, command: StartPhase) -> Call[Plan]:
        return Call(command, _remembering(self.session.leases))

    def _finish(self, command: Command[PlanFound]) -> Call[Plan]:
        return Call(command, _forgetting(self.session.leases))

    def _fail(
        self, plan_id: str, phase: Phase, error: str, lease: int | None, expected_version: int | None
    ) -> Call[Plan]:
        reason = str(error)[: limits.ERROR_CHARS_MAX]
        return self._finish(FailPhase(plan_id, phase, self._lease(plan_id, lease), reason, expected_version))


class DeferredPlans(PlanCalls, Deferring):
    """Plans inside a batch or a transaction."""


class PlanLifecycleService(PlanCalls, Answering):
    """Actions and plans, safe from any number of threads and processes.

    There is no lock: each call is a request to the manager, the only process that touches plans, and takes effect
    there in one step, in one total order with everybody else's. Of two who create one name or start one phase, one
    wins and the other gets a typed refusal. Actions are everybody's; plans are seen by sessions that may see all
    their projects.
    """


def subplan(
    action_name: str,
    *,
    alias: str,
    arguments: Mapping[str, ArgumentValue] | None = None,
    projects: Sequence[str | ProjectLink] = (),
    depends_on: Sequence[str] = (),
) -> SubplanSpec:
    """Describe a child for `declare_subplans`. Without projects, it works on its parent's."""
    return SubplanSpec(
        alias=alias,
        plan_id=str(ULID()),
        action_name=action_name,
        arguments=dict(arguments or {}),
        project_links=_links(projects),
        depends_on=tuple(depends_on),
    )


def _links(projects: Sequence[str | ProjectLink]) -> tuple[ProjectLink, ...]:
    given = (projects,) if isinstance(projects, str) else projects
    return tuple(each if isinstance(each, ProjectLink) else ProjectLink(each) for each in given)


def _plan(answered: Answered[PlanFound]) -> Plan:
    return answered.reply.plan


def _remembering(leases: dict[str, int]) -> Callable[[Answered[PlanFound]], Plan]:
    def finish(answered: Answered[PlanFound]) -> Plan:
        plan = answered.reply.plan
        if plan.lease is not None:
            leases[plan.plan_id] = plan.lease.token
        return plan

    return finish


def _forgetting(leases: dict[str, int]) -> Callable[[Answered[PlanFound]], Plan]:
    def finish(answered: Answered[PlanFound]) -> Plan:
        leases.pop(answered.reply.plan.plan_id, None)
        return answered.reply.plan

    return finish
