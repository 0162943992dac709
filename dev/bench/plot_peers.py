#!/usr/bin/env python3
"""Draws the race of LayerNorms (doc/layernorm.md, section 10), 4096 rows of fp16, as SVG files; no packages needed.

    dev/bench/plot_peers.py [FOLDER]     layer-norm-forward.svg and layer-norm-backward.svg; default: doc

From doc/measured: the race and, for the roof, LayerNorm's shapes, if both are of one GPU. A panel's title says whose
clock it shows; each curve has its name at its end.
"""
import argparse
from pathlib import Path

from plot_loss import polyline, ticks, write_svg
from measured import ROOT, load
from tables import rates

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 640, 400, 50, 170, 34, 40
LAST, HIGH = 16384, 5000
COLORS = {"ours": "#d62728", "torch.compile": "#1f77b4", "torch": "#2ca02c", "Triton's tutorial, our port": "#9467bd",
          "Liger": "#ff7f0e", "QuACK": "#8c564b", "flash-attention's Triton": "#17becf"}
PANELS = {"kernel time": "kernel time", "tutorial's clock": "the tutorial's clock, launches included"}


def curves(clock, direction):
    """who -> (columns, GB/s) at 4096 rows of fp16"""
    found = {who: [] for who in COLORS}
    for row in load("race/points")["rows"]:
        rows, _, rest = row["shape"].partition("x")
        columns, _, dtype = rest.partition(" ")
        if row["direction"] == direction and (rows, dtype) == ("4096", "fp16"):
            for who, rate in rates(row, clock).items():
                found[who].append((int(columns), rate))
    return {who: sorted(points) for who, points in found.items() if points}


def roof(direction):
    """(columns, GB/s): our bytes and time over our share of the roof"""
    passes, kind = (2, "1R1W pdl") if direction == "forward" else (3, "2R1W pdl")
    return sorted((row["C"], passes * row["N"] * row["C"] * 2 / row["us"] / 1e3 / row["percent_of_roof"] * 100)
                  for row in load("layernorm/shapes")["rows"] if row["op"] == "layernorm_" + direction and row["roof"] == kind
                  and (row["N"], row["dtype"]) == (4096, "fp16"))


def place(columns, rate):
    return (LEFT + (WIDTH - LEFT - RIGHT) * columns / LAST, TOP + (HEIGHT - TOP - BOTTOM) * (HIGH - rate) / HIGH)


def grid(title):
    parts = [f'<text x="{LEFT}" y="{TOP - 14}" font-weight="bold">{title}</text>']
    for rate in ticks(0, HIGH):
        x, y = place(0, rate)
        parts.append(f'<line x1="{x}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}" stroke="#ddd"/>')
        parts.append(f'<text x="{x - 6}" y="{y + 4:.1f}" text-anchor="end">{rate:.0f}</text>')
    for columns in range(0, LAST + 1, 4096):
        x, y = place(columns, 0)
        parts.append(f'<text x="{x:.1f}" y="{y + 16:.1f}" text-anchor="middle">{columns}</text>')
    parts.append(f'<text x="{WIDTH - RIGHT}" y="{HEIGHT - 6}" text-anchor="end">columns of a row</text>')
    return parts


def labels(ends):
    """names at the curves' ends, (height, name, color), from the top on: none nearer than a line to the one above"""
    parts, free = [], 0
    for y, name, color in sorted(ends):
        free = max(free + 14, y + 4)
        parts.append(f'<text x="{WIDTH - RIGHT + 8}" y="{free:.1f}" fill="{color}">{name}</text>')
    return parts


def panel(clock, direction):
    parts, ends = grid(f"{direction}, GB/s by {PANELS[clock]}"), []
    # the roof is a kernel's time, too
    if clock == "kernel time" and load("layernorm/shapes")["gpu"] == load("race/points")["gpu"]:
        points = roof(direction)
        parts.append(polyline(points, place, "#444", 1).replace("/>", ' stroke-dasharray="6 4"/>'))
        ends.append((place(*points[-1])[1], "roof", "#444"))
    for who, points in reversed(curves(clock, direction).items()):  # ours is drawn last, above the others
        parts.append(polyline(points, place, COLORS[who], 2.5 if who == "ours" else 1.3))
        ends.append((place(*points[-1])[1], who, COLORS[who]))
    return "\n".join(parts + labels(ends))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, default=Path(ROOT, "doc"))
    folder = parser.parse_args().folder
    if not folder.is_dir():
        parser.error(f"{folder}: no such folder")
    for direction in ("forward", "backward"):
        left, right = (panel(clock, direction) for clock in PANELS)
        path = folder / f"layer-norm-{direction}.svg"
        write_svg(path, 2 * WIDTH, HEIGHT, f'{left}\n<g transform="translate({WIDTH} 0)">\n{right}\n</g>')
        print("wrote", path)


if __name__ == "__main__":
    main()
