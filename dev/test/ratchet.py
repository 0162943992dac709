#!/usr/bin/env python3
"""The ratchet: no room has more files, lines or words of documents than dev/house.toml says. Standard library only.

    dev/test/ratchet.py            compares, and prints which rooms have room; exit 1 at an excess, or at a number that was raised
    dev/test/ratchet.py --write    writes what there is now

A room is a folder, without the rooms below it. Lines are those of text files that somebody writes (no .json, .svg, fixtures).
A number may be raised by a commit whose message says `house:` and the issue that allows it. Last line: N passed, N failed,
N skipped.
"""
import os
import re
import subprocess
import sys

try:
    import tomllib
except ImportError:  # before Python 3.11
    tomllib = None

FILE = "dev/house.toml"
WRITTEN = re.compile(r"\.(?:h|cuh|cu|cpp|c|py|sh|pl|mk|toml|txt|md|map)$|/?(?:Makefile|run)$")


def git(*arguments):
    done = subprocess.run(["git", *arguments], capture_output=True, text=True, check=False)
    return done.stdout if done.returncode == 0 else ""


def room_of(path):
    parts = os.path.dirname(path).split("/")
    if "ladder" in parts:
        return "/".join(parts[:parts.index("ladder") + 1])
    depth = {"llmc": 4, "dev": 3}.get(parts[0], 1)
    return "/".join(parts[:depth]) or "."


def rooms():
    """room -> files, lines, words of documents, of what git tracks"""
    found = {}
    for path in git("ls-files", "-z").split("\0"):
        if not path or not os.path.isfile(path):
            continue
        room = found.setdefault(room_of(path), {"files": 0, "lines": 0, "words": 0})
        room["files"] += 1
        if WRITTEN.search(path) and "/fixture/" not in path and path != FILE:
            with open(path, encoding="utf-8", errors="replace") as file:
                text = file.read()
            room["lines"] += text.count("\n")
            room["words"] += len(text.split()) if path.endswith(".md") else 0
    return dict(sorted(found.items()))


def excess(found, allowed):
    """what is more than is allowed, a line each; a room that is not in the file has 0 of all"""
    return [f"{room}: {n} {what}, expected at most {allowed.get(room, {}).get(what, 0)}; take something away in this room, or raise the "
            f"number in {FILE} in a commit whose message says house: and the issue" for room, of in found.items()
            for what, n in of.items() if n > allowed.get(room, {}).get(what, 0)]


def raised(before, after):
    """the numbers that are larger, or are there for the first time"""
    return [f"{room}: {what} {before.get(room, {}).get(what, 0)} to {n}" for room, of in after.items() for what, n in of.items()
            if n > before.get(room, {}).get(what, 0)]


def raised_by_commits():
    """of every commit that changed the file but the first: numbers that it raised without saying so"""
    commits, wrong = git("log", "--format=%H", "--", FILE).split(), []
    for commit in commits[:-1]:
        up = raised(tomllib.loads(git("show", f"{commit}^:{FILE}") or ""), tomllib.loads(git("show", f"{commit}:{FILE}") or ""))
        if up and "house:" not in git("show", "-s", "--format=%B", commit):
            wrong += [f"{commit[:8]} raises {line}; its message does not say house: and the issue that allows it" for line in up]
    return wrong, len(commits)


def main():
    if sys.argv[1:] not in ([], ["--write"]):
        print(__doc__.strip())
        return int(sys.argv[1] not in ("-h", "--help"))
    found = rooms()
    if not found or tomllib is None:
        print("no git checkout, or Python before 3.11: skipped\n0 passed, 0 failed, 1 skipped")
        return 0
    if sys.argv[1:] == ["--write"]:
        with open(FILE, "w") as file:
            file.write("# What each room may have: dev/test/ratchet.py. lines: of text that somebody writes; words: of documents.\n")
            file.writelines(f'"{room}" = {{files = {of["files"]}, lines = {of["lines"]}, words = {of["words"]}}}\n' for room, of in found.items())
        return 0
    with open(FILE, "rb") as file:
        allowed = tomllib.load(file)
    wrong, commits = raised_by_commits()
    over = excess(found, allowed)
    left = {room: {what: n - found.get(room, {}).get(what, 0) for what, n in of.items()} for room, of in allowed.items()}
    for room, of in left.items():
        if any(n > 0 for n in of.values()):
            print(f"has room: {room}: " + ", ".join(f"{n} {what}" for what, n in of.items() if n > 0))
    for line in wrong + over:
        print("ERROR:", line)
    print(f"{len(found)} rooms, {commits} commits of {FILE}")
    print(f"{len(found) + commits - len(wrong + over)} passed, {len(wrong + over)} failed, 0 skipped")
    return int(bool(wrong + over))


if __name__ == "__main__":
    sys.exit(main())
