"""`PlanLifecycleService`: actions and plans, and agents that work on the children of a plan.

Every call on plans is inherited from `PlanApi`; this facade adds the one workflow, `work_on`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from stepwell import limits
from stepwell.client.api.plan_leases import name_tuple
from stepwell.client.api.plans import PlanApi
from stepwell.client.execution import WorkContext
from stepwell.client.workflows.agent import OnError, SubplanAgent, WorkDone
from stepwell.domain.plans.abilities import canonical_abilities
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
        on_error: OnError = "continue",
        actors: Sequence[str] | None = None,
        labels: Sequence[str] | None = None,
        read_only: bool | None = None,
    ) -> WorkDone:
        """Work on the children of a plan in this thread, as one of any number of agents, until all are over.

        `actors`, `labels` and `read_only` say what this agent can do, as in `start_ready`: it is not offered what it
        cannot do. With `actors` and without `straight`, it does only the phases whose actor it is; a strategy for
        another actor is left to agents that work as this one. The agent ends when it can do nothing of what is left, by
        its abilities or by the scope of its session; the result's `is_for_others` says so. A child that no agent can
        do stays queued, and so do children that come after it, for which agents then wait: `wait_s` bounds that.

        `run(plan, context)` is called for each child that the manager gives to this agent, under the child's lease,
        which is renewed meanwhile. When `run` returns, the child is complete; when it raises, the child has failed,
        with the exception as the reason. If the child is taken away meanwhile, for instance cancelled, its context and
        `context.check()` raise `LeaseLost`; the child is then neither completed nor failed by this agent. Without
        `straight`, `run` is called for the strategize phase, too; `plan.phase` says which one it is.

        `on_error` says what follows when `run` raises. With "continue", the default, the traceback is logged (an error
        event `child.failed` on stderr) and the agent goes on to the next child, so that one child that cannot be done
        does not stop the work on the others. With "raise", the exception is raised after the child has been reported as
        failed; the children that are left are for other agents, or for another call.

        A child with retries left is queued again. It is for another agent first: the session that failed it gets it
        again only if no other session that can do it has asked for children of this plan, or if none took it within
        some seconds (`limits.RETRY_HEAD_START_MS`).

        While no child is ready, it waits for the other agents, at most for `wait_s` at a time. Returns what this agent
        has completed, failed and lost.
        """
        agent = SubplanAgent(
            self,
            parent_plan_id,
            run,
            lease_ms,
            straight=straight,
            abilities=canonical_abilities(name_tuple(actors), name_tuple(labels), read_only=read_only),
            on_error=on_error,
            make_context=WorkContext,
        )
        return agent.work(wait_s)
