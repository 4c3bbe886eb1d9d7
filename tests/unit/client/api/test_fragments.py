"""Fragments as a caller gets them: values that can be copied, and sent to another process."""

import copy
import pickle
import subprocess
import sys
from collections.abc import Callable
from typing import TypeVar

import pytest

import stepwell as sw
from stepwell import types
from tests.support.client.sessions import fragment
from tests.support.wait import eventually

T = TypeVar("T")

BODIES = {
    sw.Tier.HOT: b"\xff small",
    sw.Tier.WARM: b"compressed " * 10_000,
    sw.Tier.COLD: b"cold " * 10_000,
}


def pickled(value: T) -> T:
    copied: T = pickle.loads(pickle.dumps(value))  # noqa: S301 - our own
    return copied


COPIES = [pytest.param(copies, id=copies.__name__) for copies in (copy.copy, copy.deepcopy, pickled)]


@pytest.mark.parametrize("tier", [*sw.Tier])
@pytest.mark.parametrize("copies", COPIES)
def test_stored_fragment_is_copied(
    client: sw.Client, copies: Callable[[sw.StoredFragment], sw.StoredFragment], tier: sw.Tier
) -> None:
    """A copy equals the fragment, whether its body is compressed or not, and if the body was read before or not."""
    given = sw.Fragment(fragment_id="a", body=BODIES[tier], metadata={"k": "v"}, source="a.py")
    client.tiers.store(given, tier=tier)
    found = client.tiers.get("a")
    for copied in (copies(found), copies(found) if found.body else found, copies(copies(found))):
        assert (copied, copied.row, copied.metadata) == (found, found.row, {"k": "v"})
        assert (copied.last_accessed, copied.access_count) == (found.last_accessed, 1)
        assert copied.body == BODIES[tier]
        assert copied.body.readonly


def test_copy_has_memory_of_its_own(client: sw.Client) -> None:
    """A copy outlives the shared memory: it is complete after the fragment, the client and the original are gone."""
    client.tiers.store(fragment("a", "a body"))
    found = client.tiers.get("a")
    copied = copy.deepcopy(found)
    assert copied.stored.obj is not found.stored.obj
    assert isinstance(copied.stored.obj, bytes)


def test_pickle_has_the_stored_form(client: sw.Client) -> None:
    """A compressed body stays so on its way."""
    client.tiers.store(fragment("a", BODIES[sw.Tier.WARM]), tier=sw.Tier.WARM)
    eventually(lambda: client.status().memory.waiting == 0)
    assert len(pickle.dumps(client.tiers.get("a"))) < len(BODIES[sw.Tier.WARM]) // 10


@pytest.mark.parametrize("copies", COPIES[1:])
def test_viewed_fragment_is_copied(
    client: sw.Client, copies: Callable[[types.ViewedFragment], types.ViewedFragment]
) -> None:
    """With its body, which is read meanwhile; the copy needs neither the view nor the manager."""
    client.tiers.store(fragment("a", BODIES[sw.Tier.WARM]), tier=sw.Tier.WARM)
    (found,) = client.view()
    copied = copies(found)
    client.tiers.delete("a")
    assert copied.body == BODIES[sw.Tier.WARM]
    assert (copied.row, copies(copied)) == (found.row, copied)


def test_another_process_reads_a_pickled_fragment(client: sw.Client) -> None:
    """It has no client, and maps no shared memory."""
    client.tiers.store(fragment("a", "a body"))
    (viewed,) = client.view()
    program = (
        "import pickle, sys\n"
        "for each in pickle.load(sys.stdin.buffer):\n"
        "    print(type(each).__name__, each.fragment_id, each.text, each.tier.value)\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program],
        input=pickle.dumps([client.tiers.get("a"), viewed]),
        stdout=subprocess.PIPE,
        check=True,
    )
    assert ran.stdout.decode().splitlines() == ["StoredFragment a a body hot", "ViewedFragment a a body hot"]
