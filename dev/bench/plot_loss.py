#!/usr/bin/env python3
"""Draws the loss curves of one or more runs as an SVG file; no packages needed.

    dev/bench/plot_loss.py runs/shakespeare/log.jsonl -o loss.svg

Thin line: training loss of each step; thick line: its running mean; dots: validation loss. Nats per token.
The running mean is unbiased: weights of the steps so far add up to 1, so it does not hang on the first loss.
"""
import argparse
import json
import math
from html import escape

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 760, 420, 60, 20, 30, 50
COLORS = ["#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e"]


def read_log(path):
    """(steps, losses) of training and of validation; a torn last line is passed over"""
    train, val = [], []
    try:
        lines = open(path)
    except OSError as error:
        raise SystemExit(f"{path}: {error.strerror}; expected the log.jsonl of a run") from None
    with lines:
        for line in lines:
            try:
                row = json.loads(line)
            except json.JSONDecodeError:
                continue
            if row.get("train_loss") is not None:
                train.append((row["step"], row["train_loss"]))
            if row.get("val_loss") is not None:
                val.append((row["step"], row["val_loss"]))
    return train, val


def running_mean(points, weight=0.97):
    total, weights, out = 0.0, 0.0, []
    for step, loss in points:
        total, weights = weight * total + loss, weight * weights + 1
        out.append((step, total / weights))
    return out


def ticks(low, high, most=6):
    """round numbers in [low, high], 1, 2 or 5 times a power of ten apart"""
    step = 10.0 ** math.floor(math.log10((high - low) / most))
    step *= next(k for k in (1, 2, 5, 10) if (high - low) / (k * step) <= most)
    first = math.ceil(low / step - 1e-9)
    return [k * step for k in range(first, math.floor(high / step + 1e-9) + 1)]


def write(path, text):
    try:
        with open(path, "w") as out:
            out.write(text)
    except OSError as error:
        raise SystemExit(f"{path}: {error.strerror}; expected a file that you may write: choose another name") from None


def write_svg(path, width, height, content):
    write(path, f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
                f'font-family="sans-serif" font-size="12">\n<rect width="100%" height="100%" fill="white"/>\n'
                f'{content}\n</svg>\n')


def polyline(points, place, color, width, opacity=1.0):
    text = " ".join("%.1f,%.1f" % place(*p) for p in points)
    return (f'<polyline points="{text}" fill="none" stroke="{color}" stroke-width="{width}" '
            f'stroke-opacity="{opacity}"/>')


def axes(low, high, last, place):
    parts = []
    for loss in ticks(low, high):
        x0, y = place(0, loss)
        parts.append(f'<line x1="{x0:.1f}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}" stroke="#ddd"/>')
        parts.append(f'<text x="{x0 - 6:.1f}" y="{y + 4:.1f}" text-anchor="end">{loss:.10g}</text>')
    for step in ticks(0, last):
        x, y0 = place(step, low)
        parts.append(f'<line x1="{x:.1f}" y1="{y0:.1f}" x2="{x:.1f}" y2="{y0 + 5:.1f}" stroke="#888"/>')
        parts.append(f'<text x="{x:.1f}" y="{y0 + 18:.1f}" text-anchor="middle">{step:.10g}</text>')
    parts.append(f'<text x="{WIDTH - RIGHT}" y="{HEIGHT - 10}" text-anchor="end">step</text>')
    parts.append(f'<text x="14" y="{TOP - 12}">loss, nats per token</text>')
    return parts


def key():
    """what lines and dots are, below the runs' names"""
    parts, y = [], HEIGHT - 10
    for x, mark, text in ((LEFT, '<line x1="{x}" y1="{y}" x2="{e}" y2="{y}" stroke="#555" stroke-width="0.6"/>', "a step"),
                          (LEFT + 90, '<line x1="{x}" y1="{y}" x2="{e}" y2="{y}" stroke="#555" stroke-width="2"/>', "running mean"),
                          (LEFT + 220, '<circle cx="{m}" cy="{y}" r="3.5" fill="#555"/>', "validation")):
        parts.append(mark.format(x=x, y=y - 4, e=x + 24, m=x + 12))
        parts.append(f'<text x="{x + 30}" y="{y}">{text}</text>')
    return parts


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("logs", nargs="+", help="log.jsonl files")
    parser.add_argument("-o", "--out", default="loss.svg")
    args = parser.parse_args()
    runs = [(path, *read_log(path)) for path in args.logs]
    runs = [run for run in runs if run[1]]
    if not runs:
        raise SystemExit("no training losses in " + ", ".join(args.logs))
    losses = [loss for _, train, val in runs for _, loss in train + val]
    low, high, last = min(losses), max(losses), max(run[1][-1][0] for run in runs)
    high = high if high > low else low + 1

    def place(step, loss):
        return (LEFT + (WIDTH - LEFT - RIGHT) * step / last,
                TOP + (HEIGHT - TOP - BOTTOM) * (high - loss) / (high - low))

    parts = axes(low, high, last, place) + key()
    for k, (path, train, val) in enumerate(runs):
        color = COLORS[k % len(COLORS)]
        parts.append(polyline(train, place, color, 0.6, 0.4))
        parts.append(polyline(running_mean(train), place, color, 2))
        parts += ['<circle cx="%.1f" cy="%.1f" r="3.5" fill="%s"/>' % (*place(*p), color) for p in val]
        label = path if not val else f"{path}: validation {val[-1][1]:.4f}"
        parts.append(f'<text x="{WIDTH - RIGHT - 8}" y="{TOP + 16 * (k + 1)}" text-anchor="end" fill="{color}">{escape(label)}</text>')
    write_svg(args.out, WIDTH, HEIGHT, "\n".join(parts))
    print("wrote", args.out)


if __name__ == "__main__":
    main()
