"""Watchers: each sees all events from where it began, in their order and without a gap."""

from __future__ import annotations

import asyncio

from stepwell.errors import EventsMissed, OutcomeUnknown, RuntimeLost
from tests.simulator.workloads.base import Actor


async def watch_events(actor: Actor) -> None:
    """Follow the events for a while, from a revision that this client has seen or from now on."""
    since = actor.random.choice((None, None, None, 0))
    watched = actor.oracle.new_watch()
    try:
        async with asyncio.timeout(actor.random.choice((0.05, 1.0))), actor.client.watch(since=since) as watch:
            while True:
                event = await watch.get()
                assert event is not None, "no other task closes this watch"
                watched.append(event)
    except TimeoutError:
        return
    except EventsMissed:
        return
    except (OutcomeUnknown, RuntimeLost):
        return
