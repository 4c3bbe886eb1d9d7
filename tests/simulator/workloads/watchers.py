"""Watchers: each sees all events from where it began, in their order and without a gap."""

from __future__ import annotations

import asyncio

from stepwell.errors import EventsMissed, OutcomeUnknown, RuntimeLost
from tests.simulator.workloads.base import Actor


async def watch_events(actor: Actor) -> None:
    """Follow some events, or all for a while, from the first one or from now on."""
    since = actor.random.choice((None, None, None, 0))
    limit = actor.random.choice((1, 20, 300))
    watched = actor.oracle.new_watch()
    try:
        async with asyncio.timeout(actor.random.choice((0.05, 1.0))), actor.client.watch(since=since) as watch:
            while len(watched) < limit:
                if (event := await watch.get()) is not None:
                    watched.append(event)
    except TimeoutError:
        return
    except EventsMissed:
        return
    except (OutcomeUnknown, RuntimeLost):
        return
