"""A deliberately broken double: the three services as plain dicts and lists, with no synchronisation at all.

A test of concurrency that has never failed shows nothing. This twin has the method names, the values and the errors of
the real services, and every race that they exist to make impossible: check-then-act on a dict, a budget that is
enforced in a second step, a move that is a `pop` and later an insert, a list whose last element is somebody else's.
A scenario that runs against both must pass with the runtime and fail with this one.

Each method calls its `seam` with a name wherever another caller could come in between: `"create_action: checked, not
stored"`. By default it does nothing; a test gives one that waits there, so that the interleaving is forced and the
failure comes every time, not sometimes.

Not for use as a fake in other tests, as a fallback without a manager, or as anything but a bad example: it loses data
by design. It has only what the scenarios use, its scope is one process, and pickled it is a copy of its own.
"""

from __future__ import annotations

from stepwell.domain.tiers.model import TierBudget
from tests.doubles.unsynchronised.execution import PlanExecutionContext
from tests.doubles.unsynchronised.plans import PlanLifecycleService
from tests.doubles.unsynchronised.seam import Seam, no_seam
from tests.doubles.unsynchronised.tiers import ContextTierService

__all__ = ["ContextTierService", "PlanExecutionContext", "PlanLifecycleService", "Seam", "Unsynchronised", "no_seam"]


class Unsynchronised:
    """The services of a `stepwell.Client`, for callers that share one object without any lock."""

    def __init__(self, *, budget: TierBudget | None = None, seam: Seam = no_seam) -> None:
        self.tiers = ContextTierService(budget=budget, seam=seam)
        self.plans = PlanLifecycleService(seam=seam)
        self._seam = seam
        self._contexts: dict[str, PlanExecutionContext] = {}

    def execution(self, plan_id: str) -> PlanExecutionContext:
        """Return the plan's context: one for all callers that execute it, which is half of what goes wrong with it."""
        context = self._contexts.get(plan_id)
        if context is None:
            self._seam("execution: looked up, not kept")
            context = self._contexts[plan_id] = PlanExecutionContext(plan_id, seam=self._seam)
        return context

    def close(self) -> None:
        """Do nothing: there is no resource to release."""
