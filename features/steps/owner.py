"""The guard: the state belongs to one process and one thread."""

from __future__ import annotations

import inspect
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import multiprocess
from behave import given, then, when
from behave.runner import Context
from multiprocess.connection import Connection

import stepwell as sw
from stepwell.domain.tiers.commands import GetMetrics
from stepwell.domain.verdict import Origin
from stepwell.manager.state_owner import StateOwner
from tests.support.features.schedules import attempt
from tests.support.wait import PATIENCE_SECONDS


@given("the state as a manager owns it")
def step_owner(context: Context) -> None:
    context.owner = StateOwner()


@when("the thread that made it uses it")
def step_use(context: Context) -> None:
    context.outcome = attempt(partial(use, context.owner))


@when("another thread uses it")
def step_use_in_thread(context: Context) -> None:
    with ThreadPoolExecutor(1) as pool:
        context.outcome = pool.submit(attempt, partial(use, context.owner)).result()


@when("a forked process uses it")
def step_use_in_fork(context: Context) -> None:
    """Forked, so that the child really has the same object and the same thread."""
    fork = multiprocess.get_context("fork")
    ours, theirs = fork.Pipe()
    process = fork.Process(target=answer, args=(theirs, context.owner))
    process.start()
    theirs.close()
    try:
        assert ours.poll(PATIENCE_SECONDS), "the child did not answer"
        context.outcome = ours.recv()
    finally:
        process.join()
        process.close()
        ours.close()


@then("it gets its answer")
def step_answered(context: Context) -> None:
    assert not isinstance(context.outcome, Exception), repr(context.outcome)


@then("it gets NotOwner, which says what to do instead")
def step_refused(context: Context) -> None:
    assert type(context.outcome) is sw.NotOwner, repr(context.outcome)
    assert "send requests instead, through stepwell.connect(address)" in context.outcome.message


@then("the class docstrings say who may call")
def step_documented(context: Context) -> None:
    """The services are for everybody and the state is for one: each says so where it is looked up."""
    del context
    for service in (sw.ContextTierService, sw.PlanLifecycleService, sw.PlanExecutionContext, sw.Client):
        assert "any number of threads" in (inspect.getdoc(service) or ""), service
    assert "Single-threaded by design, and enforced" in (inspect.getdoc(StateOwner) or "")


def use(owner: StateOwner) -> None:
    owner.execute(GetMetrics(), Origin("somebody", 0))


def answer(pipe: Connection, owner: StateOwner) -> None:
    pipe.send(attempt(partial(use, owner)))
