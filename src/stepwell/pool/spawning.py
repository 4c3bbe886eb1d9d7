"""Starting a process from a module of our own: the user's `__main__` is never run again."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Final

# `-P` keeps the working directory off the path, where a user's `queue.py` would shadow the standard library's.
# What the program has on its path comes behind what the interpreter has by itself.
_BOOT: Final = (
    "import importlib, json, sys; sys.path += [each for each in json.loads(sys.argv[3]) if each not in sys.path]; "
    "sys.exit(importlib.import_module(sys.argv[1]).main(sys.argv[2]))"
)


def spawn(
    module: str, settings: str, descriptors: tuple[int, ...], *, stderr: int | None = None
) -> subprocess.Popen[bytes]:
    """A process that runs `module.main(settings)` and inherits the descriptors.

    It dies with the thread that calls this, once it is guarded.
    """
    return subprocess.Popen(
        [sys.executable, "-P", "-c", _BOOT, module, settings, json.dumps(search_path())],
        stdin=subprocess.DEVNULL,
        stderr=stderr,
        pass_fds=descriptors,
        process_group=0,  # a terminal's Ctrl-C is for the program
    )


def search_path() -> list[str]:
    """Where the program finds its modules, as it would be said in another directory."""
    return [str(Path(each).absolute()) for each in sys.path]
