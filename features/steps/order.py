"""One total order, numbered by revision."""

from __future__ import annotations

from functools import partial

from behave import then, when
from behave.runner import Context

import stepwell as sw
from tests.support.features.outcomes import no_errors
from tests.support.features.work import PROJECT, make_fragments


@when("{callers:d} clients take turns in storing, {rounds:d} rounds, each after the one before was answered")
def step_take_turns(context: Context, callers: int, rounds: int) -> None:
    clients = [context.runtime.client() for _ in range(callers)]
    for client in clients:
        context.add_cleanup(client.close)
    fragments = make_fragments("turn", callers * rounds, 1)
    context.revisions = [
        clients[turn % callers].tiers.store(fragment).revision for turn, fragment in enumerate(fragments)
    ]


@when("{callers:d} threads each store {count:d} fragments as fast as they can")
def step_store_fast(context: Context, callers: int, count: int) -> None:
    def store(caller: int) -> list[int]:
        tiers: sw.ContextTierService = context.services.tiers
        return [tiers.store(fragment).revision for fragment in make_fragments(f"{caller}", count, 1)]

    context.outcomes = context.schedule.run([partial(store, caller) for caller in range(callers)])


@when("one client writes a body {times:d} times, and after each time another one reads it")
def step_write_and_read(context: Context, times: int) -> None:
    reader = context.runtime.client()
    context.add_cleanup(reader.close)
    pairs: list[tuple[tuple[int, str], tuple[int, str]]] = []
    context.pairs = pairs
    for number in range(times):
        body = f"body {number}"
        placed = context.services.tiers.store(sw.Fragment(fragment_id="a", project=PROJECT, body=body))
        found = reader.tiers.get("a", project=PROJECT)
        pairs.append(((placed.revision, body), (found.revision, found.text)))


@then("their revisions follow each other without a gap")
def step_consecutive(context: Context) -> None:
    first = context.revisions[0]
    assert context.revisions == [*range(first, first + len(context.revisions))], context.revisions


@then("no revision is given twice and each thread's own grow")
def step_unique(context: Context) -> None:
    each: list[list[int]] = no_errors(context.outcomes)
    everyone = [revision for revisions in each for revision in revisions]
    assert len(set(everyone)) == len(everyone)
    assert all(revisions == sorted(revisions) for revisions in each)


@then("every read gave what was written last")
def step_read_last(context: Context) -> None:
    assert all(written == found for written, found in context.pairs), context.pairs
