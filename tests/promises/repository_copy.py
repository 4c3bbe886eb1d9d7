"""A copy of the repository in a temporary directory, in which one defect at a time stands."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sysconfig
import tempfile
import threading
import time
import venv
from collections.abc import Iterator
from pathlib import Path

from tests.promises.model import Defect
from tests.support.documents import ROOT

PARTS = ("benchmarks", "docs", "examples", "features", "src", "tests", "workers", "pyproject.toml", "README.md")
"""The parts of the repository that tests read."""
END_SECONDS = 5.0
"""The time that a process which the tests started has to end by itself after them."""

POLL_SECONDS = 0.1


class RepositoryCopy:
    """A copy of the repository, and a directory for the temporary files of what runs in it.

    It has an interpreter of its own, which imports the copy's package whatever the environment of a process is. One
    thread at a time may use it. Its processes are known by their command line or their environment, which name it.
    """

    def __init__(self) -> None:
        self.place = Path(tempfile.mkdtemp(prefix="broken-"))  # short, because the paths of sockets are
        self.root = self.place / "repository"
        self.root.mkdir()
        ignored = shutil.ignore_patterns("__pycache__", ".*_cache", ".hypothesis")
        for part in PARTS:
            if (ROOT / part).is_dir():
                shutil.copytree(ROOT / part, self.root / part, ignore=ignored)
            else:
                shutil.copy2(ROOT / part, self.root / part)
        self.python = self._make_interpreter()

    def _make_interpreter(self) -> str:
        """Make an environment with the packages of this one, but the copy's package in place of the installed one."""
        environment = self.place / "environment"
        venv.EnvBuilder(symlinks=True).create(environment)
        (packages,) = environment.glob("lib/python*/site-packages")
        # The paths are added as they are: that of the installed package is in a file there, which is not read.
        paths = dict.fromkeys([str(self.root / "src"), sysconfig.get_path("purelib"), sysconfig.get_path("platlib")])
        (packages / "copy.pth").write_text("".join(f"{path}\n" for path in paths))
        python = str(environment / "bin/python")
        told = subprocess.run(
            [python, "-c", "import stepwell; print(stepwell.__file__)"], capture_output=True, text=True, check=True
        )
        assert told.stdout.startswith(str(self.root)), told.stdout
        return python

    @contextlib.contextmanager
    def broken(self, defect: Defect | None) -> Iterator[None]:
        """Put the defect into the copy's module for the length of the block."""
        if defect is None:
            yield
            return
        module = self.root / "src/stepwell" / defect.module
        text = module.read_text()
        replace(module, defect.broken(text))
        try:
            yield
        finally:
            replace(module, text)

    @contextlib.contextmanager
    def environment(self) -> Iterator[dict[str, str]]:
        """Give the environment of a run, with temporary directories of its own.

        Afterwards no process and no file of the run is left.
        """
        temporary = self.place / "t"
        temporary.mkdir(mode=0o700)
        wanted = {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "XDG_RUNTIME_DIR"}}
        wanted |= {name: str(temporary) for name in ("TMPDIR", "XDG_CACHE_HOME", "XDG_STATE_HOME")}
        wanted["PYTHONDONTWRITEBYTECODE"] = ""
        try:
            yield wanted
        finally:
            self.end_processes()
            shutil.rmtree(temporary, ignore_errors=True)

    def end_processes(self, grace_s: float = END_SECONDS) -> None:
        """Give the processes of the run a moment to end, and kill those that do not."""
        never = threading.Event()
        end = time.monotonic() + grace_s
        while pids := self._processes():
            for pid in pids if time.monotonic() > end else ():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            never.wait(POLL_SECONDS)

    def _processes(self) -> list[int]:
        mark = os.fsencode(self.place)
        found = []
        for path in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):  # it has ended, or is another user's
                # Both are empty for a process that has ended and was not waited for.
                if mark in (path / "cmdline").read_bytes() + (path / "environ").read_bytes():
                    found.append(int(path.name))
        return found

    def remove(self) -> None:
        """End what runs in the copy, and delete it."""
        self.end_processes()
        shutil.rmtree(self.place, ignore_errors=True)


def replace(module: Path, text: str) -> None:
    """Write a module, without the bytecode of its former text, which may be as long and as old."""
    module.write_text(text)
    for compiled in (module.parent / "__pycache__").glob(f"{module.stem}.*.pyc"):
        compiled.unlink()
