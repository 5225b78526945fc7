"""The states of the machine. The host moves the cores of a virtual machine within seconds, and everything that two of
them share then takes up to six times as long. So each value is kept with the time of a bare hand-over of a cache line
around it, and only values of one state are compared.
"""

import bisect
import dataclasses
import statistics

SAME = 1.4  # hand-overs of one state differ by less than this factor
SOONEST = 0.75  # part of a hand-over in which no message arrives: its line takes as long as any


@dataclasses.dataclass(frozen=True)
class Sample:
    """A value, and the nanoseconds of a hand-over just before and just after its measurement."""

    value: float
    before: float
    after: float

    def hand_over(self):
        """Returns the mean hand-over; None if the machine's state changed in between."""
        low, high = sorted((self.before, self.after))
        return (low + high) / 2 if high < low * SAME else None

    def can_be_latency(self):
        """Returns whether a message can take so long in this state; if not, the state changed twice meanwhile."""
        hand_over = self.hand_over()
        return hand_over is None or self.value >= SOONEST * hand_over


@dataclasses.dataclass(frozen=True)
class State:
    """A state: hand-overs of `low` nanoseconds, up to `SAME` times as many."""

    low: float

    def holds(self, sample):
        hand_over = sample.hand_over()
        return hand_over is not None and self.low <= hand_over < self.low * SAME

    def hand_over(self, samples):
        """Returns the median hand-over of the samples of this state; None without a sample."""
        inside = [sample.hand_over() for sample in samples if self.holds(sample)]
        return statistics.median(inside) if inside else None


def states(samples):
    """Returns the states in which the samples were taken, the most frequent first."""
    left = sorted(found for found in (sample.hand_over() for sample in samples) if found is not None)
    found = []
    while left:
        low = left[max(range(len(left)), key=lambda at: bisect.bisect_left(left, left[at] * SAME) - at)]
        found.append(State(low))
        # A value just beside a state belongs to its rim, and is no state of its own.
        left = [value for value in left if not low / SAME < value < low * SAME * SAME]
    return found
