"""Parts of a test that are not measured, because they run the same lines again and again."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def untraced() -> Iterator[None]:
    """Keep this thread's lines in a block, or in a decorated test, from being measured.

    Measuring takes longer than running. A test that does thousands of times what other tests do once adds nothing to
    the coverage. A thread that the block starts is measured as before.
    """
    trace = sys.gettrace()
    sys.settrace(None)
    try:
        yield
    finally:
        sys.settrace(trace)
