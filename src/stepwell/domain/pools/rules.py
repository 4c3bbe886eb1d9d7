"""The rules of token pools. All sessions see all pools, as they see all actions: a pool belongs to a team.

A lease is granted if the pool has so many free tokens: neither spent nor leased. A session that ends returns what it
has not reported as used. So a dead agent holds no tokens, and what it did report stays spent.
"""

from __future__ import annotations

from msgspec.structs import replace

from stepwell import limits
from stepwell.domain.paging import build_page
from stepwell.domain.pools.commands import (
    CreatePool,
    DeletePool,
    EndTokenLeases,
    GetPool,
    LeaseTokens,
    ListPools,
    ResizePool,
    ReturnTokens,
    UseTokens,
)
from stepwell.domain.pools.model import TokenLease, TokenPool
from stepwell.domain.replies import PoolFound, PoolPage, TokensLeased
from stepwell.domain.state import State
from stepwell.domain.verdict import Origin, RowChanged, Verdict, decides
from stepwell.errors import AlreadyExists, Busy, InvalidArgument, NotFound, PoolEmpty, TierFull
from stepwell.text import plural


@decides(CreatePool)
def create_pool(state: State, command: CreatePool, origin: Origin) -> Verdict:
    """Create a pool with all of its tokens free."""
    if state.pools.get(command.name) is not None:
        raise AlreadyExists(f"there is a pool {command.name!r} already: resize or delete it", name=command.name)
    if len(state.pools) >= limits.POOLS_MAX:
        raise TierFull(f"there are {limits.POOLS_MAX} pools already: delete some", limit=limits.POOLS_MAX)
    pool = TokenPool(
        name=command.name,
        tokens=command.tokens,
        period_ms=command.period_ms,
        soft_percent=command.soft_percent,
        spent_parts=0,
        at_ms=origin.now_ms,
        leases=(),
        created_at_ms=origin.now_ms,
        revision=state.revision + 1,
    )
    return Verdict(PoolFound(pool), (RowChanged(None, pool),))


@decides(ResizePool)
def resize_pool(state: State, command: ResizePool, origin: Origin) -> Verdict:
    """Change the tokens of a pool. It was refilled until now at its earlier rate."""
    pool = _find(state, command.name, origin)
    return _changed(state, replace(pool, tokens=command.tokens))


@decides(DeletePool)
def delete_pool(state: State, command: DeletePool, origin: Origin) -> Verdict:
    """Delete a pool; refused while sessions hold tokens of it."""
    pool = _find(state, command.name, origin)
    if pool.leases:
        raise Busy(
            f"{plural(len(pool.leases), 'lease')} of pool {pool.name!r} {'is' if len(pool.leases) == 1 else 'are'} "
            "held: delete it when its tokens are returned",
            name=pool.name,
        )
    return Verdict(PoolFound(pool), (RowChanged(state.pools.rows[pool.name], None),))


@decides(LeaseTokens)
def lease_tokens(state: State, command: LeaseTokens, origin: Origin) -> Verdict:
    """Grant a lease if the pool has as many free tokens, or raise `PoolEmpty` with when to try again."""
    pool = _find(state, command.name, origin)
    if pool.find(command.lease_id) is not None:
        raise AlreadyExists(f"there is a lease {command.lease_id!r} already", lease_id=command.lease_id)
    if command.tokens > pool.tokens:
        raise InvalidArgument(
            f"pool {pool.name!r} has {pool.tokens} tokens in all: lease fewer than {command.tokens}, or resize it"
        )
    if len(pool.leases) >= limits.LEASES_PER_POOL_MAX:
        raise Busy(f"{limits.LEASES_PER_POOL_MAX} leases of pool {pool.name!r} are held already: try again later")
    if pool.free < command.tokens:
        raise _empty(pool, command.tokens)
    label = origin.writer.label if origin.writer else ""
    lease = TokenLease(command.lease_id, origin.session_id, label, command.tokens, 0, origin.now_ms)
    leased = pool.with_lease(lease)
    return _changed(state, leased, TokensLeased(lease, leased, became_low=leased.is_low and not pool.is_low))


@decides(UseTokens)
def use_tokens(state: State, command: UseTokens, origin: Origin) -> Verdict:
    """Count tokens of a lease as spent."""
    pool = _find(state, command.name, origin)
    lease = _lease(pool, command.lease_id)
    used = replace(lease, used=lease.used + command.tokens)
    after = pool.with_lease(used).spend(command.tokens)
    return _changed(state, after, TokensLeased(used, after, became_low=after.is_low and not pool.is_low))


@decides(ReturnTokens)
def return_tokens(state: State, command: ReturnTokens, origin: Origin) -> Verdict:
    """End a lease. What it has not used is free again."""
    pool = _find(state, command.name, origin)
    lease = _lease(pool, command.lease_id)
    if command.used is not None and command.used < lease.used:
        raise InvalidArgument(
            f"{lease.used} tokens of the lease are reported as used already: `used` is the number of all, and at least "
            "as many"
        )
    unreported = 0 if command.used is None else command.used - lease.used
    return _changed(state, pool.without(lease).spend(unreported))


@decides(GetPool)
def get_pool(state: State, command: GetPool, origin: Origin) -> Verdict:
    """Return a pool as it is now."""
    return Verdict(PoolFound(_find(state, command.name, origin)))


@decides(ListPools)
def list_pools(state: State, command: ListPools, origin: Origin) -> Verdict:
    """Return a page of pools as they are now, in order of name."""
    pools, cursor = build_page(
        state.pools.after(command.cursor),
        command.limit,
        lambda pool: pool.name,
        size_of=lambda pool: (len(pool.leases) + 1) * limits.POOL_ROW_BYTES,
    )
    return Verdict(PoolPage(tuple(pool.as_of(origin.now_ms) for pool in pools), cursor))


@decides(EndTokenLeases)
def end_token_leases(state: State, command: EndTokenLeases, origin: Origin) -> Verdict:
    """Return the tokens of a session that has ended, but those that it reported as used."""
    changes: list[RowChanged[TokenPool]] = []
    for before in state.pools.of_session(command.session_id):
        held = [lease for lease in before.leases if lease.session_id == command.session_id]
        after = replace(before.as_of(origin.now_ms).without(*held), revision=state.revision + 1)
        changes.append(RowChanged(before, after))
    return Verdict(PoolPage(tuple(change.after for change in changes if change.after), None), tuple(changes))


def _find(state: State, name: str, origin: Origin) -> TokenPool:
    """Return a pool as it is now. Raises `NotFound`."""
    pool = state.pools.get(name)
    if pool is None:
        raise NotFound(f"there is no pool {name!r}: create it with pools.create", name=name)
    return pool.as_of(origin.now_ms)


def _lease(pool: TokenPool, lease_id: str) -> TokenLease:
    """Return a lease of a pool. Raises `NotFound` if it has ended."""
    lease = pool.find(lease_id)
    if lease is None:
        raise NotFound(
            f"pool {pool.name!r} has no lease {lease_id!r}: it was returned, or its session has ended",
            lease_id=lease_id,
        )
    return lease


def _changed(state: State, after: TokenPool, reply: TokensLeased | None = None) -> Verdict:
    """Return the verdict that a pool is another one from now on."""
    after = replace(after, revision=state.revision + 1)
    answer = PoolFound(after) if reply is None else replace(reply, pool=after)
    return Verdict(answer, (RowChanged(state.pools.rows[after.name], after),))


def _empty(pool: TokenPool, tokens: int) -> PoolEmpty:
    """Return the refusal of a lease, with when to try again."""
    retry_ms = pool.retry_after_ms(tokens)
    when = "when other leases are returned" if retry_ms is None else f"in {retry_ms} ms"
    if retry_ms is None and pool.tokens - pool.spent < tokens and pool.period_ms is None:
        when = "after the pool was resized, because it does not refill"
    return PoolEmpty(
        f"pool {pool.name!r} has {max(0, pool.free)} free tokens of {pool.tokens}, not {tokens}: try again {when}",
        name=pool.name,
        free=pool.free,
        retry_after_ms=retry_ms,
    )
