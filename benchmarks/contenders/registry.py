"""The contenders of the small-body benchmark, in the order of the table."""

from __future__ import annotations

from typing import Final

from benchmarks.contenders import actors, managers, redis_client, stepwell_client
from benchmarks.contenders.base import Contender

STEPWELL: Final = "stepwell"
SYNC_MANAGER: Final = "SyncManager dict"
REDIS: Final = "Redis"
BASE_MANAGER: Final = "BaseManager class"
LOCKED: Final = "RLock in one process"

CONTENDERS: Final = (
    Contender(name=STEPWELL, start=stepwell_client.start, connect=stepwell_client.connect),
    Contender(name=SYNC_MANAGER, start=managers.start_dict, connect=managers.connect_dict, has_batches=False),
    Contender(name=BASE_MANAGER, start=managers.start_store, connect=managers.connect_store),
    Contender(name=REDIS, start=redis_client.start, connect=redis_client.connect),
    Contender(
        name=LOCKED,
        start=stepwell_client.start_nothing,
        connect=stepwell_client.lock_services,
        has_batches=False,
        is_threaded=True,
    ),
    Contender(name="Ray actor", start=actors.start_ray, connect=actors.connect_ray, is_noisy=True),
    Contender(name="Dask actor", start=actors.start_dask, connect=actors.connect_dask, is_noisy=True),
    Contender(name="pipe ping-pong", start=stepwell_client.start_nothing, connect=managers.connect_pipe),
)
