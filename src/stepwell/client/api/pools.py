"""`TokenPoolService`: budgets of model tokens that agents in any number of processes share.

The manager grants a lease only if the pool has as many free tokens, so that no two agents can plan with the same ones.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Final, Literal

from stepwell import limits
from stepwell.client.api.service import BlockingService, BufferedService, Service, method
from stepwell.client.session.calls import Answered, Call
from stepwell.domain.pools.commands import (
    CreatePool,
    DeletePool,
    GetPool,
    LeaseTokens,
    ListPools,
    ResizePool,
    ReturnTokens,
    UseTokens,
)
from stepwell.domain.pools.model import TokenLease, TokenPool
from stepwell.domain.replies import PoolFound, PoolPage, TokensLeased
from stepwell.errors import InvalidArgument
from stepwell.telemetry import Logger, LogLevel

_LOG: Final = Logger(LogLevel.WARNING)

Period = Literal["second", "minute", "hour", "day"]
"""The time in which a pool refills entirely."""

PERIODS_MS: Final[dict[str, int]] = {"second": 1_000, "minute": 60_000, "hour": 3_600_000, "day": 86_400_000}


class PoolCalls(Service):
    """The calls on token pools; their result depends on the kind of service."""

    @method
    def create(
        self, name: str, *, tokens: int, per: Period | None = None, soft_percent: int = limits.POOL_SOFT_PERCENT
    ) -> Call[TokenPool]:
        """Create a pool. With `per`, it refills by so many tokens in each minute (or other period), continuously.

        When more than `soft_percent` of its tokens are spent or leased, the client that leases them logs a warning.
        """
        if per is not None and per not in PERIODS_MS:
            raise InvalidArgument(f"per is {per!r}: give one of {', '.join(PERIODS_MS)}, or None")
        return Call(CreatePool(name, tokens, None if per is None else PERIODS_MS[per], soft_percent), _pool_of)

    @method
    def resize(self, name: str, *, tokens: int) -> Call[TokenPool]:
        """Change the number of tokens of a pool. What is spent and leased stays so."""
        return Call(ResizePool(name, tokens), _pool_of)

    @method
    def delete(self, name: str) -> Call[TokenPool]:
        """Delete a pool, and return it as it was. `Busy` while sessions hold tokens of it."""
        return Call(DeletePool(name), _pool_of)

    @method
    def get(self, name: str) -> Call[TokenPool]:
        """Return a pool as it is now: `tokens`, `spent`, `leased`, `free`, and its leases."""
        return Call(GetPool(name), _pool_of)

    @method
    def list(self, *, limit: int = 100, cursor: str | None = None) -> Call[PoolPage]:
        """Return a page of pools in order of name."""
        return Call(ListPools(limit, cursor))

    @method
    def lease(self, name: str, tokens: int) -> Call[TokenLease]:
        """Lease tokens of a pool, or raise `PoolEmpty` with when to try again.

        The lease ends with `give_back`, or with this session: what it has not reported as used is free again then.
        """
        return Call(LeaseTokens(name, self.session.new_id(), tokens), self._leased)

    @method
    def use(self, name: str, lease: TokenLease | str, tokens: int) -> Call[TokenLease]:
        """Report tokens of a lease as used. More than were leased may have been used: they count, too."""
        return Call(UseTokens(name, _id_of(lease), tokens), _lease_of)

    @method
    def give_back(self, name: str, lease: TokenLease | str, *, used: int | None = None) -> Call[TokenPool]:
        """End a lease. `used` is the number of tokens that were used in all; without it, those that were reported."""
        lease_id = _id_of(lease)
        self.session.channel.rules.token_leases.discard(lease_id)
        return Call(ReturnTokens(name, lease_id, used), _pool_of)

    def _leased(self, answered: Answered[TokensLeased]) -> TokenLease:
        """Remember the lease, so that closing the session ends it at once, and return it."""
        self.session.channel.rules.token_leases.add(answered.reply.lease.lease_id)
        return _lease_of(answered)


def _pool_of(answered: Answered[PoolFound]) -> TokenPool:
    return answered.reply.pool


def _lease_of(answered: Answered[TokensLeased]) -> TokenLease:
    """Return the lease, and warn if the pool has become low by it."""
    reply = answered.reply
    if reply.became_low:
        pool = reply.pool
        _LOG.warning("pool.low", pool=pool.name, free=pool.free, tokens=pool.tokens, soft_percent=pool.soft_percent)
    return reply.lease


def _id_of(lease: TokenLease | str) -> str:
    return lease if isinstance(lease, str) else lease.lease_id


class BufferedPools(PoolCalls, BufferedService):
    """The calls on token pools inside a batch or a transaction."""


class LeasedTokens:
    """Tokens that a block holds. `TokenPoolService.leased` makes it. Threads may share it."""

    def __init__(self, service: TokenPoolService, name: str, lease: TokenLease) -> None:
        self._service = service
        self._name = name
        self.lease = lease

    @property
    def left(self) -> int:
        """The tokens that were leased and not reported as used, as this process knows it."""
        return self.lease.left

    def use(self, tokens: int) -> None:
        """Report tokens as used."""
        self.lease = self._service.use(self._name, self.lease, tokens)


class TokenPoolService(PoolCalls, BlockingService):
    """Token pools, for any number of threads and processes.

    Each call is one step in the manager. With a data directory, pools and leases survive a restart of the manager.
    """

    @contextmanager
    def leased(self, name: str, tokens: int) -> Generator[LeasedTokens]:
        """Hold tokens of a pool for a `with` block; raise `PoolEmpty` if it has not so many.

        The block reports what it uses by `held.use(n)`; the rest is returned at its end.
        """
        held = LeasedTokens(self, name, self.lease(name, tokens))
        try:
            yield held
        finally:
            self.give_back(name, held.lease)
