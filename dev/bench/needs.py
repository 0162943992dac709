"""For programs of packages that may not be there: --help must work without them. Standard library only."""
import importlib.util
import os
import sys


def needs(doc, *packages):
    """prints doc for -h and --help, where a package is missing, and ends; without that, ends with what to install"""
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    if missing and {"-h", "--help"} & set(sys.argv[1:]):
        print(doc.strip())
        raise SystemExit(0)
    if missing:
        raise SystemExit(f"{os.path.basename(sys.argv[0])}: no package {', '.join(missing)}; expected: pip install {' '.join(packages)}")
