"""The commits of a directory's repository, as git lists them. Bounded in number, size and time.

Git runs with the repository's own configuration, but without anything in it that starts another program.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Final

from stepwell import limits
from stepwell.domain.tiers.commit_history import Commit, encode_history
from stepwell.ingest.redaction import find_secrets, redact
from stepwell.ingest.secret_policy import SecretPolicy

_COMMIT, _FIELD = "\x1e", "\x1f"
_LOG: Final = (
    "log",
    f"--max-count={limits.HISTORY_COMMITS_MAX}",
    "--no-merges",
    "--no-show-signature",
    "--no-ext-diff",
    "--no-renames",
    "--no-color",
    "--relative",
    "--name-only",
    f"--format={_COMMIT}%B{_FIELD}",
    "--",
    ".",
)


def head_of(root: Path) -> str:
    """Return the commit that is checked out in the repository of a directory; empty if there is none."""
    return _git(root, "rev-parse", "--verify", "--quiet", "HEAD").strip()


def read_history(root: Path, policy: SecretPolicy) -> bytes:
    """Return the encoded history of a directory, the latest commit first, with the secrets in it redacted.

    A commit that changed very many files says nothing about any of them, and is left out.
    """
    commits: list[Commit] = []
    left = limits.HISTORY_BYTES_MAX
    for text in _git(root, *_LOG).split(_COMMIT)[1:]:
        message, _, names = text.partition(_FIELD)
        sources = tuple(name for name in names.split("\n") if name)
        if 0 < len(sources) <= limits.HISTORY_FILES_MAX:
            left -= len(text)
            if left < 0:
                break
            commits.append(Commit(_redacted(message[: limits.HISTORY_MESSAGE_CHARS_MAX].strip(), policy), sources))
    return encode_history(commits)


def _redacted(message: str, policy: SecretPolicy) -> str:
    data = message.encode(errors="replace")
    return redact(data, find_secrets(data, policy)).decode(errors="replace")


def _git(root: Path, *arguments: str) -> str:
    """Return the output of git; empty if it is not installed, fails, or takes too long."""
    command = ["git", "-c", "core.fsmonitor=false", "-c", "core.quotePath=false", *arguments]
    environment = {key: text for key, text in os.environ.items() if not key.startswith("GIT_")}
    try:
        return subprocess.run(
            command,
            cwd=root,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=limits.HISTORY_SECONDS_MAX,
            check=True,
        ).stdout.decode(errors="replace")
    except (OSError, subprocess.SubprocessError):
        return ""
