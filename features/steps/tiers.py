"""Fragments under concurrent callers."""

from __future__ import annotations

from collections import Counter
from functools import partial

from behave import given, then, when
from behave.runner import Context

import stepwell as sw
from tests.support.features import work
from tests.support.features.outcomes import no_errors
from tests.support.features.processes import in_processes
from tests.support.features.work import PROJECT, Reading


@given("{count:d} fragments of {tokens:d} tokens are in {tier:w}")
def step_fill(context: Context, count: int, tokens: int, tier: str) -> None:
    context.fragments = work.make_fragments("before", count, tokens)
    for fragment in context.fragments:
        context.services.tiers.store(fragment, tier=sw.Tier(tier))


@when("{callers:d} threads each store {count:d} fragments of {tokens:d} tokens at the same moment")
def step_store_in_threads(context: Context, callers: int, count: int, tokens: int) -> None:
    shares = [work.make_fragments(f"thread-{caller}", count, tokens) for caller in range(callers)]
    watch_tiers(context)
    context.outcomes = context.schedule.run([partial(work.store_and_read, context.services, share) for share in shares])
    context.fragments = [*context.fragments, *(fragment for share in shares for fragment in share)]


@when("{callers:d} processes each store {count:d} fragments of {tokens:d} tokens at the same moment")
def step_store_in_processes(context: Context, callers: int, count: int, tokens: int) -> None:
    shares = [work.make_fragments(f"process-{caller}", count, tokens) for caller in range(callers)]
    context.readings = []
    context.outcomes = in_processes([partial(work.store_from_elsewhere, context.services, share) for share in shares])
    context.fragments = [*context.fragments, *(fragment for share in shares for fragment in share)]


@when("{callers:d} threads promote and demote them at the same moment")
def step_move_in_threads(context: Context, callers: int) -> None:
    fragment_ids = [fragment.fragment_id for fragment in context.fragments]
    watch_tiers(context)
    context.outcomes = context.schedule.run(
        [partial(work.move_all, context.services, fragment_ids, caller) for caller in range(callers)]
    )


@then("every fragment can be read back, whole")
def step_found(context: Context) -> None:
    no_errors(context.outcomes)
    lost = []
    for fragment in context.fragments:
        try:
            found = context.services.tiers.get(fragment.fragment_id, project=PROJECT)
        except sw.NotFound:
            lost.append(fragment.fragment_id)
        else:
            assert found.text == fragment.body, f"{fragment.fragment_id} has the body {found.text!r}"
    assert not lost, f"{len(lost)} of {len(context.fragments)} fragments are lost: {', '.join(lost[:5])}, …"


@then("the tiers count each of them once")
def step_counted(context: Context) -> None:
    reading = Reading(context.services.tiers.metrics())
    assert reading.entries == len(context.fragments), f"{reading.entries} of {len(context.fragments)} fragments"
    assert reading.tokens == sum(fragment.tokens for fragment in context.fragments), f"{reading.tokens} tokens"


@then("at no revision did hot hold more than {tokens:d} tokens")
def step_budget_held(context: Context, tokens: int) -> None:
    """Each caller read right after its own stores, and only stores make revisions: so none is left out."""
    own = [reading for readings in no_errors(context.outcomes) for reading in readings]
    revisions = {reading.revision for reading in own if reading.revision is not None}
    assert len(revisions) in {0, len(own)}, "two stores at one revision"
    highest = max(reading.metrics.hot.tokens for reading in [*context.readings, *own])
    assert highest <= tokens, f"hot held {highest} tokens of {tokens}"


@then("every reading counted {entries:d} fragments with {tokens:d} tokens")
def step_readings_consistent(context: Context, entries: int, tokens: int) -> None:
    assert context.readings, "nobody looked"
    odd = {(each.entries, each.tokens) for each in context.readings} - {(entries, tokens)}
    assert not odd, f"somebody counted (fragments, tokens): {sorted(odd)}"


@then("every fragment is in exactly one tier")
def step_in_one_tier(context: Context) -> None:
    no_errors(context.outcomes)
    tiers: sw.ContextTierService = context.services.tiers
    held = {tier: {row.fragment_id for row in tiers.scoped(project=PROJECT, tier=tier)} for tier in sw.Tier}
    times = Counter(fragment_id for ids in held.values() for fragment_id in ids)
    assert times == Counter(fragment.fragment_id for fragment in context.fragments), times
    metrics = tiers.metrics()
    assert [len(ids) for ids in held.values()] == [metrics.hot.entries, metrics.warm.entries, metrics.cold.entries]


def watch_tiers(context: Context) -> None:
    """Have the schedule's reader count what is in the tiers while the callers run."""
    readings: list[Reading] = []
    context.readings = readings
    context.schedule.look = lambda: readings.append(Reading(context.services.tiers.metrics()))
