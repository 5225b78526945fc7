"""The results as a picture: latency and bandwidth, each on logarithmic axes."""

import math
from xml.sax.saxutils import escape

import report

WIDTH, HEIGHT = 620, 460  # of a panel
LEFT, RIGHT, TOP, BOTTOM = 80, 20, 50, 60  # its margins
COLOURS = {"ours": "#1f4fb4", "mpich": "#d62728", "openmpi": "#e08214", "ucx": "#2ca02c", "libfabric": "#8c6bb1",
           "mpich-4.3": "#17a2a2", "mpich-5.0": "#7f4f24", "intel-2021.18": "#e377c2"}
OTHERS = ("#d62728", "#e08214", "#2ca02c", "#8c6bb1")  # of contenders without a colour of their own
LIMIT = "#555555"
SMALLEST = 0.5  # where messages without bytes stand


class Panel:
    """One test: maps sizes and values to positions."""

    def __init__(self, results, test, offset, title=None):
        self.test, self.offset = test, offset
        self.title = title or f"{test}, {report.UNITS[test]}"
        self.curves = {name: curve(results, name, test) for name in ("ours", *results.peers())}
        free = iter(OTHERS)
        self.colours = {name: COLOURS.get(name) or next(free) for name in self.curves}
        self.limit = results.hand_over() if test == "latency" else None
        values = [value for points in self.curves.values() for _, value in points]
        values += [self.limit] if self.limit else []
        self.low, self.high = spread(values)
        sizes = [max(size, SMALLEST) for points in self.curves.values() for size, _ in points]
        self.first, self.last = min(sizes), max(max(sizes), 2 * min(sizes))

    def x(self, size):
        share = math.log(max(size, SMALLEST) / self.first) / math.log(self.last / self.first)
        return self.offset + LEFT + share * (WIDTH - LEFT - RIGHT)

    def y(self, value):
        share = math.log(value / self.low) / math.log(self.high / self.low)
        return HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)

    def draw(self):
        return [*self.axes(), *self.lines(), *self.legend()]

    def axes(self):
        left, right, bottom = self.offset + LEFT, self.offset + WIDTH - RIGHT, HEIGHT - BOTTOM
        out = [label((left + right) / 2, 28, self.title, size=16),
               label((left + right) / 2, HEIGHT - 14, "message size (bytes)")]
        for power in range(round(math.log10(self.low)), round(math.log10(self.high)) + 1):
            at = self.y(10.0**power)
            out.append(line([(left, at), (right, at)], "#dddddd", 1))
            out.append(label(left - 8, at + 4, decimal(power), "end"))
        sizes = sorted({size for points in self.curves.values() for size, _ in points})
        step = math.ceil(len(sizes) / 12)
        for size in sizes[::step]:
            out.append(line([(self.x(size), bottom), (self.x(size), bottom + 5)], "#000000", 1))
            out.append(label(self.x(size), bottom + 20, report.short(size)))
        return out + [line([(left, TOP), (left, bottom), (right, bottom)], "#000000", 1)]

    def lines(self):
        out = []
        if self.limit:
            ends = [(self.offset + LEFT, self.y(self.limit)), (self.offset + WIDTH - RIGHT, self.y(self.limit))]
            out.append(line(ends, LIMIT, 1.5, 'stroke-dasharray="6 4"'))
        for name, points in reversed(self.curves.items()):
            places = [(self.x(size), self.y(value)) for size, value in points]
            out.append(line(places, self.colours[name], 3 if name == "ours" else 1.8))
            out += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{self.colours[name]}"/>' for x, y in places]
        return out

    def legend(self):
        entries = [(name, self.colours[name]) for name, points in self.curves.items() if points]
        if self.limit:
            entries.append((f"hand-over of a cache line, {self.limit:.0f} ns", LIMIT))
        left, out = self.offset + LEFT + 14, []
        for row, (name, colour) in enumerate(entries):
            at = TOP + 14 + 18 * row
            shown = "libfabric (ping-pong)" if (name, self.test) == ("libfabric", "bandwidth") else name
            out += [line([(left, at - 4), (left + 22, at - 4)], colour, 3), label(left + 30, at, shown, "start")]
        return out


def svg(results):
    """Returns the panels for which there are values."""
    tests = [test for test in ("latency", "bandwidth") if curve(results, "ours", test)]
    return page([[Panel(results, test, place * WIDTH) for place, test in enumerate(tests)]])


def page(rows):
    """Returns a picture of rows of panels."""
    width, height = WIDTH * max(1, *map(len, rows)), HEIGHT * len(rows)
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
             f'height="{height}" font-family="sans-serif">', f'<rect width="{width}" height="{height}" fill="white"/>']
    for number, row in enumerate(rows):
        drawn = [part for panel in row for part in panel.draw()]
        parts += [f'<g transform="translate(0,{number * HEIGHT})">', *drawn, "</g>"] if number else drawn
    return "\n".join([*parts, "</svg>", ""])


def curve(results, name, test):
    points = [(size, results.median(name, test, size)) for size in results.sizes]
    return [(size, value) for size, value in points if value is not None]


def spread(values):
    """Returns the powers of ten around all values."""
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    return 10.0**low, 10.0 ** max(high, low + 1)


def decimal(power):
    return f"{10**power:,}" if 0 <= power <= 6 else f"1e{power}"


def line(points, colour, width, more=""):
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="{width}" {more}/>'


def label(x, y, words, anchor="middle", size=12):
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}">{escape(words)}</text>'
