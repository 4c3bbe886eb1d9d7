"""Views: all fragments of some projects as of one revision, read from shared memory without requests.

The manager appends every change of a project to its catalogue, in shared memory. To open a view a client asks once for
the ends of the catalogues at one revision, then replays the catalogues up to there by itself. A later view of the same
project replays only what was appended since.

A view holds handles and no mappings, so that it pins no memory. Therefore a body of a view may be gone (`BodyGone`),
while a fragment that `get` returned stays readable.
"""

from __future__ import annotations

import contextlib
import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct

from stepwell import limits
from stepwell.client.api.fragments import ViewedFragment
from stepwell.client.api.tiers import ContextTierService
from stepwell.client.session.calls import Answered, Call
from stepwell.client.session.lazy import lazy_property
from stepwell.client.session.session import Session
from stepwell.domain.replies import BodiesLocated
from stepwell.domain.tiers.commands import LocateBodies
from stepwell.domain.tiers.model import FragmentRow
from stepwell.errors import BodyGone, InvalidArgument
from stepwell.memory.reader.catalogue_reader import CatalogueState, changes, nearest, replay
from stepwell.protocol.handles import CatalogueEnd, Handle
from stepwell.text import describe, listed, plural

Key = tuple[str, str]


class View(Struct, frozen=True, dict=True):
    """The fragments of some projects at one revision. It never changes, and any number of threads may use it.

    Iterating yields the fragments project by project, in order of creation, and with them the rows that `ingest` keeps
    for whole files (their `kind` is "file"); `len` counts both. A body is found in shared memory without a request. A
    body that was deleted after the view was opened, and whose memory is gone, raises `BodyGone`.
    """

    epoch: str
    revision: int
    projects: tuple[str, ...]
    is_difference: bool  # has only the changes since the revision that was asked for
    replayed: tuple[CatalogueState, ...]
    bodies: ViewBodyReader

    def __len__(self) -> int:
        return sum(len(each.rows) for each in self.replayed)

    def __iter__(self) -> Iterator[ViewedFragment]:
        for project in self.replayed:
            for row in project.in_order:
                yield ViewedFragment(row, project.handles[row.digest], self.bodies.read)

    def __contains__(self, key: Key) -> bool:
        return self.get(key[1], project=key[0]) is not None

    def get(self, fragment_id: str, *, project: str | None = None) -> ViewedFragment | None:
        """Return one fragment, or None. `project` may be omitted in a view of one project."""
        if project is None and len(self.projects) != 1:
            raise InvalidArgument("name a project: project= may be left out only in a view of exactly one")
        found = self._by_project.get(self.projects[0] if project is None else project)
        row = found.rows.get(fragment_id) if found else None
        return ViewedFragment(row, found.handles[row.digest], self.bodies.read) if found and row else None

    def rows(self, project: str) -> Sequence[FragmentRow]:
        """Return the rows of a project's fragments, in order of creation."""
        found = self._by_project.get(project)
        return found.in_order.rows if found else ()

    def changes(self, project: str, since: int) -> ViewChanges | None:
        """Return the changes of a project after a revision of this epoch.

        The result is None if the catalogue does not go back that far, or if this view is a difference.
        """
        found = self._by_project.get(project)
        if found is None or self.is_difference or since > self.revision:
            return None
        try:
            changed = changes(found.end, self.bodies.segment, since, found.before)
        except BodyGone:
            return None
        if changed is None:
            return None
        stored = [ViewedFragment(row, changed.handles[row.digest], self.bodies.read) for row in changed.in_order]
        return ViewChanges(tuple(stored), changed.removed)

    @property
    def ends(self) -> tuple[CatalogueEnd, ...]:
        """The ends of the replayed catalogues; a worker process that has them can open the same view."""
        return tuple(each.end for each in self.replayed)

    @lazy_property
    def removed(self) -> frozenset[Key]:
        """In a difference: project and id of the fragments that were deleted."""
        return frozenset((each.end.project, fragment_id) for each in self.replayed for fragment_id in each.removed)

    @lazy_property
    def _by_project(self) -> dict[str, CatalogueState]:
        """The replayed catalogues by project."""
        return {each.end.project: each for each in self.replayed}

    def __repr__(self) -> str:
        return describe(self, f"of {listed(self.projects)}", f"revision {self.revision}", plural(len(self), "row"))


class ViewChanges(Struct, frozen=True):
    """The fragments of a project that are new or different, in order of creation, and the ids of deleted ones."""

    stored: tuple[ViewedFragment, ...]
    removed: frozenset[str]


class ViewBodyReader:
    """Reads the bodies of a view.

    If a body was moved since the view was opened, it asks the manager for the new place.
    """

    def __init__(self, session: Session) -> None:
        self._session = session

    def read(self, digest: bytes, handle: Handle) -> memoryview:
        """Return a body; `BodyGone` if it was deleted."""
        try:
            return self._session.bodies.read(digest, handle)
        except BodyGone:
            body = self._session.perform(Call(LocateBodies((digest,)), self._located))
        if body is None:
            raise BodyGone("this body was deleted since the view was opened: open another one", digest=digest.hex())
        return body

    def segment(self, number: int) -> memoryview:
        """Return all bytes of a segment; `BodyGone` if it was retired."""
        return self._session.bodies.segment(number)

    def _located(self, answered: Answered[BodiesLocated]) -> memoryview | None:
        """Read the body that the manager has located; None if it holds the body no more."""
        for digest, handle in answered.handles.items():
            return self._session.bodies.read(digest, handle)
        return None


class Views:
    """Opens views, and caches replayed catalogues. Any number of threads may use it.

    The cache holds the projects that were viewed last, about 1 kB for each fragment. It has a few states of each
    project, which share most of their memory, because views that other clients have opened (`open_at`) may be a little
    older.
    """

    def __init__(self, session: Session, tiers: ContextTierService) -> None:
        self._session = session
        self._tiers = tiers
        self._bodies = ViewBodyReader(session)
        self._reset()
        session.channel.on_fork(self._reset)

    def _reset(self) -> None:
        """Forget all replayed catalogues.

        A forked child does so because it may reach another manager, with other catalogues of the same names.
        """
        self._lock = threading.Lock()
        self._replayed: OrderedDict[str, tuple[CatalogueState, ...]] = OrderedDict()

    def open(self, projects: Iterable[str] | None, since: int | None) -> View:
        """Open a view of the current revision or, with `since`, a difference.

        If a catalogue does not go back to `since`, it is a whole view; `is_difference` tells them apart.

        Between the answer and the replay the manager may rewrite a catalogue. Then the client asks again.
        """
        names = self._names(projects)
        for _ in range(limits.MOVED_BODY_ATTEMPTS_MAX):
            opened = self._session.open_view(names)
            if since is not None and not 0 <= since <= opened.revision:
                raise InvalidArgument(f"since={since} is no revision of this epoch, which is at {opened.revision}")
            try:
                differences = None if since is None else self._differences(opened.catalogues, since)
                replayed = differences or tuple(map(self._replay, opened.catalogues))
            except BodyGone:  # the manager has rewritten a catalogue since its answer
                continue
            return View(opened.epoch, opened.revision, names, differences is not None, replayed, self._bodies)
        raise BodyGone(f"a catalogue was listed anew {limits.MOVED_BODY_ATTEMPTS_MAX} times before it could be read")

    def open_at(self, epoch: str, revision: int, ends: Sequence[CatalogueEnd]) -> View | None:
        """Open the view that another client has opened; None if its catalogues do not exist any more.

        A client that has not mapped their segments yet receives them with a view of its own, which it opens for that
        purpose.
        """
        names = tuple(end.project for end in ends)
        for is_last in (False, True):
            if self._session.channel.welcome.epoch == epoch:
                with contextlib.suppress(BodyGone):
                    replayed = tuple(map(self._replay, ends))
                    return View(epoch, revision, names, is_difference=False, replayed=replayed, bodies=self._bodies)
            if not is_last:
                self._session.open_view(names)
        return None

    def _names(self, projects: Iterable[str] | None) -> tuple[str, ...]:
        """Return the projects of a view: the given ones, those of the session, or all."""
        if isinstance(projects, str):
            raise InvalidArgument(f"projects is a sequence of names: give [{projects!r}]")
        names = self._session.channel.projects if projects is None else tuple(dict.fromkeys(projects))
        if names is None:
            names = self._tiers.projects(limit=limits.PAGE_ROWS_MAX).projects
        if not 1 <= len(names) <= limits.PROJECTS_PER_SESSION_MAX:
            raise InvalidArgument(
                f"{plural(len(names), 'project')}: a view has 1 to {limits.PROJECTS_PER_SESSION_MAX}, name them with "
                "projects="
            )
        return names

    def _replay(self, end: CatalogueEnd) -> CatalogueState:
        """Return the state of a catalogue at its end, replayed from the nearest cached state, and cache it.

        Replaying happens outside the lock. Two threads may replay the same catalogue; both results are correct and
        immutable.
        """
        before = nearest(self._replayed.get(end.project, ()), end)
        replayed = replay(end, self._session.bodies.segment, before)
        with self._lock:
            others = [each for each in self._replayed.get(end.project, ()) if each is not replayed]
            self._replayed[end.project] = (*others[1 - limits.VIEW_STATES_PER_PROJECT_MAX :], replayed)
            self._replayed.move_to_end(end.project)
            if len(self._replayed) > limits.PROJECTS_PER_SESSION_MAX:
                self._replayed.popitem(last=False)
        return replayed

    def _differences(self, ends: Iterable[CatalogueEnd], since: int) -> tuple[CatalogueState, ...] | None:
        """Return what changed in each project after `since`, or None if one catalogue does not go back that far."""
        found = [changes(end, self._session.bodies.segment, since) for end in ends]
        known = tuple(each for each in found if each is not None)
        return known if len(known) == len(found) else None
