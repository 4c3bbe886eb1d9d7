"""Shortcuts: what most requests ask for, in one step, where nothing else comes of it.

A `get` of a fragment that is hot moves nothing, and a `store` of one that is new, and has room, concerns nobody else.
Both are decided and done in here in one go, in half of the time. Of whatever is not as simple they know nothing, change
nothing and give None: then `machine.apply`, which says what is right, has its turn. That the two agree is
property-tested. Names are held to their bounds by `machine.apply` too: what exists has been.
"""

from __future__ import annotations

from collections.abc import Sequence

from stepwell import limits
from stepwell.domain.commands.tiers import GetFragment, StoreFragment
from stepwell.domain.content import digest_of
from stepwell.domain.deciding import Origin
from stepwell.domain.fragment import NO_METADATA, FragmentRow
from stepwell.domain.names import known_label
from stepwell.domain.replies import FragmentFound
from stepwell.domain.state import State
from stepwell.domain.tier import HOT


def get(state: State, commands: Sequence[object], origin: Origin) -> list[FragmentFound]:
    """Fragments that are hot already and have little to say beside their bodies, up to the first that is not."""
    found: list[FragmentFound] = []
    table, now_ms, projects = state.fragments, origin.now_ms, origin.projects
    entries, touch = table.entries, table.touch
    for command in commands:
        if not isinstance(command, GetFragment) or (projects is not None and command.project not in projects):
            break
        entry = entries.get((command.project, command.fragment_id))
        if entry is None:
            break
        row = entry.row
        if row.tier is not HOT or row.metadata or len(row.source) > limits.SIMPLE_SOURCE_CHARS_MAX:
            break
        touch(entry, now_ms)
        found.append(FragmentFound(row, now_ms, entry.access_count))
    return found


def store(state: State, command: StoreFragment, origin: Origin) -> FragmentRow | None:
    """The row of a fragment that is new, as its body is, in a project that exists, and for which nothing makes room."""
    body, tokens, fragment_id = command.body, command.tokens, command.fragment_id
    table, bodies, budget = state.fragments, state.bodies, state.budget
    project, kind = table.project_named(command.project), known_label(command.kind)
    if (
        project is None
        or kind is None
        or not isinstance(body, bytes)
        or command.tier is not HOT
        or command.metadata
        or command.expected_revision
        or not fragment_id
        or not fragment_id.isprintable()
        or (origin.projects is not None and project not in origin.projects)
        or (project, fragment_id) in table.entries
    ):
        return None
    size = len(body)
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
        fragment_id,
        command.source,
        kind,
        command.detail_depth,
        tokens,
        size,
        digest,
        HOT,
        now_ms,
        now_ms,
        revision,
        table.next_serial,
        NO_METADATA,
    )
    table.add(row)
    bodies.add(digest, size)
    return row
