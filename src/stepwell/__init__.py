"""stepwell: a multiprocess runtime in which many agents share context, plans and changes without losing any.

One manager process owns all state and serves requests one at a time; everybody else is a client.

    >>> import stepwell as sw
    >>> with sw.Runtime.start() as runtime, runtime.client(projects=["p"]) as client:
    ...     client.tiers.store(sw.Fragment(fragment_id="a", body="hello")).tier.value
    ...     client.tiers.get("a").text
    'hot'
    'hello'
"""

# What is named in `__init__.pyi`, imported when it is first asked for: every process of ours imports this package, and
# a worker needs no manager.
from lazy_loader import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
