"""Busy processes: they use as much of the processors as they get, and belong to no contender."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from typing import Final

PROGRAM: Final = """
import os, sys
print(flush=True)
while os.getppid() == int(sys.argv[1]):
    for _ in range(100_000):
        pass
"""
"""It ends with its parent process, however that ends."""


@contextmanager
def busy_processes(number: int) -> Generator[list[int]]:
    """Have busy processes for the duration of the block, all of them from its start, and yield their ids."""
    with ExitStack() as stack:
        found: list[int] = []
        for _ in range(number):
            process = stack.enter_context(
                subprocess.Popen([sys.executable, "-I", "-S", "-c", PROGRAM, str(os.getpid())], stdout=subprocess.PIPE)
            )
            stack.callback(process.kill)  # before the `with` waits for it
            assert process.stdout is not None
            process.stdout.readline()
            found.append(process.pid)
        yield found
