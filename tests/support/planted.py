"""Transactions that an attacker writes into `.stepwell`, without the code under test."""

import hashlib
import os
import stat
import subprocess
from collections.abc import Sequence
from pathlib import Path

import msgspec

Planned = list[object]
"""A file of a log: path, entry before, entry after. An entry is a mode and a digest."""


def entry(body: bytes, mode: int = 0o600) -> list[object]:
    return [stat.S_IFREG | mode, hashlib.sha256(body).digest()]


def log(
    items: Sequence[Planned],
    *,
    made: Sequence[bytes] = (),
    removed: Sequence[tuple[bytes, int]] = (),
    loosened: Sequence[tuple[bytes, int]] = (),
    version: int = 1,
) -> bytes:
    """The bytes of an undo log."""
    return msgspec.msgpack.encode([version, items, made, removed, loosened])


def plant(root: Path, name: str, files: dict[str, bytes]) -> Path:
    """Write a directory with files into the staging directory of a root."""
    directory = root / ".stepwell" / name
    directory.mkdir(parents=True)
    for file, body in files.items():
        (directory / file).write_bytes(body)
    return directory


KEY = b"ssh-ed25519 AAAA attacker\n"
ATTACKS: dict[str, dict[str, bytes]] = {
    "evil-1.open": {
        "log": log(
            [[b"../home/.ssh/authorized_keys", entry(KEY), None]],
            removed=[(b"../home/.ssh", 0o700), (b"../home", 0o755)],
        ),
        "old-0": KEY,
    },
    "evil-2.open": {"log": log([[b"../outside", None, entry(b"outside\n", 0o644)]])},
    "evil-3.open": {"log": log([[b"inside", entry(b"evil\n"), entry(b"inside\n", 0o644)]]), "old-0": b"evil\n"},
    "evil-4.open": {"log": log([], loosened=[(b"..", 0o777)])},
    "evil-5.open": {"log": log([[b".git/hooks/pre-commit", entry(b"#!/bin/sh\n", 0o755), None]]), "old-0": b"x"},
    "evil-6.staging": {"precious": b"p"},
    "evil-7.spent": {"precious": b"p"},
    "evil-8.done": {"log": log([[b"inside", None, entry(b"inside\n", 0o644)]])},
    "evil-9.left": {"log": b"", "precious": b"p"},
}
"""Each creates, removes, replaces or exposes something in a root with the file `inside`, beside the file `outside`."""


def plant_all(root: Path) -> None:
    """Write a root's file, a file outside of it, and all attacks."""
    (root / "inside").write_bytes(b"inside\n")
    (root / "inside").chmod(0o644)
    (root.parent / "outside").write_bytes(b"outside\n")
    for name, files in ATTACKS.items():
        plant(root, name, files)


def git(directory: Path, *arguments: str) -> None:
    identity = ["-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "init.defaultBranch=main"]
    environment = {key: text for key, text in os.environ.items() if not key.startswith("GIT_")}
    subprocess.run(
        ["git", *identity, *arguments],
        cwd=directory,
        check=True,
        capture_output=True,
        env=environment | {"GIT_CONFIG_GLOBAL": os.devnull},
    )


def snapshot(above: Path, *but: str) -> dict[str, tuple[int, bytes]]:
    """Everything below a directory with its mode and content, except for paths that begin with one of `but`."""
    found: dict[str, tuple[int, bytes]] = {}
    for directory, directories, files in os.walk(above):
        for name in directories + files:
            place = Path(directory) / name
            status, path = place.lstat(), str(place.relative_to(above))
            if path.startswith(but):
                continue
            is_link, is_file = stat.S_ISLNK(status.st_mode), stat.S_ISREG(status.st_mode)
            found[path] = (
                status.st_mode,
                os.fsencode(place.readlink()) if is_link else place.read_bytes() if is_file else b"",
            )
    return found
