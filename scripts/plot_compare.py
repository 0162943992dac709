#!/usr/bin/env python3
"""Do our GPU runs learn as PyTorch's do? Four logs, a table, a picture, a verdict; no packages needed.

    scripts/plot_compare.py --ours-bf16 runs/ours_bf16/log.jsonl --ours-fp32 runs/ours_fp32/log.jsonl \\
        --torch-bf16 runs/torch_bf16.jsonl --torch-fp32 runs/torch_fp32.jsonl --out runs/compare
writes runs/compare.md and runs/compare.svg. The runs: see scripts/compare_pytorch.py.

Two runs that round differently drift apart; how far is natural, PyTorch shows by itself: its bf16 against its
fp32. So at every step from 20 to the last, |ours - PyTorch| in the same type may be at most twice the
largest |PyTorch bf16 - PyTorch fp32| over those steps, and at the last step at most 0.05; else exit 1.

Result: to be measured
"""
import argparse
import math

from plot_loss import COLORS, HEIGHT, LEFT, RIGHT, TOP, BOTTOM, WIDTH, axes, polyline, read_log

FIRST, EVERY, TIMES, LAST_BOUND = 20, 20, 2.0, 0.05
RUNS = ["ours_bf16", "torch_bf16", "ours_fp32", "torch_fp32"]


def parse_options():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for run in RUNS:
        p.add_argument("--" + run.replace("_", "-"), required=True, metavar="LOG")
    p.add_argument("--out", default="compare", help="files to write, without .md and .svg")
    return p.parse_args()


def read_losses(a):
    """run -> loss of each step; step 1 is the first, as in the trainer's step line"""
    losses = {run: {step + 1: loss for step, loss in read_log(getattr(a, run))[0]} for run in RUNS}
    steps = losses[RUNS[0]].keys()
    for run in RUNS:
        wrong = sorted(steps ^ losses[run].keys())
        wrong += [step for step, loss in losses[run].items() if not math.isfinite(loss)]
        if wrong or not steps or max(steps) < FIRST:
            raise SystemExit(f"{getattr(a, run)}: expected a finite loss for the same steps as in "
                             f"{getattr(a, RUNS[0])}, at least {FIRST}; not so at {wrong[:5]}")
    return losses


def differences(losses):
    """name -> (step, |difference|) from step FIRST on"""
    pairs = {"ours - PyTorch, bf16": ("ours_bf16", "torch_bf16"),
             "ours - PyTorch, fp32": ("ours_fp32", "torch_fp32"),
             "PyTorch bf16 - fp32": ("torch_bf16", "torch_fp32")}
    steps = sorted(step for step in losses["ours_bf16"] if step >= FIRST)
    return {name: [(s, abs(losses[a][s] - losses[b][s])) for s in steps] for name, (a, b) in pairs.items()}


def judge(diffs):
    """the bound, and a line for each comparison that ends in ok or FAIL"""
    bound = TIMES * max(d for _, d in diffs["PyTorch bf16 - fp32"])
    lines = []
    for name in list(diffs)[:2]:
        (worst, at), (last, end) = max((d, s) for s, d in diffs[name]), diffs[name][-1][::-1]
        ok = math.isfinite(worst) and worst <= bound and last <= LAST_BOUND
        lines.append(f"{name}: largest {worst:.5f} at step {at} (bound {bound:.5f}), "
                     f"{last:.5f} at step {end} (bound {LAST_BOUND}): {'ok' if ok else 'FAIL'}")
    return bound, lines


def table(losses, diffs):
    head = ["step", *(run.replace("torch", "PyTorch").replace("_", " ") for run in RUNS),
            *(f"\\|{name}\\|" for name in diffs)]
    rows = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    difference = {name: dict(points) for name, points in diffs.items()}
    for step in sorted(difference["PyTorch bf16 - fp32"]):
        if step % EVERY == 0 or step == max(losses["ours_bf16"]):
            cells = [f"{losses[run][step]:.4f}" for run in RUNS]
            cells += [f"{difference[name][step]:.5f}" for name in diffs]
            rows.append(f"| {step} | " + " | ".join(cells) + " |")
    return rows


def panel(curves, last, title, line=None):
    """a chart of WIDTH x HEIGHT: name -> points; line: the height of a dashed one"""
    values = [v for points in curves.values() for _, v in points] + ([line] if line else [])
    low, high = (0 if line else min(values)), max(values)
    high = high if high > low else low + 1

    def place(step, value):
        return (LEFT + (WIDTH - LEFT - RIGHT) * step / last,
                TOP + (HEIGHT - TOP - BOTTOM) * (high - value) / (high - low))

    parts = axes(low, high, last, place)[:-1]
    parts.append(f'<text x="14" y="{TOP - 12}">{title}</text>')
    for k, (name, points) in enumerate(curves.items()):
        color = COLORS[k]
        parts.append(polyline(points, place, color, 1.2, 0.8))
        parts.append(f'<text x="{WIDTH - RIGHT - 8}" y="{TOP + 16 * (k + 1)}" text-anchor="end" '
                     f'fill="{color}">{name}</text>')
    if line:
        (x0, y), (x1, _) = place(0, line), place(last, line)
        parts.append(f'<line x1="{x0}" y1="{y:.1f}" x2="{x1}" y2="{y:.1f}" stroke="#000" '
                     'stroke-dasharray="6 4"/>')
    return "\n".join(parts)


def write_picture(path, losses, diffs, bound):
    curves = {run.replace("torch", "PyTorch").replace("_", " "): sorted(losses[run].items()) for run in RUNS}
    last = max(losses[RUNS[0]])
    top = panel(curves, last, "loss, nats per token")
    thousandths = {name: [(step, 1e3 * d) for step, d in points] for name, points in diffs.items()}
    bottom = panel(thousandths, last, "|difference|, 0.001 nats per token; dashed: the bound", 1e3 * bound)
    with open(path, "w") as out:
        out.write(f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{2 * HEIGHT}" '
                  'font-family="sans-serif" font-size="12">\n'
                  f'<rect width="100%" height="100%" fill="white"/>\n{top}\n'
                  f'<g transform="translate(0 {HEIGHT})">\n{bottom}\n</g>\n</svg>\n')


def main():
    a = parse_options()
    losses = read_losses(a)
    diffs = differences(losses)
    bound, verdict = judge(diffs)
    text = "\n".join(table(losses, diffs)) + "\n\n" + "\n".join(f"- {line}" for line in verdict) + "\n"
    with open(a.out + ".md", "w") as out:
        out.write(text)
    write_picture(a.out + ".svg", losses, diffs, bound)
    print(text + f"wrote {a.out}.md and {a.out}.svg")
    raise SystemExit(any(line.endswith("FAIL") for line in verdict))


if __name__ == "__main__":
    main()
