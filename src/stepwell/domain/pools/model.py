"""The row of a token pool, with its leases, and the arithmetic of its tokens.

A pool with a period refills continuously: `tokens` of them in each period. What is spent therefore decreases with time.
It is counted in parts of a token, as many as the period has milliseconds, so that no time is lost to rounding however
often the pool is used.
"""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from stepwell.text import brief_repr


class TokenLease(Struct, frozen=True, array_like=True, gc=False):
    """Tokens that a session may use, and how many of them it has reported as used."""

    lease_id: str
    session_id: str
    label: str  # of the session
    tokens: int
    used: int
    leased_at_ms: int

    @property
    def left(self) -> int:
        """The tokens that are still held. A holder that has used more than it leased holds none."""
        return max(0, self.tokens - self.used)


class TokenPool(Struct, frozen=True, array_like=True, gc=False):
    """A pool as it was at `at_ms`. `spent_parts` is what was used and has not been refilled, in parts of a token.

    `soft_percent` is the share of the tokens from which on the pool is low.
    """

    name: str
    tokens: int
    period_ms: int | None
    soft_percent: int
    spent_parts: int
    at_ms: int
    leases: tuple[TokenLease, ...]
    created_at_ms: int
    revision: int

    __repr__ = brief_repr

    @property
    def key(self) -> str:
        """The key of the pool in its table."""
        return self.name

    @property
    def parts(self) -> int:
        """The parts of one token."""
        return self.period_ms or 1

    @property
    def spent(self) -> int:
        """The tokens that were used and have not been refilled, rounded up."""
        return -(-self.spent_parts // self.parts)

    @property
    def leased(self) -> int:
        """The tokens that sessions hold."""
        return sum(lease.left for lease in self.leases)

    @property
    def free(self) -> int:
        """The tokens that can be leased; below zero after holders have used more than they leased."""
        return self.tokens - self.spent - self.leased

    @property
    def is_low(self) -> bool:
        """True if more than the soft limit is spent or leased."""
        return (self.spent + self.leased) * 100 > self.tokens * self.soft_percent

    def as_of(self, now_ms: int) -> TokenPool:
        """Return the pool as it is at a time, refilled since."""
        if self.period_ms is None or now_ms <= self.at_ms:
            return self
        refilled = (now_ms - self.at_ms) * self.tokens
        return replace(self, spent_parts=max(0, self.spent_parts - refilled), at_ms=now_ms)

    def find(self, lease_id: str) -> TokenLease | None:
        """Return a lease, or None if it has ended."""
        return next((each for each in self.leases if each.lease_id == lease_id), None)

    def spend(self, tokens: int) -> TokenPool:
        """Return the pool with more tokens spent."""
        return replace(self, spent_parts=self.spent_parts + tokens * self.parts)

    def with_lease(self, lease: TokenLease) -> TokenPool:
        """Return the pool with a lease in place of the one with its id, or as a further one."""
        others = [each for each in self.leases if each.lease_id != lease.lease_id]
        return replace(self, leases=(*others, lease))

    def without(self, *leases: TokenLease) -> TokenPool:
        """Return the pool without some leases: what they have not used is free again."""
        return replace(self, leases=tuple(each for each in self.leases if each not in leases))

    def retry_after_ms(self, tokens: int) -> int | None:
        """Return the time after which so many tokens are free if no lease ends, or None if that alone is not enough."""
        surplus = self.tokens - self.leased - tokens
        if self.period_ms is None or surplus < 0:
            return None
        return -(-(self.spent_parts - surplus * self.parts) // self.tokens)
