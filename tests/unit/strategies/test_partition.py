"""Shares: together they are the view, and no two overlap."""

from collections import Counter

import pytest

from stepwell.errors import InvalidArgument
from stepwell.strategies.partition import ViewShare, unwrap_shares
from tests.support.strategy_views import Store


def filled() -> Store:
    store = Store()
    for number in range(20):
        store.store(f"f{number}", f"body {number}", project="pq"[number % 2])
    return store


@pytest.mark.parametrize("parts", [1, 2, 3, 7, 50])
def test_together_they_are_the_view(parts: int) -> None:
    view = filled().view("p", "q")
    shares = [ViewShare(view, part, parts) for part in range(parts)]
    assert sum(map(len, shares)) == len(view)
    assert Counter(seen.row.fragment_id for share in shares for seen in share) == Counter(
        seen.row.fragment_id for seen in view
    )
    for share in shares:
        assert (share.epoch, share.revision, share.projects) == (view.epoch, view.revision, view.projects)
        rows = [row for project in share.projects for row in share.rows(project)]
        assert rows == [seen.row for seen in share]
        assert all(share.get(row.fragment_id, project=row.project) for row in rows)


def test_one_that_is_elsewhere_or_nowhere() -> None:
    share = ViewShare(filled().view("p", "q"), 0, 2)
    assert share.get("f1", project="q") is not None  # the second of all
    assert share.get("f0", project="p") is None
    assert share.get("f99", project="p") is None


def test_shares_of_shares() -> None:
    """What several workers share can be shared again, and it is known what it is a share of."""
    view = filled().view("p", "q")
    inner = [ViewShare(ViewShare(view, part, 2), place, 3) for part in range(2) for place in range(3)]
    assert sum(map(len, inner)) == len(view)
    assert unwrap_shares(inner[0]) == (view, ((0, 3), (0, 2)))
    assert unwrap_shares(view) == (view, ())
    assert [row for row in view.rows("q") if row.serial % 3 == 0 and row.serial % 2 == 0] == inner[0].rows("q")


def test_changes_of_a_share() -> None:
    """Whoever follows the changes of a share has the share, also of what was deleted and made again."""
    store = filled()
    before = store.view("p")
    store.delete("f0")
    store.delete("f2")
    store.store("f4", "another body")
    store.store("new")
    store.store("f0", "made again")  # with another serial, in the other share
    after = store.view("p")
    for part in range(2):
        share = ViewShare(after, part, 2)
        known = {row.fragment_id: row for row in ViewShare(before, part, 2).rows("p")}
        changes = share.changes("p", before.revision)
        assert changes is not None
        for gone in changes.removed:
            known.pop(gone, None)
        known |= {seen.row.fragment_id: seen.row for seen in changes.stored}
        assert known == {row.fragment_id: row for row in share.rows("p")}


def test_changes_that_cannot_be_told() -> None:
    store = filled()
    assert ViewShare(store.view(base=5), 0, 2).changes("p", 4) is None


@pytest.mark.parametrize("part, parts", [(-1, 2), (2, 2), (0, 0)])
def test_a_part_that_does_not_exist(part: int, parts: int) -> None:
    with pytest.raises(InvalidArgument, match="counted from 0"):
        ViewShare(Store().view(), part, parts)
