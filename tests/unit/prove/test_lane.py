"""A lane makes a bounded number of calls in a round, waits for the next one, and ends with the run."""

from stepwell import limits
from stepwell.prove.history import Accepted, NoAnswer
from stepwell.prove.lane import Lane, LaneSettings

MS = 1_000_000
ROUND_NS = limits.PROVE_ROUND_MS * MS
SETTINGS = LaneSettings(1, 2 * limits.PROVE_ROUND_MS / 1000, ())


def test_rounds() -> None:
    """It waits for the beginning, and for each round once it has made its calls."""
    lane = Lane(SETTINGS, 0, 0, 5 * ROUND_NS)
    pause_s = lane.pause_s(4 * ROUND_NS)
    assert pause_s is not None
    assert pause_s > 0
    made = 0
    while lane.pause_s(5 * ROUND_NS) == 0:
        made += len(lane.request())
    assert limits.PROVE_CALLS_PER_ROUND <= made <= limits.PROVE_CALLS_PER_ROUND + 2
    assert lane.pause_s(5 * ROUND_NS) == limits.PROVE_ROUND_MS / 1000
    assert lane.pause_s(6 * ROUND_NS) == 0
    assert lane.pause_s(7 * ROUND_NS) is None


def test_records() -> None:
    """A record has the times of its request; one without an answer has no end."""
    lane = Lane(SETTINGS, 3, 4, 0)
    assert lane.pause_s(0) == 0
    request = lane.request()
    records = lane.recorded(request, [Accepted()] * len(request), 1, 2)
    assert {(each.lane, each.start_ns, each.end_ns) for each in records} == {((3, 4), 1, 2)}
    records = lane.recorded(request, [NoAnswer()] * len(request), 1, 2)
    assert {each.end_ns for each in records} == {None}
