"""Token pools: clients lease tokens, use some, and return them or do not."""

from __future__ import annotations

import stepwell as sw
from stepwell.errors import OutcomeUnknown, StepwellError
from tests.simulator.pool_judge import POOL, POOL_TOKENS
from tests.simulator.workloads.base import Actor

LEASE_TOKENS = POOL_TOKENS // 4
"""A lease has up to so many: then some are refused."""


async def use_pool(actor: Actor) -> None:
    """Lease tokens of the one pool, report some of them as used, and mostly return the others."""
    pools, judge, random = actor.client.pools, actor.oracle.pools, actor.random
    tokens = random.randrange(1, LEASE_TOKENS)
    try:
        lease = await pools.lease(POOL, tokens)
    except sw.NotFound:
        await pools.create(POOL, tokens=POOL_TOKENS, soft_percent=100)
        return
    used = random.randrange(1 + tokens // 50)
    judge.asked += used
    try:
        if random.random() < 0.5:
            await pools.use(POOL, lease, used)
        else:
            await pools.give_back(POOL, lease, used=used)
    except OutcomeUnknown:
        raise
    except StepwellError:
        judge.refused += used
        raise
    judge.acknowledged += used
