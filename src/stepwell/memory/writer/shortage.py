"""Shortages of the machine: which limit of the operating system has been reached, and how to raise it.

They are not the fault of the configured budget, so a refusal that advised to raise the budget would mislead.
"""

from __future__ import annotations

import errno
import os
import resource


def describe_shortage(error: OSError | MemoryError) -> str:
    """Return which resource the operating system refused, with its limit, and what an operator can do about it."""
    code = error.errno if isinstance(error, OSError) else errno.ENOMEM
    match code:
        case errno.ENOMEM:
            return _no_memory()
        case errno.EMFILE:
            return (
                f"the manager may open no more descriptors: RLIMIT_NOFILE is {_limit(resource.RLIMIT_NOFILE)}: "
                "raise it with `ulimit -n`"
            )
        case errno.ENFILE:
            return "the machine may open no more descriptors: raise fs.file-max"
        case errno.EFBIG:
            return (
                "a memory segment or file of the manager may not grow further: "
                f"RLIMIT_FSIZE is {_limit(resource.RLIMIT_FSIZE)} bytes: raise it with `ulimit -f`"
            )
        case errno.ENOSPC | errno.EDQUOT:
            return (
                f"the machine has no room left for shared memory ({os.strerror(code)}): "
                "free memory, or raise the memory limit of the manager's control group"
            )
        case _:
            return f"the machine refused shared memory ({error}): see the manager's log"


def _no_memory() -> str:
    limit = _limit(resource.RLIMIT_AS)
    if limit is not None:
        return f"the manager may map no more memory: RLIMIT_AS is {limit} bytes: raise it with `ulimit -v`"
    return (
        "the machine gives the manager no more memory: free memory, or raise the memory limit of the manager's control "
        "group, vm.max_map_count or vm.overcommit_memory"
    )


def _limit(kind: int) -> int | None:
    """Return the soft limit of this process, or None if there is none."""
    soft, _ = resource.getrlimit(kind)
    return None if soft == resource.RLIM_INFINITY else soft
