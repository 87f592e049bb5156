"""Builds the one extension module, reelpool._core; everything else stands in pyproject.toml.

Knobs (environment): REELPOOL_DEBUG=1 builds without optimisation and with assertions,
REELPOOL_WERROR=1 makes warnings errors, REELPOOL_CUDA=0 leaves the GPU's kernel out and =1 stops
where it cannot be compiled (unset: it is in if nvcc is found; csrc/cuda/compile_kernel.py says
where it is looked for), CC and CFLAGS mean what they always mean. A CFLAGS with
-fsanitize drops the release flags: _FORTIFY_SOURCE and -O3 hide from a sanitizer what it is there
to see.
"""

import os
import shlex
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT / "csrc" / "cuda"))

import compile_kernel  # noqa: E402  (tests/build_c.py shares it)

PACKAGES = ["libavcodec", "libavutil", "libswscale", "libcurl"]
OLDEST_LIBAVCODEC = "59.37"  # FFmpeg 5.1
OLDEST_LIBCURL = "7.87"
INSTALL_LINES = """\
  Debian, Ubuntu: apt install build-essential pkg-config libavcodec-dev libavutil-dev libswscale-dev
                              libcurl4-openssl-dev
  Fedora:         dnf install gcc pkgconf-pkg-config ffmpeg-free-devel libcurl-devel
  macOS:          brew install pkg-config ffmpeg curl"""

WARNINGS = [
    "-Wall", "-Wextra", "-Wshadow", "-Wstrict-prototypes", "-Wmissing-prototypes", "-Wvla",
    "-Wformat=2",
]  # fmt: skip
DIALECT = ["-std=c11", "-D_GNU_SOURCE", "-fvisibility=hidden", "-ffp-contract=off", "-pthread"]
RELEASE = [
    "-O3",
    "-DNDEBUG",
    "-fstack-protector-strong",
    "-U_FORTIFY_SOURCE",
    "-D_FORTIFY_SOURCE=2",
]
DEBUG = ["-O0", "-g3", "-UNDEBUG", "-U_FORTIFY_SOURCE"]
SANITIZED = ["-O1", "-g", "-UNDEBUG", "-U_FORTIFY_SOURCE"]


def stop(message, advice=INSTALL_LINES):
    """End the build with a message for a person, without a traceback."""
    print(f"\nreelpool: {message}\n{advice}\n", file=sys.stderr, flush=True)
    raise SystemExit(1)


def pkg_config(*args):
    """The words that pkg-config answers for our packages."""
    tool = os.environ.get("PKG_CONFIG", "pkg-config")
    try:
        done = subprocess.run([tool, *args, *PACKAGES], capture_output=True, text=True)
    except FileNotFoundError:
        stop(f"the build needs {tool}, which is not installed. Install it with")
    if done.returncode != 0:
        reason = (done.stderr.strip().splitlines() or ["pkg-config failed"])[0]
        stop(f"headers of FFmpeg or libcurl are missing ({reason}). Install them with")
    return shlex.split(done.stdout)


def check_libraries():
    """Refuse FFmpeg older than 5.1 and libcurl older than 7.87, whose API does not suffice."""
    tool = os.environ.get("PKG_CONFIG", "pkg-config")
    pkg_config("--exists", "--print-errors")
    for package, oldest, reads in (
        ("libavcodec", OLDEST_LIBAVCODEC, "FFmpeg 5.1 or newer"),
        ("libcurl", OLDEST_LIBCURL, "libcurl 7.87 or newer"),
    ):
        if subprocess.run([tool, f"--atleast-version={oldest}", package]).returncode:
            found = subprocess.run([tool, "--modversion", package], capture_output=True, text=True)
            stop(f"{package} {found.stdout.strip()} is too old: {reads} is needed "
                 f"({package} {oldest}). Install it with")  # fmt: skip


def compile_flags():
    """Compiler flags of the chosen kind of build."""
    if "-fsanitize" in os.environ.get("CFLAGS", ""):
        kind = SANITIZED
    else:
        kind = DEBUG if os.environ.get("REELPOOL_DEBUG") == "1" else RELEASE
    werror = ["-Werror"] if os.environ.get("REELPOOL_WERROR") == "1" else []
    return DIALECT + WARNINGS + kind + werror


def compile_cuda(folder):
    """Flags for a build with the GPU's kernel, and its file; nothing for one without."""
    wanted = os.environ.get("REELPOOL_CUDA", "")
    if wanted not in ("", "0", "1"):
        stop(f"REELPOOL_CUDA={wanted} is neither 0 (without CUDA) nor 1 (with it)", "")
    if wanted == "0":
        return [], []
    try:
        if wanted == "" and compile_kernel.find_nvcc() is None:
            return [], []
        what = compile_kernel.compile_kernel(folder, os.environ.get("REELPOOL_WERROR") == "1")
    except compile_kernel.NoKernel as error:
        if wanted == "1":
            stop(f"REELPOOL_CUDA=1, but {error}", "  REELPOOL_CUDA=0 builds without CUDA")
        print(f"reelpool: built without CUDA: {error}", file=sys.stderr, flush=True)
        return [], []
    return compile_kernel.flags_of(folder, what), [str(folder / "cuda" / "convert_kernel.inc")]


class BuildCore(build_ext):
    """build_ext that asks pkg-config, rebuilds when flags changed, and compiles on every CPU."""

    def build_extensions(self):
        check_libraries()
        import numpy  # a build requirement, absent when only metadata is asked for

        cuda_flags, kernel = compile_cuda(Path(self.build_temp).absolute() / "kernel")
        for ext in self.extensions:
            ext.include_dirs.append(numpy.get_include())
            ext.depends += kernel
            ext.extra_compile_args = compile_flags() + pkg_config("--cflags") + cuda_flags
            ext.extra_link_args = ["-pthread", "-Wl,-z,relro,-z,now"]
            ext.extra_link_args += pkg_config("--libs")
        self.force = self.force or self.flags_changed()
        self.compile_serially = self.compiler.compile
        self.compiler.compile = self.compile_parallel
        super().build_extensions()

    def flags_changed(self):
        """Whether the objects in build_temp were made with other flags; notes the new ones."""
        note = Path(self.build_temp) / "flags.txt"
        tools = [*self.compiler.compiler_so, *self.extensions[0].extra_compile_args]
        text = " ".join(str(word) for word in tools)
        changed = note.exists() and note.read_text() != text
        note.parent.mkdir(parents=True, exist_ok=True)
        note.write_text(text)
        return changed

    def compile_parallel(self, sources, output_dir=None, depends=None, **options):
        """Compile what is older than its source or than any header; one source a task."""
        newest_header = max(os.path.getmtime(name) for name in depends) if depends else 0.0

        def one(source):
            (target,) = self.compiler.object_filenames([source], output_dir=output_dir)
            fresh = max(os.path.getmtime(source), newest_header)
            if self.force or not os.path.exists(target) or os.path.getmtime(target) <= fresh:
                self.compile_serially([source], output_dir=output_dir, depends=depends, **options)
            return target

        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as threads:
            return list(threads.map(one, sources))


def core():
    """The extension: every C file of csrc, abi3 where the buffer protocol is part of it (3.11)."""
    limited = sys.version_info >= (3, 11)
    return Extension(
        "reelpool._core",
        sources=sorted(str(p.relative_to(ROOT)) for p in ROOT.glob("csrc/**/*.c")),
        depends=sorted(str(p.relative_to(ROOT)) for p in ROOT.glob("csrc/**/*.h")) + ["setup.py"],
        include_dirs=["csrc"],
        define_macros=[("Py_LIMITED_API", "0x030B0000")] if limited else [],
        py_limited_api=limited,
    )


abi3 = {"bdist_wheel": {"py_limited_api": "cp311"}} if sys.version_info >= (3, 11) else {}
setup(ext_modules=[core()], cmdclass={"build_ext": BuildCore}, options=abi3)
