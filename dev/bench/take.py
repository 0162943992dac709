"""Takes what a program measured into doc/measured, in place of what it measured before. Part of dev/bench/tables.py."""
import json
import os

from measured import Number, PROVIDERS, head_commit, load, shape, store


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
    old = {(row["direction"], row["shape"]): row for row in load("race/points")["rows"]}
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
    head |= {"commit": head_commit(), "command": "dev/bench/bench_layernorm.py --sweep --gpt2"}
    return store("race/points", head | {"rows": list(rows.values())})


def take_models(measured):
    """pytorch_models.py's rows in place of those of the same name; the rest of another day or GPU would be no comparison"""
    old = load("pytorch/models")
    same = all(old.get(key) == measured[key] for key in ("gpu", "date"))
    rows = {row["row"]: row for row in (old["rows"] if same else []) + measured["rows"]}
    head = {key: measured[key] for key in ("gpu", "date", "pytorch", "others", "command")}
    head["note"] = "ms a step, the median; 16x1024 tokens of gpt2, 64 images of vit-l, 32x512 tokens of bert-l; the data come again and again"
    return store("pytorch/models", head | {"rows": list(rows.values())})


def take_attention(measured):
    """a row a shape and direction, a field a provider: median us, and the ratio to cuDNN's"""
    rows = {}
    for row in measured["rows"]:
        label = f"B={row['B']} NH={row['NH']} T={row['T']}, {row['direction']}"
        line = rows.setdefault(label, {"row": label})
        line[row["provider"]] = f"{row['median_us']:.1f} ({row['ratio_to_cudnn']:.2f})"
    old, cuda = load("attention/h100"), measured["torch"].partition("+cu")[2]
    head = {"gpu": measured["device"], "cuda": f"{cuda[:-1]}.{cuda[-1:]}", "pytorch": measured["torch"].rpartition(".")[0],
            "cudnn": f"{measured['cudnn'] // 10000}.{measured['cudnn'] % 10000 // 100}",
            "date": measured.get("date", old["date"]), "commit": head_commit(), "command": old["command"]}
    return store("attention/h100", head | {"rows": list(rows.values())})


def take_attention_ladder(measured):
    context, op = measured["context"], measured["context"]["op"]
    old = [row for row in load("ladder/attention")["rows"] if row["op"] != op]

    def where(row):
        return f"{row['N'] // row['T']}x{row['C'] // 64}x{row['T']}"
    rows = [{"op": op, "version": row["version"], "idea": row["idea"], "shape": where(row), "us": Number(f"{row['us']:.1f}"),
             "tflop_per_s": Number(f"{row['tflop_per_s']:.1f}"), "percent_of_roof": Number(f"{row['percent_of_roof']:.1f}")}
            for row in measured["rows"] if row["ok"] and row["us"] and row["percent_of_roof"]]
    rows += [{"op": op, "version": "roof", "idea": part, "shape": where(roof), "us": Number(f"{roof[part + ' us']:.1f}")}
             for roof in measured["roofs"] for part in ("products", "exponentials", "bytes")]
    head = {"gpu": context["gpu"], "cuda": context["cuda_runtime"], "driver": context["driver"], "date": context["date"][:10],
            "commit": head_commit(), "command": "dev/cuda/OP --cold"}
    return store("ladder/attention", head | {"rows": sorted(old + rows, key=lambda row: row["op"], reverse=True)})


def take_shootout(measured, name):
    """rows of ship in place of older ones of the same call"""
    context, data, commit = measured["context"], load(name), head_commit()
    rows = data["rows"]
    slow = {(roof["dtype"], roof["N"], roof["C"]) for roof in measured["roofs"] if roof.get("counts") is False}

    def key(row):
        return row["op"], row["roof"][:4], row["dtype"], int(row["N"]), int(row["C"])
    for row in measured["rows"]:
        if row["version"] != "ship" or row["us"] is None or row["percent_of_roof"] is None or "block" in row["roof"]:
            continue
        if not row["ok"] or (row["dtype"], row["N"], row["C"]) in slow:
            print(f"left out: {shape(row)}: " + ("its roof is slower than is known" if row["ok"] else "wrong"))
            continue
        new = {field: Number(row[field]) if isinstance(row[field], int) else row[field]
               for field in ("op", "version", "dtype", "N", "C")}
        new |= {"us": Number(f"{row['us']:.2f}"), "percent_of_roof": Number(f"{row['percent_of_roof']:.1f}"),
                "roof": row["roof"], "date": context["date"][:10]}
        new |= {"commit": commit} if commit else {}
        new |= {"command": context["command"]} if "command" in context else {}
        new |= {"gpu": context["gpu"]} if context["gpu"] != data["gpu"] else {}
        places = [i for i, old in enumerate(rows) if key(old) == key(new)]
        rows[places[0] if places else len(rows):(places[0] + 1) if places else len(rows)] = [new]
    return store(name, data)


def take(path, name):
    if name == "race/points":
        return take_race(path)
    with open(path) as file:
        text = file.read()
    measured = json.loads(text)
    others = {"attention/h100": take_attention, "ladder/attention": take_attention_ladder, "pytorch/models": take_models}
    if name in others:
        return others[name](measured)
    if "context" in measured:
        return take_shootout(measured, name)
    return store(name, json.loads(text, parse_float=Number, parse_int=Number))
