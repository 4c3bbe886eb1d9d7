"""Entirely or not at all."""

from __future__ import annotations

from functools import partial

from behave import then, when
from behave.runner import Context

import stepwell as sw
from stepwell.domain.tiers.model import FragmentRow
from tests.support.features.outcomes import no_errors
from tests.support.features.schedules import attempt
from tests.support.features.work import PROJECT


def pair(generation: int) -> list[sw.Fragment]:
    """Two fragments that belong together: their tokens say to which generation."""
    return [sw.Fragment(fragment_id=side, project=PROJECT, body=side, tokens=generation) for side in ("left", "right")]


@when("{callers:d} threads replace a pair {times:d} times each, in transactions, while others read it")
def step_replace_pairs(context: Context, callers: int, times: int) -> None:
    def replace(caller: int) -> None:
        for number in range(times):
            with context.services.transaction() as transaction:
                for fragment in pair(1 + caller * times + number):
                    transaction.tiers.store(fragment)

    readings: list[tuple[FragmentRow, ...]] = []
    context.readings = readings
    context.schedule.look = lambda: readings.append(context.services.tiers.list(project=PROJECT).rows)
    context.outcomes = context.schedule.run([partial(replace, caller) for caller in range(callers)])


@then("nobody ever saw half a pair")
def step_whole_pairs(context: Context) -> None:
    no_errors(context.outcomes)
    seen = {tuple(row.tokens for row in rows) for rows in context.readings}
    halves = [tokens for tokens in seen if tokens and (len(tokens) != 2 or tokens[0] != tokens[1])]
    assert not halves, halves


@when("a transaction stores a fragment and promotes one that does not exist")
def step_abort(context: Context) -> None:
    def transact() -> None:
        with context.services.transaction() as transaction:
            transaction.tiers.store(sw.Fragment(fragment_id="new", project=PROJECT, body="new"))
            transaction.tiers.promote("missing", project=PROJECT)

    context.before = context.services.status()
    context.outcomes = [attempt(transact)]


@when("a batch stores a fragment and promotes one that does not exist")
def step_batch(context: Context) -> None:
    with context.services.batch() as batch:
        pending = [
            batch.tiers.store(sw.Fragment(fragment_id="new", project=PROJECT, body="new")),
            batch.tiers.promote("missing", project=PROJECT),
        ]
    context.outcomes = [attempt(each.result) for each in pending]


@then("it is refused with TransactionAborted, which says which command and why")
def step_aborted(context: Context) -> None:
    (error,) = context.outcomes
    assert type(error) is sw.TransactionAborted, repr(error)
    assert error.details["index"] == 1, error.details
    assert "missing" in error.message, error.message


@then("nothing changed, not even the revision")
def step_unchanged(context: Context) -> None:
    after = context.services.status()
    assert (after.revision, after.metrics) == (context.before.revision, context.before.metrics), after


@then("the fragment is stored and the other command got NotFound")
def step_each_outcome(context: Context) -> None:
    placed, refusal = context.outcomes
    assert isinstance(placed, sw.types.FragmentPlaced), repr(placed)
    assert type(refusal) is sw.NotFound, repr(refusal)
    assert context.services.tiers.get("new", project=PROJECT).text == "new"
