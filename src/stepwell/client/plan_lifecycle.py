"""`PlanLifecycleService`: actions and plans, and agents that work on them."""

from __future__ import annotations

from collections.abc import Callable

from stepwell import limits
from stepwell.client.api.plans import PlanApi
from stepwell.client.execution import WorkContext
from stepwell.client.workflows.agent import SubplanAgent, WorkDone
from stepwell.domain.plans.model import Plan

Run = Callable[[Plan, WorkContext], object]
"""What is done for a child. What it returns does not matter; what it raises is why the child failed."""


class PlanLifecycleService(PlanApi):
    """Actions and plans, safe from any number of threads and processes.

    There is no lock: each call is a request to the manager, the only process that touches plans, and takes effect
    there in one step, in one total order with everybody else's. Of two who create one name or start one phase, one
    wins and the other gets a typed refusal. Actions are everybody's; plans are seen by sessions that may see all
    their projects.
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
        """Work on the children of a plan, as one of any number of agents, until everything is over.

        `run(plan, context)` is called for each child that this agent is given, under its lease, which is renewed
        meanwhile. When it returns, the child is complete; when it raises, the child has failed, with what was raised.
        A child that is taken away, cancelled say, raises `LeaseLost` from whatever `run` does with its context, and
        from `context.check()`; it is neither completed nor failed then. Without `straight`, `run` is called for a
        child's strategy too, and `plan.phase` says which it is.

        While nothing is ready it waits for what the others do, at most for `wait_s` at a time.
        """
        return SubplanAgent(self, parent_plan_id, run, lease_ms, straight=straight, make_context=WorkContext).work(
            wait_s
        )
