"""`PlanLifecycleService`: actions and plans, and agents that work on the children of a plan.

Every call on plans is inherited from `PlanApi`; this facade adds the one workflow, `work_on`.
"""

from __future__ import annotations

from collections.abc import Callable

from stepwell import limits
from stepwell.client.api.plans import PlanApi
from stepwell.client.execution import WorkContext
from stepwell.client.workflows.agent import SubplanAgent, WorkDone
from stepwell.domain.plans.model import Plan

Run = Callable[[Plan, WorkContext], object]
"""A function that works on a child. Its return value is ignored; an exception is the reason why the child failed."""


class PlanLifecycleService(PlanApi):
    """Actions and plans: create, start, complete, fail, retry, revert and cancel them, and record decisions.

    Threads and processes: any number of threads may use one service, and any number of processes their own. Each call
    is one request to the manager, the only process that changes plans, and takes effect there in one step, in one total
    order with the calls of all other sessions. So there is no lock in the client.

    Guarantees: if two sessions create one name or start one phase, one succeeds and the other gets a typed refusal,
    which changes nothing. A phase is started under a lease, which the session remembers; completing or failing it needs
    that lease, or the token given as `lease=`. Every session sees all actions; a plan is seen by the sessions that may
    see all of its projects.
    """

    def work_on(
        self,
        parent_plan_id: str,
        run: Run,
        *,
        straight: bool = True,
        lease_ms: int = limits.LEASE_MS,
        wait_s: float | None = None,
    ) -> WorkDone:
        """Work on the children of a plan in this thread, as one of any number of agents, until all are over.

        `run(plan, context)` is called for each child that the manager gives to this agent, under the child's lease,
        which is renewed meanwhile. When `run` returns, the child is complete; when it raises, the child has failed,
        with the exception as the reason. If the child is taken away meanwhile, for instance cancelled, its context and
        `context.check()` raise `LeaseLost`; the child is then neither completed nor failed by this agent. Without
        `straight`, `run` is called for the strategize phase, too; `plan.phase` says which one it is.

        While no child is ready, it waits for the other agents, at most for `wait_s` at a time. Returns what this agent
        has completed, failed and lost.
        """
        return SubplanAgent(self, parent_plan_id, run, lease_ms, straight=straight, make_context=WorkContext).work(
            wait_s
        )
