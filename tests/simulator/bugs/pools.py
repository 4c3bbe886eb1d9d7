"""Bugs of token pools: tokens that are given away twice, or held by the dead."""

from __future__ import annotations

from contextlib import AbstractContextManager

from msgspec.structs import replace

from stepwell.domain.pools import rules
from stepwell.domain.pools.model import TokenPool
from stepwell.domain.replies import TokensLeased
from stepwell.domain.state import State
from stepwell.domain.verdict import Verdict
from stepwell.manager.state_owner import StateOwner
from tests.simulator.bugs.registry import bug, patched


@bug("Tokens that other sessions hold are leased again.")
def leased_tokens_are_free() -> AbstractContextManager[None]:
    return patched((TokenPool, "free", property(lambda self: self.tokens - self.spent)))


@bug("A session that ends keeps its tokens.")
def tokens_held_by_the_dead() -> AbstractContextManager[None]:
    return patched((StateOwner, "sessions_with_tokens", property(lambda _self: ())))


@bug("The use of a lease is counted in the lease only, so that it is free again when the lease ends.")
def use_is_not_spent() -> AbstractContextManager[None]:
    def changed(state: State, after: TokenPool, reply: TokensLeased | None = None) -> Verdict:
        return original(state, replace(after, spent_parts=0), reply)

    original = rules._changed
    return patched((rules, "_changed", changed))
