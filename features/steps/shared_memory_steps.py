"""Bodies in shared memory, as other processes find them."""

from __future__ import annotations

from functools import partial

from behave import given, then, when
from behave.runner import Context

import stepwell as sw
from features.steps.services import start_runtime
from stepwell.domain.tiers.body_refs import digest_of
from tests.support.features import memory
from tests.support.features.memory import NAME
from tests.support.features.outcomes import no_errors
from tests.support.features.processes import in_processes
from tests.support.features.schedules import attempt
from tests.support.features.work import PROJECT
from tests.support.programs.memory_attacks import REFUSED
from tests.support.wait import eventually


@given("the runtime with an arena of {size:d} MiB and room for {count:d} fragment in cold")
def step_small_runtime(context: Context, size: int, count: int) -> None:
    start_runtime(context, sw.TierBudget(arena_bytes=size << 20, cold_entries=count))


@given("a fragment with a body of {size:d} KiB")
def step_fragment(context: Context, size: int) -> None:
    store(context, size, sw.Tier.HOT)


@given("a fragment with a body of {size:d} KiB in {tier:w}")
def step_fragment_in_tier(context: Context, size: int, tier: str) -> None:
    store(context, size, sw.Tier(tier))


@given("we hold it")
def step_hold(context: Context) -> None:
    context.held = context.services.tiers.get(NAME, project=PROJECT)
    context.add_cleanup(let_go, context)


@given("{count:d} small fragments")
def step_many(context: Context, count: int) -> None:
    context.bodies = {f"f{number}": f"body {number}" for number in range(count)}
    context.services.tiers.store_many(
        sw.Fragment(fragment_id=name, project=PROJECT, body=body, tokens=1) for name, body in context.bodies.items()
    )


@given("a view of them")
def step_view(context: Context) -> None:
    context.view = context.services.view([PROJECT])


@when("another process reads it")
def step_read(context: Context) -> None:
    context.outcomes = in_processes([partial(memory.find_from_elsewhere, context.services)])


@when("another process tries to write to it")
def step_write(context: Context) -> None:
    context.outcomes = in_processes(
        [partial(memory.write_from_elsewhere, context.services, is_cold=context.tier is sw.Tier.COLD)]
    )


@when("another process {deed} it")
def step_change(context: Context, deed: str) -> None:
    no_errors(in_processes([partial(memory.change_from_elsewhere, context.services, f"{deed} it")]))
    settle(context)


@when("another process replaces every other one and deletes the rest")
def step_change_many(context: Context) -> None:
    no_errors(in_processes([partial(memory.change_many_from_elsewhere, context.services, [*context.bodies])]))
    settle(context)


@when("another process stores a body of {size:d} KiB")
def step_store(context: Context, size: int) -> None:
    context.body = memory.make_body(size << 10)
    no_errors(in_processes([partial(memory.store_from_elsewhere, context.services, size << 10)]))


@when("bodies of {size:d} KiB are stored until one is refused")
def step_fill(context: Context, size: int) -> None:
    bodies: dict[str, bytes] = {}
    while True:
        name, body = f"f{len(bodies)}", memory.make_body(size << 10, variant=len(bodies))
        fragment = sw.Fragment(fragment_id=name, project=PROJECT, body=body, tokens=1)
        outcome = attempt(partial(context.services.tiers.store, fragment))
        if isinstance(outcome, Exception):
            break
        bodies[name] = body
    context.bodies, context.outcomes = bodies, [outcome]


@then("that process found the body whole, in the very memory that we have mapped")
def step_same_memory(context: Context) -> None:
    (found,) = no_errors(context.outcomes)
    assert found.digest == digest_of(context.body)
    ours = memory.find(context.services)
    assert found == ours, f"they read {found}, we {ours}"


@then("the kernel has refused every attempt")
def step_refused(context: Context) -> None:
    (outcomes,) = no_errors(context.outcomes)
    assert outcomes == REFUSED[context.tier is sw.Tier.COLD], outcomes


@then("everybody reads the body unchanged")
def step_unchanged(context: Context) -> None:
    assert context.services.tiers.get(NAME, project=PROJECT).body == context.body
    with context.runtime.client() as other:
        assert other.tiers.get(NAME, project=PROJECT).body == context.body


@then("what we hold is still the body that was stored")
def step_held(context: Context) -> None:
    assert context.held.body == context.body


@then("the view still shows all {count:d}, each as it was")
def step_view_stays(context: Context, count: int) -> None:
    shown = {each.fragment_id: each.text for each in context.view}
    assert len(context.view) == len(shown) == count, len(shown)
    assert shown == context.bodies


@then("what has changed since is {replaced:d} replaced and {removed:d} removed")
def step_since(context: Context, replaced: int, removed: int) -> None:
    since = context.services.view([PROJECT], since=context.view.revision)
    assert since.is_difference
    assert {each.text for each in since} == {f"new {each.fragment_id}" for each in since}
    assert (len(since), len(since.removed)) == (replaced, removed), since


@then("reading every body in it makes no request")
def step_unasked(context: Context) -> None:
    before = context.services.status().requests
    assert {each.fragment_id: each.text for each in context.view} == context.bodies
    assert context.services.status().requests == before


@then("we read it back, whole")
def step_whole(context: Context) -> None:
    assert digest_of(context.services.tiers.get(NAME, project=PROJECT).body) == digest_of(context.body)


@then("the refusal is TierFull and says what to do")
def step_full(context: Context) -> None:
    (refusal,) = context.outcomes
    assert type(refusal) is sw.TierFull, repr(refusal)
    assert "delete some" in refusal.message, refusal.message


@then("every body that was accepted can be read back, whole")
def step_nothing_lost(context: Context) -> None:
    assert context.bodies, "nothing was accepted"
    found = context.services.tiers.get_many(context.bodies, project=PROJECT)
    assert {name: bytes(each.body) for name, each in found.items()} == context.bodies


def store(context: Context, size: int, tier: sw.Tier) -> None:
    context.body, context.tier = memory.make_body(size << 10), tier
    fragment = sw.Fragment(fragment_id=NAME, project=PROJECT, body=context.body, tokens=1)
    context.services.tiers.store(fragment, tier=tier)
    most = {sw.Tier.HOT: len(context.body) + 100, sw.Tier.WARM: len(context.body) - 1, sw.Tier.COLD: 0}[tier]
    eventually(lambda: context.services.status().memory.live_bytes <= most)


def let_go(context: Context) -> None:
    context.held = None


def settle(context: Context) -> None:
    """Wait until every body has the form of its tier."""
    eventually(lambda: context.services.status().memory.waiting == 0)
