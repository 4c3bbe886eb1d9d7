"""The fast path: runs of the two simple cases that are most of the traffic.

- a `get` of a fragment that is hot already: it moves nothing;
- a `store` of a new fragment into a project that exists, with room for it: it affects no other fragment.

`machine.apply_get_run` and `machine.apply_store_run` take a batch of commands, apply as many from its beginning as are
simple, and stop before the first that is not. They take a third of the time that `machine.apply` takes for the same
commands, because one pass over the batch replaces a verdict, a change and a reply for each command. Whatever is not
simple, including every refusal, is left to `machine.apply`, which alone defines what a command means. Property tests
hold the two to the same result.

This module decides the stores. `new_rows` reads the state and changes nothing, like any decider. It does not check
names: a name that exists was checked when it was created, and a new id passes only if it is printable, which is
stricter than its pattern. To decide a read is a matter of three conditions, which are in `machine.apply_get_run`.
"""

from __future__ import annotations

from collections.abc import Sequence

from stepwell.domain.bounded_types import known_label
from stepwell.domain.state import State
from stepwell.domain.tiers.body_refs import digest_of
from stepwell.domain.tiers.commands import StoreFragment
from stepwell.domain.tiers.model import HOT, NO_METADATA, FragmentRow
from stepwell.domain.verdict import Origin


def new_rows(
    state: State, commands: Sequence[object], origin: Origin, room_bytes: int
) -> tuple[list[FragmentRow], dict[bytes, bytes]]:
    """Return the rows that the stores at the beginning create, and their bodies by digest.

    All rows are of one project that exists, because its name is then known to be valid. All are new and
    hot, and none has metadata or an expected revision. The bodies are new too and fit into the budget without a
    demotion; together they have at most `room_bytes`. Each row has the revision that the general path would give it.
    """
    table, bodies, budget = state.fragments, state.bodies, state.budget
    now_ms, projects = origin.now_ms, origin.projects
    rows: list[FragmentRow] = []
    arrived: dict[bytes, bytes] = {}
    names: set[str] = set()
    project: str | None = None
    revision, serial = state.revision, table.next_serial
    tokens_left = budget.hot_tokens - table.hot_tokens
    bytes_left = min(budget.bodies_bytes - bodies.bytes, budget.live_bytes - bodies.arena_bytes, room_bytes)
    for command in commands:
        if not isinstance(command, StoreFragment):
            break
        if project is None:
            project = table.interned_project(command.project)
        body, tokens, fragment_id, kind = command.body, command.tokens, command.fragment_id, known_label(command.kind)
        if (
            project is None
            or kind is None
            or not isinstance(body, bytes)
            or command.project != project
            or (projects is not None and project not in projects)
            or command.tier is not HOT
            or command.metadata
            or command.expected_revision
            or not fragment_id
            or not fragment_id.isprintable()
            or fragment_id in names
            or (project, fragment_id) in table.entries
        ):
            break
        size = len(body)
        tokens_left -= tokens
        bytes_left -= size
        # The digest comes last, because it costs more than all the other conditions together.
        if tokens_left < 0 or bytes_left < 0 or (digest := digest_of(body)) in arrived or digest in bodies.counts:
            break
        revision += 1
        rows.append(
            FragmentRow(
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
                serial,
                NO_METADATA,
            )
        )
        serial += 1
        names.add(fragment_id)
        arrived[digest] = body
    return rows, arrived
