#!/usr/bin/env python3
"""Where an optimizer step's time goes on the GPU, and whether the host ever waits for it.

Reads what dev/profile/libstepprofile.so recorded (its source, step_profile.cpp, says how to build it):

    CUDA_INJECTION64_PATH=dev/profile/libstepprofile.so PLUMB_PROFILE=profile.tsv ./train_gpt2cu --steps 25 \\
        --val-data none --sample-every 0 ...
    scripts/profile_step.py profile.tsv [--steps 10 20] [--kernels] [--allow cudaEventSynchronize]

Step k goes from the decide_step_kernel of step k - 1, which runs once a step just before AdamW, to its own.
The first table is the step of median length among --steps, by groups of kernels. Groups go by kernel names;
cuBLASLt's do not tell forward from backward, so what is between the encoder and the classifier is forward,
and in backward the transposes in their names (NN: gradient of the input, NT: of the weight) tell the rest.
Bias and GELU are part of the matmul where cuBLASLt's epilogue does them. The other table is the CUDA calls of
the host while it issued those steps. Exit 1 if one of them makes the host wait or the GPU stop: a
synchronisation, a copy or a fill that is not Async, a copy from or to pageable memory, an allocation, the
loading of a module. --allow takes one out: to wait for the event of the step before is no harm, for the GPU
has the next one to do.

Result: H200, 2026-11-21, 124M bf16, B=64, T=1024: no call that waits in steps 10 to 20, which took 121.1 to
        130.9 ms; the median one 124.1 ms: products 72.7, attention 35.0, the rest 15.7, idle 0.8.
        The table: doc/gpu_training.md.
"""
import argparse
import collections
import re
import statistics

MARKER = "decide_step_kernel"
# times in ns; lane: the stream, or the thread of a call
Record = collections.namedtuple("Record", "kind name start end lane correlation")

# the first that matches; "": the group of the kernel before, whose partial sums it finishes
GROUPS = [("", r"finish_columns"), ("matmul", r"nvjet|cutlass|xmma|gemm|splitk|cublas"),
          ("attention forward", r"attention_forward"), ("attention backward", r"attention_(backward|dot)"),
          ("layernorm forward", r"layernorm_forward"), ("layernorm backward", r"layernorm_backward"),
          ("gelu", r"gelu_(forward|backward)"), ("classifier", r"classifier|sum_losses"),
          ("encoder", r"encoder_"), ("bias gradient", r"bias_|sum_columns"),
          ("adamw", r"adamw|round_parameters|decide_step"), ("norm", r"sum_of_squares|sum_of_partials"),
          ("copies and fills", r"^mem(cpy|set)\b")]
WAITS = re.compile(r"Synchronize|^cu(da)?Memcpy(?!.*Async)|^cu(da)?Memset(?!.*Async)|^cudaMalloc(?!Async)|"
                   r"^cudaFree(?!Async)|^cudaHost(Alloc|Register|Unregister)|"
                   r"^cuMem(Alloc|Free|HostAlloc)(?!.*Async)|"
                   r"^cu(Module|Library)(Load|Unload)|^cuda(DeviceReset|StreamDestroy)|pageable")


def read_profile(path):
    """GPU records and host calls, each by start; names without the version that CUPTI appends (_v3020)"""
    gpu, calls, lost = [], [], None
    with open(path) as lines:
        for line in lines:
            fields = line.rstrip("\n").split("\t")
            if fields[0] == "end":
                lost = int(fields[1])
            elif len(fields) == 6:
                record = Record(*fields[:2], *map(int, fields[2:]))
                if record.kind in ("runtime", "driver"):
                    name = re.sub(r"(_v\d+|_pts[zd])+$", "", record.name)
                    calls.append(record._replace(name=name))
                else:
                    gpu.append(record)
    if lost is None:
        print(f"{path}: has no end: the program did not end properly, or it still runs")
    elif lost:
        raise SystemExit(f"{path}: {lost} records were lost")
    return sorted(gpu, key=lambda r: r.start), sorted(calls, key=lambda r: (r.start, -r.end))


def outermost(calls):
    """without the calls that are made inside of another one on the same thread"""
    busy_until, kept = {}, []
    for call in calls:
        if call.start >= busy_until.get(call.lane, 0):
            kept.append(call)
            busy_until[call.lane] = call.end
    return kept


def split_steps(records, starts):
    """lists of records between one of these times and the next; the first is of the second step"""
    steps, k = [[] for _ in starts[1:]], 0
    for r in records:
        while k < len(steps) and r.start >= starts[k + 1]:
            k += 1
        if k < len(steps) and r.start >= starts[0]:
            steps[k].append(r)
    return steps


def matmul_group(name, phase):
    if phase == "forward":
        return "matmul forward"
    letters = re.search(r"_([nt]{2})[nt]?(?=_|$)", name.lower())
    kind = {"nn": "input", "tt": "input", "nt": "weight"}.get(letters and letters.group(1))
    return f"matmul backward, {kind}" if kind else "matmul backward"


def grouped(step):
    """[(group, record)] of a step's records in order"""
    phase, previous, out = "forward", "other", []
    for r in step:
        name = r.name if r.kind == "kernel" else f"{r.kind} {r.name}"
        group = next((g for g, pattern in GROUPS if re.search(pattern, name, re.IGNORECASE)), "other")
        if group in ("classifier", "encoder"):
            phase = "backward" if group == "classifier" or "backward" in name else "forward"
        if group == "matmul":
            group = matmul_group(name, phase)
        previous = group = group or previous
        out.append((group, r))
    return out


def busy_ns(step):
    """time in which at least one record runs"""
    busy, until = 0, 0
    for r in step:
        busy += max(0, r.end - max(r.start, until))
        until = max(until, r.end)
    return busy


def print_row(name, ns, length, launches=""):
    print(f"| {name} | {ns / 1e6:.3f} | {100 * ns / length:.1f} | {launches} |")


def print_groups(step, length, show_kernels):
    times, launches, kernels = collections.Counter(), collections.Counter(), collections.Counter()
    for group, r in grouped(step):
        times[group] += r.end - r.start
        launches[group] += 1
        kernels[group, r.name] += r.end - r.start
    print("| group | ms | % | launches |\n|---|---|---|---|")
    for group, ns in times.most_common():
        print_row(group, ns, length, launches[group])
    overlap = sum(times.values()) - busy_ns(step)
    if overlap > 0:
        print_row("at the same time as another", -overlap, length)
    print_row("idle", length - busy_ns(step), length)
    print_row("**step**", length, length, len(step))
    if show_kernels:
        counts = collections.Counter((group, r.name) for group, r in grouped(step))
        print("\n| group | kernel | ms | launches |\n|---|---|---|---|")
        for key, ns in kernels.most_common():
            print(f"| {key[0]} | `{key[1][:160]}` | {ns / 1e6:.3f} | {counts[key]} |")


def print_calls(calls, copies, steps, allowed):
    """the calls by name; how many of them wait"""
    names = collections.Counter(call.name for call in calls)
    names.update("memcpy " + copy.name for copy in copies if "pageable" in copy.name)
    spent = collections.Counter()
    for call in calls:
        spent[call.name] += call.end - call.start
    waiting = {name: n for name, n in names.items() if WAITS.search(name)}
    print("\n| CUDA call | a step | ms a step | |\n|---|---|---|---|")
    for name, n in names.most_common():
        verdict = "" if name not in waiting else "waits, allowed" if name in allowed else "WAITS"
        print(f"| {name} | {n / steps:.1f} | {spent[name] / steps / 1e6:.3f} | {verdict} |")
    return sum(n for name, n in waiting.items() if name not in allowed)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("profile")
    p.add_argument("--steps", type=int, nargs=2, default=[10, 20], metavar=("FIRST", "LAST"),
                   help="default 10 20")
    p.add_argument("--kernels", action="store_true", help="every kernel of the median step as well")
    p.add_argument("--allow", action="append", default=[], metavar="CALL", help="a call that may wait")
    a = p.parse_args()
    gpu, calls = read_profile(a.profile)
    markers = [r for r in gpu if MARKER in r.name]
    first, last = a.steps
    if not 1 <= first <= last < len(markers):
        raise SystemExit(f"{a.profile}: found {len(markers)} steps; --steps {first} {last} must be in 1 .. "
                         f"{len(markers) - 1}")
    starts = [m.start for m in markers]
    steps = split_steps(gpu, starts)[first - 1:last]
    lengths = [starts[k] - starts[k - 1] for k in range(first, last + 1)]
    middle = lengths.index(statistics.median_low(lengths))
    print(f"steps {first} to {last}: {min(lengths) / 1e6:.3f} to {max(lengths) / 1e6:.3f} ms; "
          f"step {first + middle}, the median one:\n")
    print_groups(steps[middle], lengths[middle], a.kernels)

    launched = {call.correlation: call.start for call in reversed(calls) if call.kind == "runtime"}
    launched.update({c.correlation: c.start for c in calls if c.correlation not in launched})
    if any(m.correlation not in launched for m in markers):
        raise SystemExit(f"{a.profile}: the calls that launched {MARKER} are not in it")
    issued = split_steps(outermost(calls), [launched[m.correlation] for m in markers])[first - 1:last]
    count = last - first + 1
    waits = print_calls([c for step in issued for c in step],
                        [r for step in steps for r in step if r.kind == "memcpy"], count, a.allow)
    print(f"\n{waits} calls that wait in steps {first} to {last}")
    raise SystemExit(waits > 0)


if __name__ == "__main__":
    main()
