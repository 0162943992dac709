#!/usr/bin/env python3
"""Draws a sweep of a kernel shootout (dev/cuda/<op> --sweep, which writes the CSV) as an SVG; no packages needed.

    dev/bench/plot_sweep.py layernorm_forward_sweep.csv                      writes layernorm_forward_sweep.svg
    dev/bench/plot_sweep.py a.csv b.csv -o both.svg                          versions and ops of several files

Above: useful GB/s over the columns of a row, with the roof of the same run (dashed). Below: the share of the roof.
Rows that do not count, their run's roof having been slower than is known of the GPU, are drawn, with a warning.
"""
import argparse
import csv
import os
import sys
from html import escape

from plot_loss import write_svg

WIDTH, PANEL, LEFT, RIGHT, TOP, BOTTOM, GAP = 820, 280, 70, 200, 40, 50, 50
COLORS = ["#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#8c564b", "#17becf", "#7f7f7f"]


def warn_of_slow_roofs(path, slow, rows):
    """slow: those of `rows` rows that do not count"""
    if not slow:
        return
    row = slow[0]
    print(f"warning: {path}: {len(slow)} of {rows} rows do not count (roof_counts: no): their run's roof was more than "
          f"2 % slower than is known of its GPU, and so their shares of it look better than they are; expected a GPU "
          f"that nothing else uses: measure again. First: {row['op']} {row['version']} {row['dtype']} "
          f"{row['N']}x{row['C']}, roof {row['roof']} {float(row['roof_us']):.2f} us, "
          f"known {row.get('roof_known_us') or '-'} us", file=sys.stderr)


def read_rows(path, use):
    """use(row) for each row of a CSV file that a shootout wrote; a file that is none ends the program with a message"""
    row, rows, slow = {}, 0, []
    try:
        with open(path, newline="") as lines:
            for rows, row in enumerate(csv.DictReader(lines), 1):
                use(row)
                if row.get("roof_counts") == "no":  # older files do not say
                    slow.append(row)
        warn_of_slow_roofs(path, slow, rows)
    except OSError as error:
        raise SystemExit(f"{path}: {error.strerror}; dev/cuda/<op> --sweep writes one") from None
    except (KeyError, ValueError) as error:
        raise SystemExit(f"{path}: {type(error).__name__} {error}; expected what dev/cuda/<op> --csv writes, found the "
                         f"columns {', '.join(map(str, row)) or 'of no text at all'}") from None


def read_series(paths):
    """{(op, version, dtype, rows, which roof): [(C, GB/s, share of the roof, roof's GB/s)]}, in the files' order"""
    series = {}

    def add(row):
        if not row["us"] or not row["roof_us"]:
            return  # not timed, or the version on the CPU
        key = (row["op"], row["version"], row["dtype"], int(row["N"]), row["roof"])
        useful = float(row["useful_bytes"]) / 1e3
        series.setdefault(key, []).append((int(row["C"]), float(row["gb_per_s"]), float(row["percent_of_roof"]),
                                           useful / float(row["roof_us"])))

    for path in paths:
        read_rows(path, add)
    return {key: sorted(points) for key, points in series.items()}


class Panel:
    """a coordinate system with its grid; `parts` are SVG elements"""

    def __init__(self, top, label, high, columns):
        step = 1
        while 8 * step < columns:
            step *= 2
        self.top, self.high, self.last, self.parts = top, high, -(-columns // step) * step, []
        for k in range(6):
            x0, y = self.place(0, high * k / 5)
            self.parts += [
                f'<line x1="{x0:.1f}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}" stroke="#ddd"/>',
                f'<text x="{x0 - 6:.1f}" y="{y + 4:.1f}" text-anchor="end">{high * k / 5:.0f}</text>']
        for x_value in range(0, self.last + 1, step):
            x, y0 = self.place(x_value, 0)
            self.parts.append(f'<text x="{x:.1f}" y="{y0 + 18:.1f}" text-anchor="middle">{x_value}</text>')
        self.parts.append(f'<text x="14" y="{top - 10}">{label}</text>')

    def place(self, x, y):
        return (LEFT + (WIDTH - LEFT - RIGHT) * x / self.last,
                self.top + PANEL * (self.high - y) / self.high)

    def line(self, points, color, dashed=False):
        text = " ".join("%.1f,%.1f" % self.place(*p) for p in points)
        dashes = ' stroke-dasharray="6 4"' if dashed else ""
        self.parts.append(f'<polyline points="{text}" fill="none" stroke="{color}" stroke-width="2"{dashes}/>')
        if not dashed:
            self.parts += ['<circle cx="%.1f" cy="%.1f" r="2.5" fill="%s"/>' % (*self.place(*p), color) for p in points]


def nice(value):
    """the least of 1, 2, 2.5, 5, 10 times a power of ten, times five, that is not below value"""
    step = value / 5
    power = 10 ** (len(str(int(step))) - 1)
    return 5 * power * next(k for k in (1, 2, 2.5, 5, 10) if k * power >= step)


def draw(path, series):
    columns = max(p[0] for points in series.values() for p in points)
    fastest = nice(max(max(p[1], p[3]) for points in series.values() for p in points))
    share = max(100, nice(max(p[2] for points in series.values() for p in points)))
    speed = Panel(TOP, "useful GB/s", fastest, columns)
    roof = Panel(TOP + PANEL + GAP, "% of the roof", share, columns)
    roof.line([(0, 100), (roof.last, 100)], "#444", dashed=True)
    legend = []
    roofs = {}
    for k, ((op, version, dtype, rows, mix), points) in enumerate(series.items()):
        color = COLORS[k % len(COLORS)]
        speed.line([(p[0], p[1]) for p in points], color)
        roof.line([(p[0], p[2]) for p in points], color)
        legend.append((color, f"{op} {version}", f"{rows} rows, {dtype}, {mix}"))
        roofs.setdefault((mix, op, rows, dtype), [(p[0], p[3]) for p in points])
    free = 0  # labels of roofs as high as each other stand below each other
    for (mix, _, _, _), points in sorted(roofs.items(), key=lambda roof: -roof[1][-1][1]):
        speed.line(points, "#444", dashed=True)
        x, y = speed.place(*points[-1])
        y = max(y + 4, free)
        free = y + 14
        speed.parts.append(f'<text x="{x + 6:.1f}" y="{y:.1f}" fill="#444">roof {escape(mix)}</text>')
    parts = speed.parts + roof.parts
    for k, (color, name, what) in enumerate(legend):
        y = TOP + PANEL + GAP + 16 + 34 * k
        parts.append(f'<text x="{WIDTH - RIGHT + 10}" y="{y}" fill="{color}">{escape(name)}</text>')
        parts.append(f'<text x="{WIDTH - RIGHT + 10}" y="{y + 14}" fill="#666">{escape(what)}</text>')
    height = TOP + 2 * PANEL + GAP + BOTTOM
    parts.append(f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{height - 10}" text-anchor="middle">columns</text>')
    write_svg(path, WIDTH, height, "\n".join(parts))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", help="CSV files of --sweep")
    parser.add_argument("-o", "--out", help="default: the first file's name, .svg")
    args = parser.parse_args()
    series = read_series(args.files)
    if not series:
        raise SystemExit("no timed rows in " + ", ".join(args.files))
    out = args.out or os.path.splitext(args.files[0])[0] + ".svg"
    draw(out, series)
    print("wrote", out)


if __name__ == "__main__":
    main()
