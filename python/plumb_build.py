"""How `pip wheel .` makes the package: setuptools, with two steps before it packs: the kernels' library (make
and nvcc), and C++ extensions (g++ and the headers of each PyTorch they are for). Environment variables:
  PLUMB_ARCH     GPUs to compile for (default: those of this machine; where there is none
                 "sm_80 sm_90a compute_80": Ampere, Ada, Hopper, PTX for newer)
  PLUMB_LIBRARY  a libllmc_layernorm.so to pack as it is: nothing is compiled for a GPU, and of CUDA only the
                 headers are needed, for the extensions
  PLUMB_TORCH    folders of PyTorch packages, with ":" between them, to build extensions for (default: the
                 PyTorch of the environment, which pip gets if need be); "none": no extension, to test packing
By hand: python3 python/plumb_build.py FOLDER [--host] puts the package as it would be installed into FOLDER;
--host: over host memory, for tests without a GPU.
"""
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "plumb_layernorm"
LIBRARY = "libllmc_layernorm.so"
SONAME = f"{LIBRARY}.{re.search('^SOVERSION := (.*)', (ROOT / 'scripts/libraries.mk').read_text(), re.M)[1]}"
SOURCES = ("calls", "autograd")
STABLE_TARGET = "0x020a000000000000"  # PyTorch 2.10


def refuse(message):
    """The last line that a build prints: a traceback would hide it."""
    raise SystemExit(f"plumb_build.py: {message}")


def run(*command):
    print("+", *command, flush=True)
    if subprocess.run([str(c) for c in command], cwd=ROOT).returncode != 0:
        refuse(f"{command[0]} failed, as it says above; its command was: {shlex.join(map(str, command))}")


def require_means(host=False):
    """Refuses before anything is fetched or compiled what cannot end well."""
    library = os.environ.get("PLUMB_LIBRARY")
    nvcc = os.environ.get("NVCC", shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc")  # as in the Makefile
    if library and not (ROOT / library).is_file():
        refuse(f"PLUMB_LIBRARY={library}: there is no such file. Expected a {LIBRARY}: "
               f"make build/{LIBRARY}, on a machine with nvcc")
    if library and SONAME.encode() + b"\0" not in (ROOT / library).read_bytes():
        refuse(f"PLUMB_LIBRARY={library}: its SONAME is not {SONAME}, which the extensions look for. "
               f"Expected a {LIBRARY} of these sources: make build/{LIBRARY}")
    if not (host or library or shutil.which(nvcc)):
        refuse("no nvcc here, which compiles the kernels. Install the CUDA Toolkit, set NVCC to nvcc's path, "
               f"or set PLUMB_LIBRARY to a {LIBRARY} that was built elsewhere (make build/{LIBRARY})")


def torch_of_environment():
    """The folder of its package, or None. pip hides the environment from a build, but not where it lies."""
    installed = Path(sysconfig.get_path("platlib")) / "torch"
    if (installed / "version.py").exists():
        return installed
    found = importlib.util.find_spec("torch")
    return found and Path(found.origin).parent


def torch_folders():
    named = os.environ.get("PLUMB_TORCH")
    if named == "none":
        return []
    found = [Path(folder) for folder in named.split(":")] if named else [torch_of_environment()]
    if found == [None]:
        refuse("no PyTorch here, whose headers the extension needs: pip install torch, or set PLUMB_TORCH to "
               "the folders of PyTorch packages, or to none")
    for folder in found:
        if not (folder / "version.py").is_file():
            refuse(f"PLUMB_TORCH={named}: {folder} is no PyTorch package: it has no version.py")
    return found


def version(torch):
    """of a PyTorch package, as its extension's file has it: 2_11"""
    text = re.search(r"__version__ = '(\d+)\.(\d+)", (torch / "version.py").read_text())
    return "_".join(text.groups())


def make_library(target, host):
    if host:
        run("g++", "-std=c++20", "-O2", "-fPIC", "-shared", "-I.", f"-Wl,-soname,{SONAME}",
            "python/test/host/layernorm.cpp", "-o", target)
        return
    built = os.environ.get("PLUMB_LIBRARY")
    if not built:
        built = f"build/wheel/{LIBRARY}"
        arch = os.environ.get("PLUMB_ARCH")  # without it the Makefile asks this machine
        run("make", "BUILD=build/wheel", "MARCH=x86-64-v2", "LINEINFO=", *([f"ARCH={arch}"] if arch else []), built)
    shutil.copy(ROOT / built, target)


def compile_flags(torch, host):
    device = "python/test/host" if host else "python/csrc/cuda"
    cuda = Path(os.environ.get("CUDA_HOME", "/usr/local/cuda")) / "include"
    return ["g++", "-std=c++20", "-O3", "-fPIC", "-fvisibility=hidden", "-DNDEBUG", "-Wall", "-Wextra",
            "-Wno-unused-parameter", "-I.", f"-I{device}", "-isystem", torch / "include",
            "-isystem", torch / "include/torch/csrc/api/include", "-isystem", cuda]


def link(objects, target, torch, host):
    """The names of CUDA's run time are PyTorch's own, of its CUDA version: it has loaded them."""
    libraries = ["-ltorch_cpu", "-lc10"] + ([] if host else ["-ltorch_cuda", "-lc10_cuda"])
    run("g++", "-shared", *objects, "-o", target, f"-L{target.parent}", f"-l:{SONAME}", f"-L{torch / 'lib'}",
        "-Wl,--no-as-needed", *libraries, "-Wl,-rpath,$ORIGIN", "-Wl,--allow-shlib-undefined",
        "-Wl,--exclude-libs,ALL", "-s")


def make_extensions(folder, torches, host):
    with tempfile.TemporaryDirectory() as scratch, ThreadPoolExecutor(os.cpu_count()) as pool:
        jobs = [(torch, f"{version(torch)}_{name}", name, []) for torch in torches for name in SOURCES]
        if torches:
            target = [f"-DTORCH_TARGET_VERSION={STABLE_TARGET}", "-DUSE_CUDA"]
            jobs.append((torches[0], "stable", "stable", target))
        compiled = [pool.submit(run, *compile_flags(torch, host), *more, "-c", f"python/csrc/{name}.cpp",
                                "-o", f"{scratch}/{label}.o") for torch, label, name, more in jobs]
        for each in compiled:
            each.result()
        for torch in torches:
            link([f"{scratch}/{version(torch)}_{name}.o" for name in SOURCES],
                 folder / f"libplumb_torch_{version(torch)}.so", torch, host)
        if torches:
            link([f"{scratch}/stable.o"], folder / "libplumb_stable.so", torches[0], host)


def make_binaries(folder, host=False):
    """into the package's folder: the library, and the extensions beside it"""
    require_means(host)
    print("PyTorch:", *[f"{t} ({version(t).replace('_', '.')})" for t in torch_folders()], flush=True)
    folder = Path(folder).resolve()
    for older in folder.glob("lib*.so*"):  # of a build for another PyTorch
        older.unlink()
    make_library(folder / SONAME, host)
    make_extensions(folder, torch_folders(), host)


def main():
    arguments = [a for a in sys.argv[1:] if a != "--host"]
    if len(arguments) != 1 or arguments[0].startswith("-"):  # --help, or a typo, is no folder to make
        raise SystemExit(__doc__)
    folder = Path(arguments[0]) / PACKAGE
    shutil.copytree(ROOT / "python" / PACKAGE, folder, dirs_exist_ok=True)
    make_binaries(folder, "--host" in sys.argv)


if __name__ == "__main__":
    main()
else:  # as pip's build backend: pyproject.toml
    from setuptools import build_meta
    from setuptools.build_meta import *  # noqa: F403
    from setuptools.command.bdist_wheel import bdist_wheel
    from setuptools.command.build_py import build_py

    def get_requires_for_build_wheel(config_settings=None):
        require_means()
        have = os.environ.get("PLUMB_TORCH") or torch_of_environment()
        return build_meta.get_requires_for_build_wheel(config_settings) + ([] if have else ["torch"])

    class BuildPackage(build_py):
        def run(self):
            super().run()
            make_binaries(Path(self.build_lib) / PACKAGE)

    class Wheel(bdist_wheel):
        def finalize_options(self):
            self.distribution.has_ext_modules = lambda: True  # else it would lie where pure Python does
            super().finalize_options()

        def get_tag(self):  # of this processor, of any Python: the extensions use none of its interface
            return "py3", "none", super().get_tag()[2]
