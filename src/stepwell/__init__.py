"""stepwell: a multiprocess runtime in which many agents share context, plans and changes without losing any.

One manager process owns all state and applies requests one at a time, in one total order. Programs, agents and tools
are clients of that process, on the same machine.

    >>> import stepwell as sw
    >>> with sw.Runtime.start() as runtime, runtime.client(projects=["p"]) as client:
    ...     client.tiers.store(sw.Fragment(fragment_id="a", body="hello")).tier.value
    ...     client.tiers.get("a").text
    'hot'
    'hello'

Entry points: `Runtime.start` starts a manager for this program, `connect` connects to one that runs already, and
`stepwell.aio.connect` does the same for asyncio. The names here are the ones that a program constructs, catches or
calls. `stepwell.events` has the events of `client.watch`, and `stepwell.types` the types of results: pages, rows and
reports. `stepwell.testing` is for the tests of programs that use stepwell. All other modules may change.
"""

# The names of `__init__.pyi` are imported when they are first used. Every process of the runtime imports this package,
# and a worker, for example, needs no manager.
from lazy_loader import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
