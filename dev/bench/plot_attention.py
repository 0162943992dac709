#!/usr/bin/env python3
"""Draws attention's races as bars, an SVG; no packages needed.

    dev/bench/plot_attention.py attention.json -o race.svg                    of dev/bench/bench_attention.py --json: providers
    dev/bench/plot_attention.py forward.json backward.json -o ladder.svg      of dev/cuda/attention_* --json: versions, roofs

TFLOP/s, counted for the pairs of a query and a key that causal attention has: 4 x 64 operations forward, 10 x 64 backward.
"""
import argparse
import json
import sys
from html import escape

from plot_loss import write_svg

WIDTH, PANEL, LEFT, TOP, GAP = 900, 200, 60, 40, 70
COLORS = ["#d62728", "#1f77b4", "#2ca02c", "#9467bd", "#ff7f0e", "#8c564b", "#17becf", "#7f7f7f", "#bcbd22"]


def tflops(shape, backward, us):
    B, NH, T = shape
    return (10 if backward else 4) * 64 * B * NH * T * (T + 1) / 2 / us / 1e6


def read(paths):
    """{"forward 64x12x1024": ({name: TFLOP/s}, the roof's or None)}"""
    groups = {}
    for path in paths:
        try:
            with open(path) as file:
                rows = json.load(file)["rows"]
            for row in rows:
                if "provider" in row:
                    shape, name, us = (row["B"], row["NH"], row["T"]), row["provider"], row["median_us"]
                    direction, roof = row["direction"], None
                else:
                    shape, name, us = (row["N"] // row["T"], row["C"] // 64, row["T"]), row["version"], row["us"]
                    direction, roof = row["op"].removeprefix("attention_"), row["roof_us"]
                    if row["dtype"] != "bf16" or not us:
                        continue  # v0, or what was not timed
                backward = direction.startswith("backward")
                bars = groups.setdefault("{} {}x{}x{}".format(direction, *shape), [{}, None])
                bars[0][name] = tflops(shape, backward, us)
                bars[1] = tflops(shape, backward, roof) if roof else None
        except (OSError, KeyError, TypeError, ValueError) as error:
            raise SystemExit(f"{path}: {type(error).__name__} {error}; expected what dev/bench/bench_attention.py or "
                             "dev/cuda/attention_forward write by --json") from None
    return groups


def draw_panel(top, direction, groups, names, parts):
    high = max(max([*bars.values(), roof or 0]) for bars, roof in groups.values()) * 1.1
    step = next(s for s in (10, 20, 50, 100, 200, 500, 1000) if high / s <= 8)

    def y(value):
        return top + PANEL * (1 - value / high)

    for value in range(0, int(high) + 1, step):
        parts.append(f'<line x1="{LEFT}" y1="{y(value):.1f}" x2="{WIDTH - 10}" y2="{y(value):.1f}" stroke="#ddd"/>'
                     f'<text x="{LEFT - 6}" y="{y(value) + 4:.1f}" text-anchor="end">{value}</text>')
    parts.append(f'<text x="{LEFT}" y="{top - 10}">{escape(direction)}, TFLOP/s</text>')
    width = (WIDTH - LEFT - 10) / len(groups)
    for g, (group, (bars, roof)) in enumerate(groups.items()):
        left, bar = LEFT + g * width + 8, (width - 16) / len(names)
        for k, name in enumerate(names):
            if name in bars:
                x, color = left + k * bar, COLORS[k % len(COLORS)]
                parts.append(f'<rect x="{x:.1f}" y="{y(bars[name]):.1f}" width="{bar - 2:.1f}" '
                             f'height="{y(0) - y(bars[name]):.1f}" fill="{color}"/>'
                             f'<text x="{x + bar / 2:.1f}" y="{y(bars[name]) - 3:.1f}" text-anchor="middle" '
                             f'font-size="9">{bars[name]:.0f}</text>')
        if roof:
            parts.append(f'<line x1="{left:.1f}" y1="{y(roof):.1f}" x2="{left + width - 16:.1f}" y2="{y(roof):.1f}" '
                         f'stroke="#444" stroke-width="2" stroke-dasharray="6 4"/>')
        parts.append(f'<text x="{left + width / 2 - 8:.1f}" y="{y(0) + 16:.1f}" text-anchor="middle">'
                     f'{group.split()[-1]}</text>')


def draw(path, groups):
    directions = list(dict.fromkeys(group.rsplit(" ", 1)[0] for group in groups))
    names = list(dict.fromkeys(name for bars, _ in groups.values() for name in bars))
    parts = []
    for k, direction in enumerate(directions):
        own = {group: bars for group, bars in groups.items() if group.rsplit(" ", 1)[0] == direction}
        draw_panel(TOP + k * (PANEL + GAP), direction, own, names, parts)
    height = TOP + len(directions) * (PANEL + GAP)
    for k, name in enumerate(names):
        x = LEFT + k * (WIDTH - LEFT) / len(names)
        parts.append(f'<rect x="{x:.0f}" y="{height - 22}" width="10" height="10" fill="{COLORS[k % len(COLORS)]}"/>'
                     f'<text x="{x + 14:.0f}" y="{height - 13}">{escape(name)}</text>')
    write_svg(path, WIDTH, height, "\n".join(parts))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", help="JSON files")
    parser.add_argument("-o", "--out", default="attention.svg")
    args = parser.parse_args()
    groups = read(args.files)
    if not groups:
        raise SystemExit(f"{args.files[0]}: nothing was timed")
    draw(args.out, groups)
    print(f"wrote {args.out}")


if __name__ == "__main__":
    sys.exit(main())
