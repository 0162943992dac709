#!/usr/bin/env python3
"""Draws the loss curves of one or more runs as an SVG file; no packages needed.

    scripts/plot_loss.py runs/shakespeare/log.jsonl -o loss.svg

Thin line: training loss of each step; thick line: its running mean; dots: validation loss. Nats per token.
"""
import argparse
import json

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 760, 420, 60, 20, 30, 50
COLORS = ["#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e"]


def read_log(path):
    """(steps, losses) of training and of validation; a torn last line is passed over"""
    train, val = [], []
    with open(path) as lines:
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
    mean, out = points[0][1], []
    for step, loss in points:
        mean = weight * mean + (1 - weight) * loss
        out.append((step, mean))
    return out


def polyline(points, place, color, width, opacity=1.0):
    text = " ".join("%.1f,%.1f" % place(*p) for p in points)
    return (f'<polyline points="{text}" fill="none" stroke="{color}" stroke-width="{width}" '
            f'stroke-opacity="{opacity}"/>')


def axes(low, high, last, place):
    parts = []
    for k in range(6):
        loss, step = low + (high - low) * k / 5, last * k / 5
        x0, y = place(0, loss)
        x, y0 = place(step, low)
        parts.append(f'<line x1="{x0:.1f}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}" stroke="#ddd"/>')
        parts.append(f'<text x="{x0 - 6:.1f}" y="{y + 4:.1f}" text-anchor="end">{loss:.2f}</text>')
        parts.append(f'<text x="{x:.1f}" y="{y0 + 18:.1f}" text-anchor="middle">{step:.0f}</text>')
    parts.append(f'<text x="{WIDTH / 2}" y="{HEIGHT - 10}" text-anchor="middle">step</text>')
    parts.append(f'<text x="14" y="{TOP - 12}">loss, nats per token</text>')
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
    low, high, last = min(losses), max(losses), max(run[1][-1][0] for run in runs) + 1

    def place(step, loss):
        return (LEFT + (WIDTH - LEFT - RIGHT) * step / last,
                TOP + (HEIGHT - TOP - BOTTOM) * (high - loss) / (high - low))

    parts = axes(low, high, last, place)
    for k, (path, train, val) in enumerate(runs):
        color = COLORS[k % len(COLORS)]
        parts.append(polyline(train, place, color, 0.6, 0.4))
        parts.append(polyline(running_mean(train), place, color, 2))
        parts += ['<circle cx="%.1f" cy="%.1f" r="3.5" fill="%s"/>' % (*place(*p), color) for p in val]
        label = path if not val else f"{path}: validation {val[-1][1]:.4f}"
        parts.append(f'<text x="{WIDTH - RIGHT - 8}" y="{TOP + 16 * (k + 1)}" text-anchor="end" fill="{color}">{label}</text>')
    with open(args.out, "w") as out:
        out.write(f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" '
                  f'font-family="sans-serif" font-size="12">\n<rect width="100%" height="100%" fill="white"/>\n'
                  + "\n".join(parts) + "\n</svg>\n")
    print("wrote", args.out)


if __name__ == "__main__":
    main()
