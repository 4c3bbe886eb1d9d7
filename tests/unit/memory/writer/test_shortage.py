"""Which limit of the operating system is reached is said, with its value and what to do."""

import errno
import os
import resource

import pytest

from stepwell.memory.writer.shortage import describe_shortage


def failed(code: int) -> OSError:
    return OSError(code, os.strerror(code))


@pytest.mark.parametrize(
    "error, kind, name, advice",
    [
        (failed(errno.ENOMEM), resource.RLIMIT_AS, "RLIMIT_AS", "ulimit -v"),
        (MemoryError(), resource.RLIMIT_AS, "RLIMIT_AS", "ulimit -v"),
        (failed(errno.EMFILE), resource.RLIMIT_NOFILE, "RLIMIT_NOFILE", "ulimit -n"),
        (failed(errno.EFBIG), resource.RLIMIT_FSIZE, "RLIMIT_FSIZE", "ulimit -f"),
    ],
)
def test_limit_of_the_process(
    error: OSError | MemoryError, kind: int, name: str, advice: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limit is named with its present value."""
    known = resource.getrlimit
    monkeypatch.setattr(resource, "getrlimit", lambda asked: (4_321, 9_999) if asked == kind else known(asked))
    assert f"{name} is 4321" in (text := describe_shortage(error))
    assert advice in text


@pytest.mark.parametrize(
    "code, advice",
    [
        (errno.ENOMEM, "control group"),
        (errno.ENFILE, "fs.file-max"),
        (errno.ENOSPC, "control group"),
        (errno.EDQUOT, "control group"),
        (errno.EIO, "log"),
    ],
)
def test_limit_of_the_machine(code: int, advice: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a limit of the process it is the machine's."""
    unlimited = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    monkeypatch.setattr(resource, "getrlimit", lambda _: unlimited)
    assert advice in describe_shortage(failed(code))
