"""The states of the machine. The cores of a virtual machine are now beside each other and now far apart, within seconds, and
everything that two of them share takes up to six times as long. So each value is kept with what a bare hand-over of a
cache line took around it, and only values of one state are compared.
"""

import bisect
import dataclasses
import statistics

SAME = 1.4  # hand-overs of one state differ by less than this factor
SOONEST = 0.75  # part of a hand-over in which no message arrives: its line takes as long as any


@dataclasses.dataclass(frozen=True)
class Sample:
    """A value, and the nanoseconds of a hand-over just before and just after it was measured."""

    value: float
    before: float
    after: float

    def hand_over(self):
        """None if the machine's state changed meanwhile."""
        low, high = sorted((self.before, self.after))
        return (low + high) / 2 if high < low * SAME else None

    def can_be_latency(self):
        """Whether a message may have taken so long in this state of the machine: it changed twice meanwhile if not."""
        hand_over = self.hand_over()
        return hand_over is None or self.value >= SOONEST * hand_over


@dataclasses.dataclass(frozen=True)
class State:
    """Hand-overs of `low` nanoseconds, up to `SAME` times as many."""

    low: float

    def holds(self, sample):
        hand_over = sample.hand_over()
        return hand_over is not None and self.low <= hand_over < self.low * SAME

    def hand_over(self, samples):
        """The median of the hand-overs of the samples taken in this state; None without one."""
        inside = [sample.hand_over() for sample in samples if self.holds(sample)]
        return statistics.median(inside) if inside else None


def states(samples):
    """The states in which the samples were taken, the most frequent first."""
    left = sorted(found for found in (sample.hand_over() for sample in samples) if found is not None)
    found = []
    while left:
        low = left[max(range(len(left)), key=lambda at: bisect.bisect_left(left, left[at] * SAME) - at)]
        found.append(State(low))
        # What lies just beside a state is its rim, and no state of its own.
        left = [value for value in left if not low / SAME < value < low * SAME * SAME]
    return found
