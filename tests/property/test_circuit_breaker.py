"""Whatever calls come and end in whatever order, a breaker does what its description says."""

from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from stepwell.client.workflows.circuit_breaker import Breakers, BreakerSettings, BreakerState, Ending, Permit
from stepwell.errors import CircuitOpen

SETTINGS = BreakerSettings(failures_max=3, pause_s=10, pause_s_max=35)
PAUSES_S = (10, 20, 35)


class Calls(RuleBasedStateMachine):
    """The same calls, beside the breakers, in a history of what has counted since the last success."""

    permits: Bundle[Permit] = Bundle("permits")

    def __init__(self) -> None:
        super().__init__()
        self.breakers = Breakers(SETTINGS)
        self.now_s = 0
        self.counting: set[Permit] = set()  # calls that are under way, and whose end will count
        self.failures = 0
        self.opened_at_s = 0
        self.is_open = False

    @property
    def until_s(self) -> int:
        return self.opened_at_s + PAUSES_S[min(self.failures - SETTINGS.failures_max, len(PAUSES_S) - 1)]

    @rule(seconds=st.sampled_from([0, 1, 9, 10, 11, 40]))
    def wait(self, seconds: int) -> None:
        self.now_s += seconds

    @rule(target=permits)
    def call(self) -> Permit:
        try:
            permit = self.breakers.admit("s", self.now_s)
        except CircuitOpen as refused:
            self.check_refusal(refused)
            return Permit("s", -1)  # which never counts
        assert not self.is_open or (self.now_s >= self.until_s and not self.counting)
        self.counting.add(permit)
        return permit

    def check_refusal(self, refused: CircuitOpen) -> None:
        assert self.is_open
        left_s = self.until_s - self.now_s
        assert self.counting or left_s > 0
        assert refused.details["retry_s"] == max(1, left_s)

    @rule(permit=consumes(permits), ending=st.sampled_from(Ending))
    def end(self, permit: Permit, ending: Ending) -> None:
        self.breakers.record(permit, ending, self.now_s)
        if permit not in self.counting:
            return
        match ending:
            case Ending.SUCCEEDED:
                if self.is_open:
                    self.counting.clear()
                self.is_open, self.failures = False, 0
            case Ending.FAILED:
                self.failures += 1
                if self.failures >= SETTINGS.failures_max:
                    self.is_open, self.opened_at_s = True, self.now_s
                    self.counting.clear()
            case Ending.ABSTAINED:
                if self.is_open:
                    self.counting.clear()

    @invariant()
    def is_in_the_state_that_the_history_says(self) -> None:
        trial = BreakerState.HALF_OPEN if self.counting else BreakerState.OPEN
        assert self.breakers.state("s") is (trial if self.is_open else BreakerState.CLOSED)

    @invariant()
    def has_one_trial_at_most(self) -> None:
        assert not self.is_open or len(self.counting) <= 1


TestCalls = Calls.TestCase
