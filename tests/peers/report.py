"""The results, as tables for people and as JSON for programs."""

import statistics

import contenders
import machine

UNITS = {"latency": "ns one way", "bandwidth": "MB/s (10^6 bytes)", "rate": "messages a second"}


class Results:
    """The values of all rounds. Only values of one state of the machine are compared."""

    def __init__(self, tests, sizes, still):
        self.tests, self.sizes, self.still = tests, sizes, still
        self.samples = {}  # contender -> (test, bytes) -> a sample a round
        self.gone = set()  # contenders that are left out from some round on: no more samples come
        self.state = None  # the state whose values are reported
        self.rounds = 0

    def add(self, name, found):
        mine = self.samples.setdefault(name, {})
        for key, sample in found.items():
            if key[0] != "latency" or sample.can_be_latency():
                mine.setdefault(key, []).append(sample)

    def settle(self):
        """Returns the machine's states; first the one in which the value with the fewest samples has the most."""
        found = sorted(machine.states(self.all_samples()), key=self.fewest, reverse=True)
        self.state = found[0] if found else None
        return found

    def all_samples(self):
        return [sample for mine in self.samples.values() for samples in mine.values() for sample in samples]

    def fewest(self, state):
        """Returns the smallest number of samples that any value has in one state, without contenders left out."""
        return min((sum(map(state.holds, samples)) for name, mine in self.samples.items() if name not in self.gone
                    for samples in mine.values()), default=0)

    def median(self, name, test, size):
        samples = self.samples.get(name, {}).get((test, size), [])
        values = [sample.value for sample in samples if self.state and self.state.holds(sample)]
        return statistics.median(values) if values else None

    def hand_over(self):
        return self.state.hand_over(self.all_samples()) if self.state else None

    def nearness(self):
        """Returns our latency at 8 bytes as a multiple of the hand-overs around it; None without one."""
        samples = self.samples.get("ours", {}).get(("latency", 8), [])
        ratios = [sample.value / sample.hand_over() for sample in samples if self.state and self.state.holds(sample)]
        return statistics.median(ratios) if ratios else None

    def peers(self):
        return [name for name in self.samples if name not in ("ours", "still")]

    def ratios(self, test, size):
        """Returns how many times better ours is than each peer, by its name, measured in the same way."""
        found = {}
        for peer in self.peers():
            if peer in contenders.FLOORS:
                continue
            like = "still" if test == "latency" and peer in contenders.STILL and not self.still else "ours"
            mine, theirs = self.median(like, test, size), self.median(peer, test, size)
            if mine is not None and theirs is not None:
                found[peer] = better(test, mine, theirs)
        return found

    def rows(self):
        """Returns (test, size, ours, {peer: value}) of everything measured of ours."""
        for test in self.tests:
            for size in self.sizes:
                mine = self.median("ours", test, size)
                if mine is not None:
                    theirs = {peer: self.median(peer, test, size) for peer in self.peers()}
                    yield test, size, mine, {peer: value for peer, value in theirs.items() if value is not None}


def better(test, left, right):
    """Returns how many times better `left` is than `right`."""
    return right / left if test == "latency" else left / right


def table(results, test):
    """Formats the table of one test."""
    rows = [row for row in results.rows() if row[0] == test]
    peers = [peer for peer in results.peers() if any(peer in row[3] for row in rows)]
    marks = {peer: peer + "*" * (remark(results, peer, test) is not None) for peer in peers}
    lines = [f"{test}, {UNITS[test]}"]
    still = test == "latency" and "still" in results.samples
    columns = "".join(f" {marks[peer]:>13}" for peer in peers)
    lines.append(f"{'bytes':>6} {'ours':>11}" + f" {'ours*':>11}" * still + columns
                 + f" {'to the best':>13}  place, best peer")
    for _, size, mine, theirs in rows:
        mine = f"{written(mine):>11}" + f" {written(results.median('still', test, size)):>11}" * still
        cells = "".join(f" {written(theirs.get(peer)):>13}" for peer in peers)
        lines.append(f"{short(size):>6} {mine}{cells} {standing(results.ratios(test, size))}")
    remarks = {remark(results, peer, test) for peer in peers}
    return lines + [f"* {words}" for words in remarks if words]


def remark(results, peer, test):
    """Returns why a peer's own program does not measure the same as ours; None if it does."""
    if peer in contenders.FLOORS:
        return "no library, and no peer: the floor"
    if (peer, test) == ("libfabric", "bandwidth"):
        return "of a ping-pong, not of windows"
    if peer in ("ucx", "libfabric") and test == "latency" and not results.still:
        return "sends bytes that never change, which a receiver that copies them itself finds in its own cache; " \
               "judged by ours*, which does the same"
    return None


def best_peer(ratios):
    """Returns the peer, of at least one, to which our ratio is smallest."""
    return min(ratios, key=ratios.get)


def standing(ratios):
    """Formats our ratio to the best peer, above 1 if ours is better, our place, and who that peer is."""
    if not ratios:
        return f"{'-':>13}  -"
    best = best_peer(ratios)
    place = 1 + sum(ratio < 1 for ratio in ratios.values())
    return f"{ratios[best]:>12.2f}x  {ordinal(place)} of {len(ratios) + 1}, {best}"


def limit(results):
    """Formats the hand-over, and our latency as a multiple of it."""
    line = f"hand-over of a cache line, no library: {results.hand_over():.0f} ns one way"
    nearness = results.nearness()
    if nearness is not None:
        line += f"; our 8-byte latency is {nearness:.2f} times that (measured around it)"
    return line


def text(results):
    """Formats the tables of the state with the most samples, then of the others."""
    found = results.settle()
    parts = [f"two processes, a core each; {results.rounds} round{'s' * (results.rounds != 1)}; 'to the best': how "
             "many times better ours is than the best peer"]
    for state in found:
        results.state = state
        if not results.peers() or any(theirs for *_, theirs in results.rows()):
            parts += tables(results)
    if len(parts) == 1:
        parts.append("in no state of the machine there are values of ours and of a peer: there is nothing to compare")
    results.state = found[0] if found else None
    return "\n".join(parts)


def tables(results):
    fewest = results.fewest(results.state)
    lines = ["", f"while a hand-over takes about {results.hand_over():.0f} ns: medians of "
             + (f"at least {fewest} values" if fewest else "what there is, for some nothing")
             + "".join(f"; fewer of {name}" for name in sorted(results.gone))]
    for test in results.tests:
        lines += ["", *table(results, test)]
    return [*lines, "", limit(results)]


def document(results):
    """Formats JSON: the state with the most samples, and all of them. Peers without a value are left out."""
    found = []
    states = results.settle()
    for state in states:
        results.state = state
        found.append({"handover_ns": exact(results.hand_over()), "fewest": results.fewest(state),
                      "rows": listed(results)})
    results.state = states[0] if states else None
    first = found[0] if found else {"handover_ns": 0, "rows": []}
    return {"rounds": results.rounds, "handover_ns": first["handover_ns"], "rows": first["rows"], "states": found}


def listed(results):
    rows = [{"test": test, "bytes": size, "ours": exact(mine),
             "peers": {peer: exact(value) for peer, value in theirs.items()}}
            for test, size, mine, theirs in results.rows()]
    for row in rows:
        ratios = results.ratios(row["test"], row["bytes"])
        if ratios:
            row["best"] = best_peer(ratios)
        still = results.median("still", row["test"], row["bytes"])
        if still is not None:
            row["ours_still"] = exact(still)
    return rows


def exact(value):
    """Formats a number with its significant digits."""
    return round(value, 1)


def written(value):
    return "-" if value is None else f"{value:,.0f}"


def ordinal(place):
    return {1: "1st", 2: "2nd", 3: "3rd"}.get(place, f"{place}th")


def short(size):
    """Formats a size: 4Mi, 64, 1000."""
    for bits, unit in ((20, "Mi"), (10, "Ki")):
        if size and size % (1 << bits) == 0:
            return f"{size >> bits}{unit}"
    return str(size)
