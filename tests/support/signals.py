"""The signals of a test run do not depend on how the run was started.

A shell script that starts a command in the background (`nohup … &`) gives it SIGINT and SIGQUIT ignored, and every
process inherits this across `exec`. A program under test would then not notice Ctrl-C.
"""

import signal


def restore_keyboard_signals() -> None:
    """Handle SIGINT and SIGQUIT as at a terminal, in this process and in all that it starts; from the main thread."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGQUIT) is signal.SIG_IGN:
        signal.signal(signal.SIGQUIT, signal.SIG_DFL)
