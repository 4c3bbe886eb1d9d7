"""The edges of reads without a request: order, refusals, ends of sessions and hostile peers."""

from __future__ import annotations

import stepwell as sw
from stepwell.testing import LocalRuntime

PROJECT = "p"


def fragment(fragment_id: str) -> sw.Fragment:
    return sw.Fragment(fragment_id=fragment_id, project=PROJECT, source=fragment_id, body=fragment_id, tokens=1)


def open_index(client: sw.Client, *fragment_ids: str) -> None:
    """Read fragments until the client has the index, so that a further read of them needs no request."""
    for _ in range(3):
        for fragment_id in fragment_ids:
            client.tiers.peek(fragment_id, project=PROJECT)


def test_the_latest_read_decides_about_the_order_of_eviction() -> None:
    """Reads in one report make fragments recent in the order in which each was read last, as requests would."""
    with LocalRuntime(workers=0) as runtime, runtime.client() as client:
        for fragment_id in ("a", "b"):
            client.tiers.store(fragment(fragment_id))
        open_index(client, "a", "b")
        for fragment_id in ("a", "b", "a"):
            client.tiers.get(fragment_id, project=PROJECT)
        (moved,) = client.tiers.evict_lru().moves
        assert moved.fragment_id == "b"
