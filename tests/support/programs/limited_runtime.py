"""A program that may open few descriptors, and so may the manager that it starts."""

import resource
from multiprocessing.connection import Connection

import stepwell as sw


def serve_with(descriptors_max: int, data_dir: str | None, orders: Connection) -> None:
    """Start a runtime under the limit, send its address and its pid, and end it when told."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(64, descriptors_max), descriptors_max))
    with sw.Runtime.start(workers=0, data_dir=data_dir) as runtime:
        orders.send((runtime.address, runtime.pid))
        orders.recv()
        orders.send(runtime.is_alive() and runtime.restarts == 0)
