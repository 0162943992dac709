"""The tables of the race of LayerNorms (make tables), and its figures as scripts/bench_layernorm.py writes them.
Part of scripts/tables.py.
"""
import json
import os

from measured import Number, cell, head_commit, load, markdown, source, write_rows

# who races, as bench_layernorm.py and as the tables call them
PROVIDERS = {"ours": "ours", "torch.compile": "torch.compile", "torch": "torch", "triton": "Triton's tutorial, our port",
             "liger": "Liger", "quack": "QuACK", "flash_attn": "flash-attention's Triton"}
CLOCKS = {"kernel time": "kernel time, us, and GB/s of useful bytes (2 N C elements forward, 3 N C backward)",
          "tutorial's clock": "GB/s by triton.testing.do_bench, at five places in memory, at the median, the 80 and the 20 % quantile"}


def rates(row, clock):
    """who -> GB/s of one point; who has none by this clock is left out"""
    found = {who: row[who] if clock == "kernel time" else row[who].get("clock", {})
             for who in PROVIDERS.values() if isinstance(row.get(who), dict)}
    return {who: float(times["gb_per_s"]) for who, times in found.items() if "gb_per_s" in times}


def lead(row, clock):
    """ours over the fastest other's, 0 where ours has no time, and who that other is"""
    others = rates(row, clock)
    ours = others.pop("ours", 0)
    best = max(others, key=others.get, default=None)
    if best is None:
        return float("inf"), "nobody"
    if clock == "kernel time" and ours:
        return float(row[best]["us"]) / float(row["ours"]["us"]), best
    return ours / others[best], best


def race(direction, clock):
    """a line a point, a column for each who races and for each other field of the rows"""
    def shown(value):
        if not isinstance(value, dict):
            return cell(value)
        times = value.get("clock") if clock != "kernel time" else "us" in value and {k: value[k] for k in ("us", "gb_per_s")}
        return cell(times) if times else cell(value.get("note"))

    data = load("layernorm_race")
    rows = [row for row in data["rows"] if row["direction"] == direction]
    fields = [f for f in dict.fromkeys(f for row in rows for f in row) if f != "direction"]
    last = [f for f in fields if f.startswith("published")] if clock == "kernel time" else []
    fields = [f for f in fields if not f.startswith("published")]
    lines = [[shown(row.get(f)) for f in fields] + [f"{lead(row, clock)[0]:.2f}"] + [row.get(f, "") for f in last] for row in rows]
    return markdown(fields + ["ours / best other, GB/s"] + last, lines) + source({**data, "note": CLOCKS[clock]})


def race_summary():
    """where ours is ahead of everyone, and where it is not"""
    data, lines = load("layernorm_race"), []
    for clock in CLOCKS:
        for direction in ("forward", "backward"):
            leads = [(*lead(row, clock), row["shape"]) for row in data["rows"] if row["direction"] == direction and rates(row, clock)]
            behind = [f"{shape} ({who}, {ratio:.2f})" for ratio, who, shape in leads if ratio <= 1]
            nearest = min((each for each in leads if each[0] > 1), default=None)
            lines.append([direction, clock, f"{len(leads) - len(behind)} of {len(leads)}",
                          f"{nearest[2]} ({nearest[1]}, {nearest[0]:.2f})" if nearest else "", ", ".join(behind) or "nowhere"])
    note = "in brackets the fastest other, and GB/s of ours over its"
    return markdown(["", "", "ours ahead at", "the nearest there", "behind at"], lines) + source({**data, "note": note})


def points_in(folder):
    """what bench_layernorm.py has put into a folder, in the tables' order: a line of its files a point, the last one counts"""
    points = {}
    for name in sorted(os.listdir(folder)):
        if name.endswith(".jsonl"):
            with open(os.path.join(folder, name)) as file:
                for line in file:
                    try:
                        point = json.loads(line)
                    except ValueError:  # empty, or cut short by a kill
                        continue
                    points[str(point["point"])] = point
    return sorted(points.values(), key=lambda point: point["order"])


def take_race(folder):
    """a row a point; what others have published stays"""
    old = {(row["direction"], row["shape"]): row for row in load("layernorm_race")["rows"]}
    points, rows = points_in(folder), {}
    for point in points:
        for row in point["rows"]:
            label = f"{row['N']}x{row['C']} {row['dtype']}"
            line = rows.setdefault((row["mode"], label), {"direction": row["mode"], "shape": label})
            times = {"us": Number(f"{row['us']:.2f}"), "gb_per_s": Number(f"{row['GB/s']:.0f}")} if "us" in row else {}
            if row.get("places", 5) != 5:
                print(f"by the tutorial's clock at {row['places']} places: {row['mode']} {label}, {row['provider']}")
            if "tutorial p50 us" in row:
                times["clock"] = {key: Number(f"{row[f'tutorial {q} GB/s']:.0f}")
                                  for key, q in (("gb_per_s", "p50"), ("p80", "p80"), ("p20", "p20"))}
            line[PROVIDERS.get(row["provider"], row["provider"])] = times | ({"note": row["note"]} if "note" in row else {})
    for key, line in rows.items():
        line.update({f: v for f, v in old.get(key, {}).items() if f.startswith("published")})
    head = {key: ", ".join(sorted({p["head"][key] for p in points})) for key in ("gpu", "date", "pytorch", "triton", "others")}
    head |= {"commit": head_commit(), "command": "scripts/bench_layernorm.py --sweep --gpt2"}
    return write_rows("layernorm_race", head, rows.values())


def take_models(measured):
    """train_models.py's rows in place of those of the same name; the rest of another day or GPU would be no comparison"""
    old = load("layernorm_pytorch_models")
    same = all(old.get(key) == measured[key] for key in ("gpu", "date"))
    rows = {row["row"]: row for row in (old["rows"] if same else []) + measured["rows"]}
    head = {key: measured[key] for key in ("gpu", "date", "pytorch", "others", "command")}
    head["note"] = "ms a step, the median; 16x1024 tokens of gpt2, 64 images of vit-l, 32x512 tokens of bert-l; the data come again and again"
    return write_rows("layernorm_pytorch_models", head, rows.values())
