"""Compiles the GPU's kernel: nvcc makes a fatbin of convert_kernel.cu, written as bytes for C.

    python csrc/cuda/compile_kernel.py FOLDER

writes FOLDER/cuda/convert_kernel.inc and prints what it holds; setup.py and tests/build_c.py do the
same. Environment: NVCC, CUDA_HOME or CUDA_PATH say where nvcc is; else it is looked for on PATH, in
this interpreter's packages (pip install nvidia-cuda-nvcc) and in /usr/local/cuda.

Machine code is made for the GPUs of data centres (8.0, 9.0, and 10.0 and 12.0 if this nvcc knows
them; 8.0 runs on 8.6 and 8.9, too), PTX of 7.5 for the driver to compile for any other.
"""

import glob
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

CSRC = Path(__file__).resolve().parent.parent
PARTS = ("convert_kernel.cu", "convert_kernel.h", "pixel_kernel.h", "convert_frame.h")
SOURCES = [CSRC / "cuda" / name for name in PARTS]
MACHINES = ("sm_80", "sm_90", "sm_100", "sm_120")
PTX = "75"


class NoKernel(Exception):
    """nvcc is missing or failed; the text is one line for a person."""


def find_nvcc():
    """Path of nvcc, or None. NoKernel if the environment names one that is not there."""
    for name, below in (("NVCC", ""), ("CUDA_HOME", "bin/nvcc"), ("CUDA_PATH", "bin/nvcc")):
        if os.environ.get(name):
            path = os.path.join(os.environ[name], below) if below else os.environ[name]
            found = shutil.which(path)
            if found is None:
                raise NoKernel(f"{name}={os.environ[name]}: there is no nvcc")
            return found
    packages = [p for folder in sys.path for p in glob.glob(f"{folder}/nvidia/cu*/bin/nvcc")]
    packages.sort(key=lambda path: int(re.search(r"/cu(\d+)/bin", path).group(1)), reverse=True)
    candidates = ["nvcc", *packages, "/usr/local/cuda/bin/nvcc"]
    return next(filter(None, map(shutil.which, candidates)), None)


def ask(nvcc, option):
    """What nvcc prints for an option."""
    done = subprocess.run([nvcc, option], capture_output=True, text=True)
    if done.returncode != 0:
        raise NoKernel(f"{nvcc} {option} ended with {done.returncode}: {first_line(done)}")
    return done.stdout


def first_line(done):
    lines = [line for line in (done.stderr + done.stdout).splitlines() if line.strip()]
    return next((line for line in lines if "error" in line), lines[0] if lines else "no message")


def compile_kernel(folder, werror=False):
    """Write the array unless it is there already; what it holds: "nvcc 13.0, sm_80 ..."."""
    nvcc = find_nvcc()
    if nvcc is None:
        raise NoKernel("no nvcc: set CUDA_HOME, or pip install nvidia-cuda-nvcc")
    version = re.search(r"release (\d+\.\d+)", ask(nvcc, "--version"))
    known = ask(nvcc, "--list-gpu-code").split()
    machines = [name for name in MACHINES if name in known]
    what = f"nvcc {version.group(1) if version else '?'}, {' '.join(machines)} compute_{PTX}"
    flags = ["-fatbin", "-std=c++17", "-O3", "-Wno-deprecated-gpu-targets",
             "-allow-unsupported-compiler", "-I", str(CSRC)]  # fmt: skip
    flags += ["--Werror", "all-warnings"] if werror else []
    for name in machines:
        flags += ["-gencode", f"arch={name.replace('sm', 'compute')},code={name}"]
    flags += ["-gencode", f"arch=compute_{PTX},code=compute_{PTX}"]
    target = Path(folder) / "cuda" / "convert_kernel.inc"
    note = target.with_suffix(".flags")
    recipe = " ".join([nvcc, what, *flags])
    newest = max(path.stat().st_mtime for path in [*SOURCES, Path(__file__)])
    if note.exists() and note.read_text() == recipe and note.stat().st_mtime > newest:
        return what
    target.parent.mkdir(parents=True, exist_ok=True)
    fatbin = target.with_suffix(f".{os.getpid()}.fatbin")  # another build may be beside us
    command = [nvcc, *flags, "-o", str(fatbin), str(SOURCES[0])]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise NoKernel(f"{nvcc} ended with {done.returncode}: {first_line(done)}")
    data = fatbin.read_bytes()
    rows = (",".join(map(str, data[at : at + 32])) for at in range(0, len(data), 32))
    new = target.with_suffix(f".{os.getpid()}.inc")
    new.write_text(",\n".join(rows) + "\n")
    new.replace(target)
    fatbin.unlink()
    note.write_text(recipe)
    return what


def flags_of(folder, what):
    """Compiler flags for cuda_image.c with the array in `folder`."""
    return ["-I", str(folder), f'-DRP_WITH_CUDA="{what}"']


if __name__ == "__main__":
    try:
        print(compile_kernel(sys.argv[1], werror=True))
    except NoKernel as error:
        raise SystemExit(f"reelpool: {error}") from None
