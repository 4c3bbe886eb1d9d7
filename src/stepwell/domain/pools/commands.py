"""The commands on token pools. `rules` decides them."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from stepwell import limits
from stepwell.domain import replies
from stepwell.domain.bounded_types import Cursor, Identifier, Label, PageLimit
from stepwell.domain.command_roots import Internal, Read, Write

PoolTokens = Annotated[
    int, Meta(ge=1, le=limits.POOL_TOKENS_MAX, description="tokens of a pool are a whole number from 1 to 10**12")
]
UsedTokens = Annotated[
    int, Meta(ge=0, le=limits.POOL_TOKENS_MAX, description="used tokens are a whole number, 0 or more")
]
PeriodMs = Annotated[
    int,
    Meta(ge=1, le=limits.POOL_PERIOD_MS_MAX, description="a pool refills in a period of at most 31 days"),
]
SoftPercent = Annotated[int, Meta(ge=1, le=100, description="a soft limit is a percentage from 1 to 100")]


class CreatePool(Write[replies.PoolFound], frozen=True):
    """Create a pool. Without a period it does not refill."""

    name: Label
    tokens: PoolTokens
    period_ms: PeriodMs | None = None
    soft_percent: SoftPercent = limits.POOL_SOFT_PERCENT


class ResizePool(Write[replies.PoolFound], frozen=True):
    """Change the number of tokens of a pool. What is spent and leased stays so."""

    name: Label
    tokens: PoolTokens


class DeletePool(Write[replies.PoolFound], frozen=True):
    """Delete a pool of which no session holds tokens."""

    name: Label


class LeaseTokens(Write[replies.TokensLeased], frozen=True):
    """Lease tokens of a pool until they are returned, or until the session ends. Refused with `PoolEmpty`."""

    name: Label
    lease_id: Identifier
    tokens: PoolTokens


class UseTokens(Write[replies.TokensLeased], frozen=True):
    """Report tokens of a lease as used. More than were leased may have been used, and count."""

    name: Label
    lease_id: Identifier
    tokens: UsedTokens


class ReturnTokens(Write[replies.PoolFound], frozen=True):
    """End a lease. `used` is the number of tokens that were used in all; None: those that were reported."""

    name: Label
    lease_id: Identifier
    used: UsedTokens | None = None


class GetPool(Read[replies.PoolFound], frozen=True):
    """Read a pool as it is now."""

    name: Label


class ListPools(Read[replies.PoolPage], frozen=True):
    """List the pools in order of name, as they are now."""

    limit: PageLimit = 100
    cursor: Cursor | None = None


class EndTokenLeases(Internal[replies.PoolPage], frozen=True):
    """End the leases of a session that is gone. Sent by the manager."""

    session_id: str


PoolRead = GetPool | ListPools
PoolWrite = CreatePool | ResizePool | DeletePool | LeaseTokens | UseTokens | ReturnTokens
