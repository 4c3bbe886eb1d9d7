"""Test doubles for those who build on stepwell: a runtime inside the test, its clock, its faults, a check for leaks.

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
"""

# Imported when it is first asked for: pytest imports this package in everybody's tests, whether they use it or not.
from lazy_loader import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
