"""Programs that ingest, to be killed in the middle of it."""

import sys
import threading

import stepwell as sw


def ingest_until(address: str, root: str, done: str) -> None:
    """Ingest so many files, say so, and wait for the end."""

    def wait(so_far: int, _total: int, _note: str) -> None:
        if so_far >= int(done):
            print("there", flush=True)
            threading.Event().wait()

    with sw.connect(address, projects=["p"]) as client:
        client.ingest(root, on_progress=wait)


if __name__ == "__main__":
    ingest_until(*sys.argv[1:])
