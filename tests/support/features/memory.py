"""Operations of another process on bodies: functions of a client, importable in a spawned process."""

from __future__ import annotations

from contextlib import closing
from typing import NamedTuple

import stepwell as sw
from stepwell.domain.tiers.body_refs import digest_of
from tests.support.features.work import PROJECT
from tests.support.programs.kernel_memory import mapped_files
from tests.support.programs.memory_attacks import attempt_all, place_of

NAME = "fragment"


class Found(NamedTuple):
    """A body as a process found it: its hash, and the memory file that holds it."""

    digest: bytes
    inode: int


def make_body(size: int, variant: int = 0) -> bytes:
    """A body that compresses."""
    lines = b"".join(b"line %d of variant %d\n" % (number, variant) for number in range(10_000))
    return (lines * (size // len(lines) + 1))[:size]


def find(client: sw.Client) -> Found:
    """Read a body, and say where it is."""
    body = client.tiers.get(NAME, project=PROJECT).body
    address = place_of(body)
    (inode,) = [inode for inode, where in mapped_files("self").items() if address in where]
    return Found(digest_of(body), inode)


def find_from_elsewhere(client: sw.Client) -> Found:
    with closing(client):
        return find(client)


def write_from_elsewhere(client: sw.Client, *, is_cold: bool) -> dict[str, str]:
    with closing(client):
        fragment = client.tiers.get(NAME, project=PROJECT)
        return attempt_all(fragment.body, fragment.stored, is_cold=is_cold)


def store_from_elsewhere(client: sw.Client, size: int) -> None:
    with closing(client):
        client.tiers.store(sw.Fragment(fragment_id=NAME, project=PROJECT, body=make_body(size), tokens=1))


def change_from_elsewhere(client: sw.Client, deed: str) -> None:
    """Do something to the fragment, and have the manager's bytes follow before we end."""
    with closing(client):
        match deed:
            case "deletes it":
                client.tiers.delete(NAME, project=PROJECT)
            case "replaces it":
                client.tiers.store(sw.Fragment(fragment_id=NAME, project=PROJECT, body=b"another", tokens=1))
            case "demotes it":
                client.tiers.demote(NAME, project=PROJECT)
            case "promotes it":
                client.tiers.promote(NAME, project=PROJECT)
            case _:
                raise NotImplementedError(deed)


def change_many_from_elsewhere(client: sw.Client, names: list[str]) -> None:
    """Replace every other one, and delete the rest."""
    with closing(client):
        for number, name in enumerate(names):
            if number % 2 == 0:
                client.tiers.store(sw.Fragment(fragment_id=name, project=PROJECT, body=f"new {name}", tokens=1))
            else:
                client.tiers.delete(name, project=PROJECT)
