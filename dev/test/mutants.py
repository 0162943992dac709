#!/usr/bin/env python3
"""What the CPU tests notice: changes one place of one line of the code, and runs the tests. Standard library only.

    dev/test/mutants.py N [SEED]    N mutants of llmc/host, llmc/model (without gpu/) and data/*.cpp

SEED is the commit's hash unless given. Each line that has a place is as likely as another: a comparison, && || + - * /
!, an integer, true, false, a statement, what is returned, break, continue. What does not compile is drawn again.
build/mutants/tree is a copy with what `make` has built; of a changed header the library and the tests that include it
themselves are compiled. Its tests run first, test_durable's last, two at a time, up to a failure, which must come
twice; five times as long is one. A test that fails without a mutant is left out. A stopped run goes on:
build/mutants/results has a line for each mutant; one that is taken out is tried again. Last lines: what survived (is
it the same program, or a hole in the tests?) and the score.
"""
import contextlib, glob, os, random, re, signal, subprocess, sys, tempfile, time

TREE, RESULTS = "build/mutants/tree", "build/mutants/results"
TEXTS = re.compile(r'//[^\n]*|R"(\w*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|(?<!\w)\'(?:\\.|[^\\\'\n])\'', re.S)
OPERATORS = "< <=  < >=  <= <  <= >  > >=  > <=  >= >  >= <  == !=  != ==  && ||  || &&  - +  * /  / *  += -=  -= +="
NUMBER = r"(?<![\w.'\"])(?<!e-)(?:\d[\d']*)(?=[uUlL]*(?![\w.'\"]))"
CHANGES = [(rf"(?<= ){re.escape(a)}(?= |$)", b) for a, b in (pair.split() for pair in OPERATORS.split("  "))] + [
    (r'(?<=[^"] )\+(?= [^"]|$)', "-"), (r"(?<![\w!])!(?=[\w(])", ""), (NUMBER, "({} + 1)"), ("(?!0[^'])" + NUMBER, "0"),
    (r"\btrue\b", "false"), (r"\bfalse\b", "true"), (r"\bbreak(?=;)", "continue"), (r"\bcontinue(?=;)", "break"),
    (r"\breturn ([^;?]*(?: [<>=!]=? | && |\|\||!|empty\(\))[^;?]*);", "!({})"),
    (r"^ *(\**(?!static_assert)(?:[\w.:]|->|\[[^]]*\])+(?: [-+*/%|&^]?= |\(|\+\+|--)[^{}]*;|throw [^{}]*;|return;) *$",
     ";"),
    (r"\{ ((?!return .)[^{}]+;) \}", ""), (r"^ *(?:\} else )?(?:if|for|while) .*\{ (return .[^{}]*;) \}", "")]
DONE = {}


def draw(seed):
    """path, line's number, line and changed line, in the seed's order"""
    lines, chance = {}, random.Random(seed)
    list_files = ["git", "ls-files", "llmc/host", "llmc/model", "data/*.cpp"]
    for path in subprocess.check_output(list_files, text=True).split():
        text = "" if path.startswith("llmc/model/gpu/") or not path.endswith((".h", ".cpp")) else open(path).read()
        masked = TEXTS.sub(lambda m: re.sub(r"[^\n]", " " if m[0][:2] == "//" else '"', m[0]), text)
        for number, (line, code) in enumerate(zip(text.split("\n"), masked.split("\n")), 1):
            for pattern, new in [] if code.startswith("#") else CHANGES:
                for m in re.finditer(pattern, code):
                    start, end = m.span(m.lastindex or 0)
                    if code.count("(", start, end) == code.count(")", start, end):
                        changed = line[:start] + new.format(line[start:end]) + line[end:]
                        lines.setdefault((path, number, line), []).append(changed)
    for place in chance.sample(list(lines), len(lines)):
        yield *place, chance.choice(lines[place])


def run_tests(tests, seconds):
    """the first that fails; nothing if all pass"""
    tests, running, failed = list(tests), {}, set()
    with tempfile.TemporaryDirectory(dir="/dev/shm", ignore_cleanup_errors=True) as scratch:
        env = dict(os.environ, PLUMB_BIN_DIR="bin", TMPDIR=scratch, OMP_WAIT_POLICY="passive")
        try:
            while tests or running:
                if tests and len(running) < 2:
                    test = tests.pop(0)
                    program = "bin/test_durable" if "/durability/" in test else "bin/test_gpt2"
                    running[test] = time.time() + 20 + 5 * seconds.get(test, 60), subprocess.Popen(
                        [program, "--source-file=*" + test, "--abort-after=1"], cwd=TREE, env=env,
                        start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
                for test, (end, ran) in list(running.items()):
                    status = ran.poll()
                    if time.time() > end or status and test in failed:
                        return ("timeout of " if status is None else "killed by ") + test
                    if status is not None:
                        del running[test]
                        tests[:0] = [test] if status else []
                        failed |= {test} if status else set()
                time.sleep(0.01)
            return ""
        finally:
            for _, ran in running.values():
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(ran.pid, signal.SIGKILL)


def distance(path, test):
    """0: the test is named like the changed file or includes its header; 1: through another; 2: neither; 3: slow"""
    name, depends = path.rsplit(".", 1)[0], open(f"{TREE}/build/{test[:-4]}.d").read()
    near = f"/test_{os.path.basename(name)}.cpp" in test or name.removeprefix("data/") in open(f"{TREE}/{test}").read()
    return 3 if "/durability/" in test else 0 if near else 1 if f" {name}.h" in depends else 2


def shell(command):
    return subprocess.call(command, shell=True) == 0


def make():
    programs = "test_gpt2 test_durable train_gpt2 data/make_corpus data/make_shards data/make_hellaswag"
    return shell(f"make -C {TREE} -s -j2 OPTIMIZE=-Og OUT=bin/ $(printf 'bin/%s ' {programs}) >{TREE}/../make.log 2>&1")


def restore():
    """the sources and objects without a mutant; programs and archives are made of them again"""
    for file in glob.glob(TREE + "/**/*.sound", recursive=True):
        os.replace(file, file[:-6])
    shell(f"rm -rf {TREE}/bin {TREE}/build/*.a {TREE}/build/dev/test/*.a")


def try_mutant(path, number, changed, seconds):
    """what happened; nothing if it does not compile, or if no program has it"""
    stale, source = [], f"{TREE}/{path}"
    for depends in glob.glob(TREE + "/build/**/*.d", recursive=True):
        test = depends[len(TREE + "/build/"):-2] + ".cpp"
        if re.search(rf"\s{re.escape(path)}\s", open(depends).read()) and os.path.exists(depends[:-1] + "o") and not (
                path.endswith(".h") and test in seconds and distance(path, test)):
            stale.append(depends[:-1] + "o")
    for file in [source, *stale]:
        os.rename(file, file + ".sound")
    lines = open(path).read().split("\n")
    with open(source, "w") as out:
        out.write("\n".join([*lines[:number - 1], changed, *lines[number:]]))
    os.utime(source, (0, 0))  # what is not stale is newer
    tests = sorted(seconds, key=lambda test: (distance(path, test), seconds[test]))
    how = stale and make() and (run_tests(tests, seconds) or "survived")
    restore()
    return how or ""


def record(what, how):
    DONE[what] = how
    with open(RESULTS, "a") as out:
        print(what, how, sep="\t", file=out)


def main(n, seed=None):
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    os.makedirs(TREE, exist_ok=True)
    restore()
    if not shell(f"""rm -rf {TREE}/[!b]*
            git ls-files -co --exclude-standard | xargs ls -d 2>/dev/null | xargs cp -a --parents -t {TREE}
            [ -e {TREE}/build ] || cp -a --parents -t {TREE} build/deps.mk build/compiler build/*.h* \
            build/train_gpt2.[do] build/data build/llmc build/dev/test""") or not make():
        sys.exit(f"mutants: it does not build without a mutant: {TREE}/../make.log")
    if os.path.exists(RESULTS):
        DONE.update(line.rstrip("\n").rsplit("\t", 1) for line in open(RESULTS))
    grep = ["grep", "-rl", "^TEST_CASE", "dev/test", "--include=*.cpp"]
    for test in subprocess.check_output(grep, text=True).split():
        if "/gpu/" not in test and "seconds\t" + test not in DONE:
            begin = time.time()
            record("seconds\t" + test, run_tests([test], {}) or time.time() - begin)
    times = {what[8:]: how for what, how in DONE.items() if what.startswith("seconds\t")}
    seconds = {test: float(how) for test, how in times.items() if test not in str(how)}
    tried = {}
    seed = seed or subprocess.check_output(["git", "rev-parse", "HEAD"], text=True).strip()
    for path, number, line, changed in draw(seed):
        what = f"{path}:{number}\t{line.strip()} -> {changed.strip()}"
        if what not in DONE:
            record(what, try_mutant(path, number, changed, seconds))
            print(what, DONE[what] or "does not compile", sep="\t", flush=True)
        tried.update({what: DONE[what]} if DONE[what] else {})
        if len(tried) == int(n):
            break
    survived = [what for what in tried if tried[what] == "survived"]
    killed = len(tried) - len(survived)
    print("survived:", *survived, f"{len(tried)} mutants: {killed} killed, {len(survived)} survived", sep="\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
