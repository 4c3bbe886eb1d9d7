"""A manager that runs out of descriptors, or nearly: it refuses what is new, serves what it has, and does not end."""

import resource
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from itertools import count
from pathlib import Path

import pytest

import stepwell as sw
from stepwell import limits
from stepwell.domain.tiers.commands import GetMetrics
from stepwell.protocol.messages import VERSION, CommandResult, Hello, Rejected, Welcome
from tests.support.peers import RawPeer
from tests.support.processes import CONTEXT, descriptors, is_alive, spawned
from tests.support.programs.limited_runtime import serve_with
from tests.support.programs.steady_client import Bystander
from tests.support.wait import eventually

CONNECTIONS = 600
"""More than any manager serves."""


@contextmanager
def limited(descriptors_max: int, data_dir: Path | None = None) -> Iterator[tuple[str, int]]:
    """The address and pid of a manager that may open so many; it has to be the same one in the end."""
    ours, theirs = CONTEXT.Pipe()
    with ours, theirs, spawned(serve_with, descriptors_max, data_dir and str(data_dir), theirs):
        address, pid = ours.recv()
        yield address, pid
        assert is_alive(pid)
        ours.send("end")
        assert ours.recv() is True


@pytest.mark.parametrize("descriptors_max", [256, 1024])
def test_flood_of_connections(descriptors_max: int) -> None:
    """Those past the bound get Busy with the reason, the others are served, and all descriptors come back."""
    with limited(descriptors_max) as (address, pid), Bystander(address) as bystander:
        bystander.progresses()
        base = descriptors(pid)
        with ExitStack() as stack:
            peers = [stack.enter_context(RawPeer(address, 60.0)) for _ in range(CONNECTIONS)]
            bystander.progresses()
            served = []
            for number, peer in enumerate(peers):
                with suppress(BrokenPipeError):  # refused already; the reason is still to be read
                    peer.send(Hello(VERSION, f"crowd-{number}"))
                answer = peer.receive()
                if isinstance(answer, Welcome):
                    served.append(peer)
                else:
                    assert isinstance(answer, Rejected)
                    assert answer.refusal.kind == "Busy"
                    assert "peers are connected already" in answer.refusal.message
            assert len(served) == min(limits.PEERS_MAX, descriptors_max // 4) - 1  # the bystander is one
            assert isinstance(served[0].ask(GetMetrics()).results[0], CommandResult)
            bystander.progresses()
        eventually(lambda: descriptors(pid) <= base)
        sw.connect(address).close()


@pytest.mark.parametrize("descriptors_max", [256, 1024])
def test_flood_of_sessions(descriptors_max: int) -> None:
    """A process that says Hello with ever new sessions costs one descriptor, and gets Busy past its bound."""
    with limited(descriptors_max) as (address, pid), Bystander(address) as bystander:
        bystander.progresses()
        base = descriptors(pid)
        refused = 0
        for number in range(limits.SESSIONS_PER_PROCESS_MAX + 20):
            with RawPeer(address, 60.0) as peer:
                peer.send(Hello(VERSION, f"flood-{number}"))
                answer = peer.receive()
                if isinstance(answer, Rejected):
                    assert answer.refusal.kind == "Busy"
                    assert "sessions already" in answer.refusal.message
                    refused += 1
        bystander.progresses()
        assert refused > 0
        eventually(lambda: descriptors(pid) <= base)


STEADY_ANSWERS = 20
"""After so many answers in a row that found the same descriptors, none of them is open only for a moment."""


@contextmanager
def no_descriptor_free(pid: int, client: sw.Client) -> Iterator[None]:
    """Let a manager open nothing more. The client's requests make sure that the manager is not seen in mid-work."""
    soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    limit, steady = soft, 0
    try:
        while steady < STEADY_ANSWERS:
            client.tiers.metrics()
            if (free := lowest_free_descriptor(pid)) < limit:
                limit, steady = free, 0
                resource.prlimit(pid, resource.RLIMIT_NOFILE, (limit, hard))
            steady += 1
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (soft, hard))


def lowest_free_descriptor(pid: int) -> int:
    """The number that a process would get for the next file that it opens."""
    taken = {int(each.name) for each in Path(f"/proc/{pid}/fd").iterdir()}
    return next(number for number in count() if number not in taken)


@pytest.mark.parametrize("is_durable", [True, False])
def test_no_descriptor_left(tmp_path: Path, capfd: pytest.CaptureFixture[str], *, is_durable: bool) -> None:
    """A new peer gets Busy, a body that needs new memory a refusal, and a known client all else; the log says why."""
    with limited(1024, tmp_path / "data" if is_durable else None) as (address, pid), ExitStack() as stack:
        known = stack.enter_context(closing(sw.connect(address, projects=["p"])))
        known.tiers.store(sw.Fragment(fragment_id="a", body=b"x", tokens=1))
        known.tiers.get("a")  # its memory is mapped by then
        with no_descriptor_free(pid, known):
            for _ in range(3):
                with pytest.raises(sw.Busy, match="no descriptor left"):
                    sw.connect(address)
            large = sw.Fragment(fragment_id="large", body=bytes(limits.SEGMENT_BYTES_MAX), tokens=1)
            with pytest.raises(sw.Refused):
                known.tiers.store(large)
            for number in range(50):
                known.tiers.store(sw.Fragment(fragment_id=f"f{number}", body=b"y" * number, tokens=1))
            assert bytes(known.tiers.get("a").body) == b"x"
            assert known.tiers.list(limit=100).rows
        known.tiers.store(large)
        sw.connect(address).close()
    assert "peer.not_accepted" in capfd.readouterr().err
