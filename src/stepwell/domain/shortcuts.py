"""Shortcuts: what most requests ask for, in one step, where nothing else comes of it.

A `get` of a fragment that is hot moves nothing, and a `store` of one that is new, and has room, concerns nobody else.
Both are decided and done in here in one go, in half of the time. Of whatever is not as simple they know nothing, change
nothing and give None: then `machine.apply`, which says what is right, has its turn. That the two agree is
property-tested.
"""

from __future__ import annotations

from stepwell.domain.commands.tiers import GetFragment, StoreFragment
from stepwell.domain.content import digest_of
from stepwell.domain.deciding import Origin, RowChanged
from stepwell.domain.fragment import FragmentRow
from stepwell.domain.machine import Outcome
from stepwell.domain.replies import FragmentFound, FragmentPlaced
from stepwell.domain.state import State
from stepwell.domain.tier import HOT


def get(state: State, command: GetFragment, origin: Origin) -> FragmentFound | None:
    """A fragment that is hot already."""
    project = command.project
    if origin.projects is not None and project not in origin.projects:
        return None
    table = state.fragments
    entry = table.entries.get((project, command.fragment_id))
    if entry is None or entry.row.tier is not HOT:
        return None
    table.touch(entry, origin.now_ms)
    return FragmentFound(entry.row, origin.now_ms, entry.access_count)


def store(state: State, command: StoreFragment, origin: Origin) -> Outcome | None:
    """A fragment that is new, as its body is, for which nothing has to make room."""
    project, body = command.project, command.body
    table, bodies, budget = state.fragments, state.bodies, state.budget
    if (
        not isinstance(body, bytes)
        or command.tier is not HOT
        or command.metadata
        or command.expected_revision
        or (origin.projects is not None and project not in origin.projects)
        or (project, command.fragment_id) in table.entries
    ):
        return None
    size, tokens = len(body), command.tokens
    if (
        table.hot_tokens + tokens > budget.hot_tokens
        or bodies.bytes + size > budget.bodies_bytes
        or bodies.arena_bytes + size > budget.live_bytes
        or (digest := digest_of(body)) in bodies.counts
    ):
        return None
    state.revision = revision = state.revision + 1
    now_ms = origin.now_ms
    row = FragmentRow(
        project,
        command.fragment_id,
        command.source,
        command.kind,
        command.detail_depth,
        tokens,
        size,
        digest,
        HOT,
        now_ms,
        now_ms,
        revision,
        table.next_serial,
        command.metadata,
    )
    table.swap(None, row)
    bodies.add(digest, size)
    placed = FragmentPlaced(project, command.fragment_id, HOT, tokens, revision, digest)
    return Outcome(placed, revision, (RowChanged(None, row),), {digest: body})
