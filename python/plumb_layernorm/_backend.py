"""Chooses what answers: see backend in plumb_layernorm's documentation."""
import os
import re
import warnings
from pathlib import Path

import torch

FOLDER = Path(__file__).parent


def extension_file():
    """that of this PyTorch, whose C++ interface changes with each minor version"""
    major, minor = re.match(r"(\d+)\.(\d+)", torch.__version__).groups()
    return FOLDER / f"libplumb_torch_{major}_{minor}.so"


def choose():
    asked = os.environ.get("PLUMB_LAYERNORM_BACKEND")
    if asked not in (None, "extension", "stable", "torch"):
        raise ImportError(f"PLUMB_LAYERNORM_BACKEND is {asked!r}, expected extension, stable or torch")
    if asked:
        return asked
    if torch.version.cuda is None:
        return "torch"
    if extension_file().exists():
        return "extension"
    if tuple(int(number) for number in torch.__version__.split(".")[:2]) < (2, 10):
        raise ImportError(f"plumb_layernorm: PyTorch is {torch.__version__}, expected 2.10 or later")
    built = sorted(p.stem[len("libplumb_torch_"):].replace("_", ".")
                   for p in FOLDER.glob("libplumb_torch_*.so"))
    if not (FOLDER / "libplumb_stable.so").exists():
        raise ImportError(f"plumb_layernorm: {FOLDER} has no libplumb_stable.so and no extension for PyTorch "
                          f"{torch.__version__}; expected a wheel made beside PyTorch: see python/README.md")
    warnings.warn(f"plumb_layernorm: PyTorch is {torch.__version__}, the extensions here are for "
                  f"{', '.join(built) or 'no version'}: the portable operators answer, whose calls "
                  "cost more Python", stacklevel=4)
    return "stable"


def load(path):
    try:
        torch.ops.load_library(path)
    except OSError as error:
        raise ImportError(f"plumb_layernorm: cannot load {path}: {error}; expected PyTorch "
                          f"{torch.__version__} and the wheel for one processor; "
                          "PLUMB_LAYERNORM_BACKEND=stable may work") from None


backend = choose()
if backend == "extension":
    load(extension_file())
if backend != "torch":
    load(FOLDER / "libplumb_stable.so")
