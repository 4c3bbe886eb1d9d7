"""Worker processes for an index: to split many files, and to run strategies of other packages."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stepwell.pool.functions.executor import FunctionExecutor


def start_workers() -> FunctionExecutor:
    """Return an executor with a process for each core, which starts with the first call.

    Most questions need none, so the modules that start processes are imported here.
    """
    from stepwell.pool.functions.executor import FunctionExecutor  # noqa: PLC0415 - see above

    return FunctionExecutor()
