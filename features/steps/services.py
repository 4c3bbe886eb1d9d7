"""Which services a scenario is about: those of a runtime of its own, or their unsynchronised twin."""

from __future__ import annotations

from behave import given
from behave.runner import Context

import stepwell as sw
from tests.doubles.unsynchronised import Unsynchronised
from tests.support.features.schedules import AtOnce, FirstHeld


@given("the runtime")
def step_runtime(context: Context) -> None:
    start_runtime(context, sw.TierBudget())


@given("the runtime with a hot budget of {tokens:d} tokens")
def step_runtime_with_budget(context: Context, tokens: int) -> None:
    start_runtime(context, sw.TierBudget(hot_tokens=tokens))


@given("the twin")
def step_twin(context: Context) -> None:
    """Not held anywhere: what comes of it is certain without that."""
    context.services, context.schedule = Unsynchronised(), AtOnce()


@given("the twin with a hot budget of {tokens:d} tokens")
def step_twin_with_budget(context: Context, tokens: int) -> None:
    context.services, context.schedule = Unsynchronised(budget=sw.TierBudget(hot_tokens=tokens)), AtOnce()


@given('the twin held at "{point}"')
def step_twin_held(context: Context, point: str) -> None:
    hold_twin(context, point, sw.TierBudget())


@given('the twin held at "{point}" with a hot budget of {tokens:d} tokens')
def step_twin_held_with_budget(context: Context, point: str, tokens: int) -> None:
    hold_twin(context, point, sw.TierBudget(hot_tokens=tokens))


def start_runtime(context: Context, budget: sw.TierBudget) -> None:
    context.runtime = sw.Runtime.start(workers=0, budget=budget, log_level="error")
    context.add_cleanup(context.runtime.close)
    context.services = context.runtime.client()
    context.add_cleanup(context.services.close)
    context.schedule = AtOnce()


def hold_twin(context: Context, point: str, budget: sw.TierBudget) -> None:
    context.schedule = FirstHeld(point)
    context.services = Unsynchronised(budget=budget, seam=context.schedule.seam)
