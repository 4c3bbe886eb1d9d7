"""The exit codes of the command line, in one table.

A shell script that calls `stepwell` may rely on them. 0 means that the command did its work. `stepwell plan record`
ends with the exit code of the command that it runs, unless it cannot run or record it. `stepwell serve` also ends with
74 (`manager.process.STORE_FAILED`) if its data directory cannot be written.
"""

from __future__ import annotations

from typing import Final

FAILED: Final = 1  # refused or failed; `doctor` found problems
MISUSED: Final = 2  # the arguments are wrong
CONFLICTING: Final = 3  # `plan`: files or changes are not what the plan expects
CONSTRAINED: Final = 4  # `plan`: a required validation failed
RECORD_FAILED: Final = 125  # `plan record`: it, not the command, failed; `env`, `timeout` and `docker run` use 125 too
COMMAND_UNRUNNABLE: Final = 126  # `plan record`: the command exists and cannot be run
COMMAND_MISSING: Final = 127  # `plan record`: there is no such command
INTERRUPTED: Final = 130  # SIGINT, by the convention of shells
OUTPUT_CLOSED: Final = 141  # SIGPIPE, by the convention of shells: the reader of the output is gone
