"""Programs with workers, to be killed: each says who they are, and then waits for its end."""

import sys
import threading

import stepwell as sw
from stepwell.strategies.protocol import ContextRequest
from tests.support import strategies


def hold(name: str, data_dir: str | None = None) -> None:
    """Two workers, both busy with a strategy; the ids of the manager and of the workers on stdout."""
    with sw.Runtime.start(workers=2, strategies=strategies.ALL, data_dir=data_dir) as runtime:
        client = runtime.client(projects=["p"])
        client.tiers.store(sw.Fragment(fragment_id="a", body="a"))
        for _ in range(2):
            client.strategies.submit(name, ContextRequest(projects=("p",)))
        while client.strategies.list().leased < 2:
            pass
        print(runtime.address, runtime.pid, *runtime.workers, flush=True)
        threading.Event().wait()


if __name__ == "__main__":
    hold(*sys.argv[1:])
