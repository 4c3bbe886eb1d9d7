"""Secret files and secrets of known formats for tests, and a search for them in the bytes of a directory."""

import sqlite3
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.support.ingest import git, write

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"

MARK = "hunter2marker"
"""A text that each of the secret files has, and no other file."""

SECRET_FILES = (
    ".env",
    ".env.production",
    "id_rsa",
    "deploy/id_ed25519",
    "server.pem",
    "tls.key",
    ".netrc",
    ".aws/credentials",
    ".npmrc",
    ".pypirc",
    ".git-credentials",
)

GITHUB = "ghp_" + "aB3dE6gH9j" * 4
AWS = "AKIA" + "Q7RZ3XK9PLM2NB5T"
KEY_LINE = "MIIEpAIBAAKCAQEA7sN0h1mEJq3bS2z9fK8vY5wQxR4tUoP1aLdCgHjXkZ"
PRIVATE_KEY = f"-----BEGIN RSA PRIVATE KEY-----\n{KEY_LINE}\n{KEY_LINE}\n-----END RSA PRIVATE KEY-----"


def repository(root: Path) -> Path:
    """Return a git repository with eleven secret files that git does not ignore, and one of code."""
    files: dict[str, str | bytes] = {name: f"password={MARK}-{number}\n" for number, name in enumerate(SECRET_FILES)}
    write(root, {**files, "code.py": "def login():\n    return 'a password, a token and a key'\n"})
    git(root, "init")
    return root


def contents(directory: Path) -> bytes:
    """Return all bytes below a directory, and those of all bodies of its databases, decompressed."""
    files = [path for path in directory.rglob("*") if path.is_file()]
    bodies = [body for path in files if path.name == "stepwell.sqlite" for body in _blobs(path)]
    return b"\n".join([*(path.read_bytes() for path in files), *bodies])


def _blobs(database: Path) -> Iterator[bytes]:
    """Yield all values of bytes in a database; packed ones unpacked."""
    connection = sqlite3.connect(f"file:{database}?mode=ro", uri=True)
    try:
        for (table,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
            for row in connection.execute(f'SELECT * FROM "{table}"'):  # noqa: S608 - a name of our own schema
                for value in row:
                    if isinstance(value, bytes):
                        yield zstd.decompress(value) if value.startswith(_ZSTD_MAGIC) else value
    finally:
        connection.close()
