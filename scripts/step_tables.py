"""The tables of the training step (doc/step.md), of what --profile wrote, and of the step beside PyTorch's. Part of
scripts/tables.py.
"""
from measured import load, markdown, source

STEPS = {"124M, B=64, H100": "step/d12_b64", "124M, B=64, H200": "step/d12_b64_h200", "1558M, B=8, H100": "step/d48_b8"}
PRODUCTS = ("products, forward", "products, input's gradient", "products, weight's gradient")


def percent(part, whole):
    return f"{100 * float(part) / float(whole):.1f}" if float(whole) > 0 and float(part) > 0 else ""


def taken(data):
    """the line below a step's table"""
    return ["", f"{data['gpu']}, {data['date']}: {data['model']}."]


def step_parts(name):
    data = load(name)
    lines = [[part["part"], part["calls"], part["work"], part["roof"], percent(part["ms"], data["recorded_ms"]),
              percent(part["floor_ms"], part["ms"])] for part in data["parts"] if int(part["calls"]) > 0]
    lines.append(["idle", "", "", "", percent(data["idle_ms"], data["recorded_ms"]), ""])
    lines.append(["**the recorded step**", "", "", "", "100.0", percent(data["floors_ms"], data["recorded_ms"])])
    return markdown(["part", "calls", "work", "roof", "% of the step", "floor, % of it"], lines) + taken(data)


def step_sums():
    """a line a step that was measured: S, and S of the products alone"""
    lines = []
    for label, name in STEPS.items():
        data = load(name)
        products = [part for part in data["parts"] if part["part"] in PRODUCTS]
        waits = sum(float(call["a_step"]) for call in data["calls"] if call["waits"])
        lines.append([label, data["S"], percent(sum(float(p["floor_ms"]) for p in products), sum(float(p["ms"]) for p in products)),
                      percent(data["idle_ms"], data["recorded_ms"]), f"{waits:.1f}"])
    return markdown(["", "S", "products' floor, % of them", "idle, %", "calls a step in which the host waits"], lines)


def step_products(name):
    data = load(name)
    columns = {"first_us": "first", "best_us": "best", "same_bits_us": "best with its bits", "wide_us": "256 MiB",
               "unsplit_us": "no sum split", "fused_us": "as in the step", "adding_us": "adding"}
    lines = [[p["name"], p["part"].removeprefix("products, "), f"{p['N']} x {p['C']} x {p['OC']}", p["calls"]]
             + [p[c] if float(p.get(c, 0)) > 0 else "" for c in columns] for p in data["products"]]
    return markdown(["product", "", "N x C x OC", "calls"] + list(columns.values()), lines) + taken(data)


def short_step():
    """beside PyTorch in one call, by scripts/bench_training.py"""
    data, lines = load("training_bench"), []
    for row in data["rows"]:
        sides = [part for side in (row["plumb"], row["pytorch"])
                 for part in (f"{side['ms']} ({side['p20']}, {side['p80']})", side["tokens_per_s"])]
        label = f"{row['model']}, B={row['batch']}" + ", --tune-gemm" * row.get("tune_gemm", False)
        lines.append([label + (f", {row['gpu']}" if "gpu" in row else ""), *sides, row["ratio"]])
    return markdown(["", "plumb, ms a step (20 %, 80 %)", "tokens/s", "torch.compile, its fastest attention", "tokens/s",
                     "times PyTorch's"], lines) + source(data)


def step_tables():
    """the tables of the steps that were measured, by name"""
    found = {"short-step": short_step, "step-sums": step_sums}
    for name in STEPS.values():
        for kind, table in (("step-", step_parts), ("products-", step_products)):
            found[kind + name.removeprefix("step/").replace("_", "-")] = lambda name=name, table=table: table(name)
    return found
