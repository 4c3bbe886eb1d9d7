from enum import Enum

class Status(Enum):
    unknown = 0
    untested = 1
    executing = 2
    skipped = 10
    passed = 11
    xfailed = 12
    xpassed = 13
    failed = 20
    error = 21
    hook_error = 22
    cleanup_error = 23
    undefined = 30
    pending = 31
    pending_warn = 32
    untested_pending = 33
    untested_undefined = 34

    def has_failed(self) -> bool: ...
    def is_passed(self) -> bool: ...
    def is_failure(self) -> bool: ...
    def is_error(self) -> bool: ...
