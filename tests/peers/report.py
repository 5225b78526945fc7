"""What was measured, as tables for people and as JSON for programs."""

import statistics

import contenders

UNITS = {"latency": "ns one way", "bandwidth": "MB/s (10^6 bytes)", "rate": "messages a second"}


class Results:
    """The values of all rounds."""

    def __init__(self, tests, sizes, still):
        self.tests, self.sizes, self.still = tests, sizes, still
        self.values = {}  # contender -> (test, bytes) -> a value a round
        self.hand_overs = []
        self.rounds = 0

    def add(self, name, found):
        mine = self.values.setdefault(name, {})
        for key, value in found.items():
            mine.setdefault(key, []).append(value)

    def median(self, name, test, size):
        values = self.values.get(name, {}).get((test, size))
        return statistics.median(values) if values else None

    def hand_over(self):
        return statistics.median(self.hand_overs)

    def peers(self):
        return [name for name in self.values if name not in ("ours", "still")]

    def ratios(self, test, size):
        """How many times better ours is than each peer, measured the same way."""
        found = []
        for peer in self.peers():
            like = "still" if test == "latency" and peer in contenders.STILL and not self.still else "ours"
            mine, theirs = self.median(like, test, size), self.median(peer, test, size)
            if mine is not None and theirs is not None:
                found.append(better(test, mine, theirs))
        return found

    def rows(self):
        """(test, size, ours, {peer: value}) for all that ours has measured."""
        for test in self.tests:
            for size in self.sizes:
                mine = self.median("ours", test, size)
                if mine is not None:
                    theirs = {peer: self.median(peer, test, size) for peer in self.peers()}
                    yield test, size, mine, {peer: value for peer, value in theirs.items() if value is not None}


def better(test, left, right):
    """How many times better `left` is than `right`."""
    return right / left if test == "latency" else left / right


def table(results, test):
    """The lines of one test's table."""
    rows = [row for row in results.rows() if row[0] == test]
    peers = [peer for peer in results.peers() if any(peer in row[3] for row in rows)]
    marks = {peer: peer + "*" * (remark(results, peer, test) is not None) for peer in peers}
    lines = [f"{test}, {UNITS[test]}"]
    still = test == "latency" and "still" in results.values
    lines.append(f"{'bytes':>6} {'ours':>11}" + f" {'ours*':>11}" * still + "".join(f" {marks[peer]:>11}" for peer in peers) +
                 f" {'to the best':>13}  place")
    for _, size, mine, theirs in rows:
        mine = f"{written(mine):>11}" + f" {written(results.median('still', test, size)):>11}" * still
        cells = "".join(f" {written(theirs.get(peer)):>11}" for peer in peers)
        lines.append(f"{short(size):>6} {mine}{cells} {standing(results.ratios(test, size))}")
    remarks = {remark(results, peer, test) for peer in peers}
    return lines + [f"* {words}" for words in remarks if words]


def remark(results, peer, test):
    """Why a peer's own program does not measure the same as ours; None if it does."""
    if (peer, test) == ("libfabric", "bandwidth"):
        return "of a ping-pong, not of windows"
    if peer in ("ucx", "libfabric") and test == "latency" and not results.still:
        return "sends bytes that never change, which a receiver that copies them itself finds in its own cache; judged by " \
               "ours*, which does the same"
    return None


def standing(ratios):
    """Our ratio to the best peer, above 1 if ours is better, and our place."""
    if not ratios:
        return f"{'-':>13}  -"
    place = 1 + sum(ratio < 1 for ratio in ratios)
    return f"{min(ratios):>12.2f}x  {ordinal(place)} of {len(ratios) + 1}"


def limit(results):
    """The hand-over, and how near ours comes to it."""
    line = f"hand-over of a cache line, no library: {results.hand_over():.0f} ns one way"
    mine = results.median("ours", "latency", 8)
    if mine is not None:
        line += f"; our 8-byte latency is {mine / results.hand_over():.2f} times that"
    return line


def text(results):
    heading = f"two processes, a core each; medians of {results.rounds} round{'s' * (results.rounds != 1)}; 'to the " \
              "best': how many times better ours is than the best peer"
    lines = [heading]
    for test in results.tests:
        lines += ["", *table(results, test)]
    return "\n".join([*lines, "", limit(results)])


def document(results):
    """For programs; peers that have no value are left out."""
    rows = [{"test": test, "bytes": size, "ours": exact(mine),
             "peers": {peer: exact(value) for peer, value in theirs.items()}}
            for test, size, mine, theirs in results.rows()]
    for row in rows:
        still = results.median("still", row["test"], row["bytes"])
        if still is not None:
            row["ours_still"] = exact(still)
    return {"rounds": results.rounds, "handover_ns": exact(results.hand_over()), "rows": rows}


def exact(value):
    """As many digits as mean something."""
    return round(value, 1)


def written(value):
    return "-" if value is None else f"{value:,.0f}"


def ordinal(place):
    return {1: "1st", 2: "2nd", 3: "3rd"}.get(place, f"{place}th")


def short(size):
    """A size as it is read: 4Mi, 64, 1000."""
    for bits, unit in ((20, "Mi"), (10, "Ki")):
        if size and size % (1 << bits) == 0:
            return f"{size >> bits}{unit}"
    return str(size)
