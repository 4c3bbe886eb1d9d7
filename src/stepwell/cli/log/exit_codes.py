"""The exit codes of `stepwell log`, as its help explains them. The group imports nothing else of its commands."""

from typing import Final

EXIT_CODES: Final = (
    "exit codes: 0, done; 1, refused or failed, and stderr says why; 2, asked for wrongly; 3, a conflict: the log has "
    "another head than expected; 130, interrupted."
)
