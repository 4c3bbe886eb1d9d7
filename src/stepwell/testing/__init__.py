"""Test doubles for programs that use stepwell: a runtime inside the test, its clock, its faults, a check for leaks.

    >>> from stepwell.testing import Clock, LocalRuntime
    >>> import stepwell as sw
    >>> clock = Clock()
    >>> with LocalRuntime(clock=clock) as runtime:
    ...     tiers = runtime.client(projects=["p"]).tiers
    ...     tiers.store(sw.Fragment(fragment_id="a", body="hello")).tier.value
    ...     clock.advance(2 * 60 * 60)
    ...     tiers.list().rows[0].tier.value
    'hot'
    'warm'

Under pytest there are the fixtures `stepwell_runtime` and `stepwell_clock`, the marker `no_leaks`, and the option
`stepwell_leak_check = true`; see `stepwell.testing.plugin`, which pytest loads by itself.

The doubles are the real manager, client and worker, in threads of the test's process. Only the clock, the faults and
the place are different, so a test with them is a test of the real code.

Imports: everything but the command line. The command line and all other packages import nothing from here, so that test
code is never part of production.

Invariants: a fault that is armed has to happen, or the runtime's end raises. Closing a `LocalRuntime` ends its clients,
its worker and its manager. Importing this package imports nothing else of stepwell.
"""

# Names are imported on first use, because pytest imports this package in every test run on the machine.
from lazy_loader import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
