"""Builds and runs the C tests, kernel checks and fuzz replays, each linked by the include law.

    python tests/build_c.py [--variant plain|gpu|clang|asan|tsan|fuzz] [--werror] [NAME...]

Every tests/c/test_<module>.c, tests/c/check_*.c and tests/fuzz/fuzz_<parser>.c becomes one program
in build/c-<variant>/, linked with the folder of csrc that its module lives in and the folders that
folder may include, and nothing else: a demux test that links proves that demux needs no FFmpeg.
A name selects programs (`mp4_index`, `test_mp4_index`); the last line counts passed and failed.
"""

import argparse
import contextlib
import functools
import os
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests" / "lint"), str(ROOT / "csrc" / "cuda")]

import check_source  # noqa: E402  (the include law is data there, once)
import compile_kernel  # noqa: E402  (so does the extension)

# Stand-ins for NVIDIA's libraries: their names, their sources in tests/c.
FAKES = {"libcuda.so.1": ("fake_cuda", "fake_cuda_rest"), "libnvcuvid.so.1": ("fake_nvcuvid",)}
# Programs whose name is no module's: the folder they are linked with.
FOLDER_OF = {
    "check_gpu": "cuda",
    "check_nvdec": "decode",
    "check_kernels": "convert",
    "dump_index": "demux",
}
PACKAGES = {
    "fetch": ["libcurl"],
    "decode": ["libavcodec", "libavutil"],
    "convert": ["libswscale", "libavutil"],
}

DIALECT = (
    "-std=c11 -D_GNU_SOURCE -fvisibility=hidden -ffp-contract=off -pthread -UNDEBUG -g "
    "-Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wvla -Wformat=2"
).split()
CONVERSION = ["-Wconversion", "-Wno-sign-conversion"]
ADDRESS = (
    "-O1 -fno-omit-frame-pointer -fsanitize=address,undefined,float-cast-overflow "
    "-fno-sanitize-recover=all"
).split()
VARIANTS = {
    "plain": ("gcc", ["-O1"]),
    "gpu": ("gcc", ["-O2"]),  # with the FFmpeg of tests/gpu/build_ffmpeg.sh, for another machine
    "clang": ("clang", ["-O1"]),
    "asan": ("gcc", ADDRESS),
    "tsan": ("gcc", ["-O1", "-fsanitize=thread"]),
    "fuzz": ("clang", ["-O1", "-fsanitize=fuzzer-no-link,address,undefined",
                       "-fno-sanitize-recover=all"]),
}  # fmt: skip
WRAPPED = (
    "malloc calloc realloc posix_memalign mmap pthread_create pthread_mutex_init pthread_cond_init "
    "open pread fstat pwrite copy_file_range fallocate fsync rename"
).split()
SANITIZER_OPTIONS = {
    "ASAN_OPTIONS": "detect_leaks=1:abort_on_error=1:allocator_may_return_null=1",
    "UBSAN_OPTIONS": "print_stacktrace=1",
    "TSAN_OPTIONS": "halt_on_error=1:second_deadlock_stack=1:suppressions="
    + str(ROOT / "tests" / "tsan.supp"),
}
TIMEOUT_S = 300
SIDE_BY_SIDE = min(2, len(os.sched_getaffinity(0)))


class Builder:
    """Compiles objects once per variant and links programs from them."""

    def __init__(self, variant, werror):
        self.fresh = {}
        compiler, flags = VARIANTS[variant]
        self.cc = find_compiler(compiler)
        self.variant = variant
        self.flags = [*DIALECT, *flags, *(["-Werror"] if werror else [])]
        self.broken = {}
        self.out = ROOT / "build" / ("c-" + variant + ("-werror" if werror else ""))

    def compile(self, source):
        """The object of one source, made anew when it or an included file is newer."""
        if source in self.broken:
            raise self.broken[source]
        extra = CONVERSION if source.is_relative_to(ROOT / "csrc") else []
        suffix = ".o"
        if source.name == "cuda_image.c" and kernel_flags():  # an object of its own: nvcc may come
            extra, suffix = [*extra, *kernel_flags()], ".cuda.o"
        target = self.out / "obj" / (source.relative_to(ROOT).as_posix() + suffix)
        if self.fresh.setdefault(target, None) is None:  # every program asks for the same objects
            self.fresh[target] = is_fresh(target)
        if self.fresh[target]:
            return target
        target.parent.mkdir(parents=True, exist_ok=True)
        notes = target.with_suffix(".d")
        new = target.with_suffix(f".{os.getpid()}.o")  # another build may be under way beside us
        try:
            run_tool([self.cc, *self.flags, *extra, *pkg_config("--cflags", *folders_of(source)),
                      "-Icsrc", "-Itests/c", "-MMD", "-MF", str(notes), "-c",
                      str(source.relative_to(ROOT)), "-o", str(new)])  # fmt: skip
        except BuildError as error:
            self.broken[source] = error
            raise
        new.replace(target)
        self.fresh[target] = True
        return target

    def parts(self, source):
        """Sources and linker flags of the program that a test's source makes."""
        folders = check_source.link_closure(folder_of(source.stem))
        sources = [p for f in folders for p in sorted((ROOT / "csrc" / f).glob("*.c"))]
        if source.parent.name != "fuzz":
            sources.append(ROOT / "tests" / "c" / "fault_inject.c")
            flags = ["-Wl," + ",".join(f"--wrap={f}" for f in WRAPPED)]
        elif self.variant == "fuzz":
            flags = ["-fsanitize=fuzzer"]
        else:
            sources.append(ROOT / "tests" / "fuzz" / "replay.c")
            flags = []
        return [source, *sources], flags + pkg_config("--libs", *folders)

    def fake_driver(self):
        """Build the libcuda.so.1 and libnvcuvid.so.1 that need no GPU, beside the programs that
        load them. Who loads them by those names afterwards, as FFmpeg does, gets them, too."""
        folder = ROOT / "tests" / "c"
        headers = [*folder.glob("*.h"), *(ROOT / "csrc" / "cuda").glob("*.h")]
        for name, stems in FAKES.items():
            sources, target = [folder / f"{stem}.c" for stem in stems], self.out / f"fake_{name}"
            newest = max(path.stat().st_mtime for path in [*sources, *headers, Path(__file__)])
            if target.exists() and target.stat().st_mtime > newest:
                continue
            self.out.mkdir(parents=True, exist_ok=True)
            new = target.with_suffix(f".{os.getpid()}")  # another build may be under way
            # Static: tsan takes what lies before other thread-local memory for its size, at times.
            run_tool([self.cc, *self.flags, "-fPIC", "-ftls-model=initial-exec", "-shared",
                      f"-Wl,-soname,{name}", "-Icsrc",
                      "-Itests/c", *(str(s.relative_to(ROOT)) for s in sources),
                      "-o", str(new)])  # fmt: skip
            new.replace(target)

    def program(self, source):
        """Build one test program; its path, or the BuildError that ended it."""
        try:
            sources, flags = self.parts(source)
            objects = [self.compile(s) for s in sources]
            target = self.out / source.stem
            newest = max(o.stat().st_mtime for o in objects)
            if not target.exists() or target.stat().st_mtime <= newest:
                new = target.with_suffix(f".{os.getpid()}")
                run_tool([self.cc, *self.flags, "-o", str(new), *map(str, objects), *flags, "-lm"])
                new.replace(target)
        except BuildError as error:
            return error
        return target

    def programs(self, sources):
        """Build all: shared objects first, side by side, then the programs."""
        shared = {p for s in sources for p in self.parts(s)[0]}
        if any("cuda" in s.stem or "nvdec" in s.stem for s in sources):
            self.fake_driver()

        def attempt(source):
            with contextlib.suppress(BuildError):  # every program that needs it reports it
                self.compile(source)

        with ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
            list(pool.map(attempt, sorted(shared)))
            return list(pool.map(self.program, sources))


def find_compiler(name):
    """CC of the environment for gcc's variants, else the newest clang or gcc that is installed."""
    candidates = [name, *(f"{name}-{v}" for v in range(22, 11, -1))]
    if name == "gcc" and "CC" in os.environ:
        candidates.insert(0, os.environ["CC"])
    for candidate in candidates:
        for folder in os.environ["PATH"].split(os.pathsep):
            if os.access(os.path.join(folder, candidate), os.X_OK):
                return candidate
    raise SystemExit(f"no {name} is installed:  apt-get install {name}")


def run_tool(command):
    done = subprocess.run(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
    if done.stderr:
        print(done.stderr, file=sys.stderr, end="", flush=True)
    if done.returncode != 0:
        raise BuildError(f"{command[0]} ended with {done.returncode}")


@functools.cache
def kernel_flags():
    """Flags that put the GPU's kernel into cuda_image.c; none where nvcc is not found."""
    folder = ROOT / "build" / "kernel"
    try:
        wanted = os.environ.get("REELPOOL_CUDA", "")
        if wanted == "0" or (wanted != "1" and compile_kernel.find_nvcc() is None):
            return []
        return compile_kernel.flags_of(folder, compile_kernel.compile_kernel(folder, werror=True))
    except compile_kernel.NoKernel as error:
        raise BuildError(str(error)) from None


class BuildError(Exception):
    """A compiler or linker failed; what it said is on stderr."""


def is_fresh(target):
    """Whether an object is newer than every file in its dependency list."""
    notes = target.with_suffix(".d")
    if not target.exists() or not notes.exists():
        return False
    names = notes.read_text().replace("\\\n", " ").split(":", 1)[1].split()
    made = target.stat().st_mtime
    files = [Path(__file__), *(ROOT / name for name in names)]  # the flags stand here
    return all(f.exists() and f.stat().st_mtime < made for f in files)


@functools.cache
def pkg_config(option, *folders):
    """pkg-config's words for the packages of these folders."""
    packages = sorted({p for f in folders for p in PACKAGES.get(f, [])})
    if not packages:
        return []
    done = subprocess.run(["pkg-config", option, *packages], capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(done.stderr)
    return done.stdout.split()


def folders_of(source):
    """Folders of csrc whose packages a source may include headers of."""
    if source.is_relative_to(ROOT / "csrc"):
        return [source.parent.name]
    program = source.stem.startswith(("test_", "check_", "fuzz_", "dump_"))
    return check_source.link_closure(folder_of(source.stem)) if program else []


def folder_of(name):
    """The folder of csrc that a program tests: its module's, or the folder of the same name."""
    if name in FOLDER_OF:
        return FOLDER_OF[name]
    module = re.sub(r"^(test|fuzz|check)_", "", name)
    while module:
        for suffix in (".c", ".h"):
            found = sorted((ROOT / "csrc").glob(f"*/{module}{suffix}"))
            if found:
                return found[0].parent.name
        if (ROOT / "csrc" / module).is_dir():
            return module
        module = module.rpartition("_")[0]  # test_mp4_index_damaged.c also tests mp4_index
    raise SystemExit(f"{name}.c: no csrc/*/<module>.c has this name; add it to FOLDER_OF")


def programs(variant, names):
    """Sources of the programs to build, by variant and by the names given."""
    tests = ROOT / "tests"
    found = sorted((tests / "fuzz").glob("fuzz_*.c"))
    checks = sorted((tests / "c").glob("check_*.c"))
    if variant == "tsan":  # kernels start no threads; where each call fails once, ASan sees more
        found = sorted(p for p in (tests / "c").glob("test_*.c") if not p.stem.endswith("_faults"))
    elif variant != "fuzz":
        found = [*sorted((tests / "c").glob("test_*.c")), *checks, *found]
    if not names:
        return found
    chosen = [p for p in found if p.stem in names or p.stem.partition("_")[2] in names]
    groups = {"c": "c", "fuzz-replay": "fuzz"}
    chosen += [p for n in names if n in groups for p in found if p.parent.name == groups[n]]
    known = {p.stem for p in chosen} | {p.stem.partition("_")[2] for p in chosen}
    unknown = [n for n in names if n not in known and n not in groups]
    if unknown:
        raise SystemExit(f"no C test or fuzz target is named {' '.join(unknown)}")
    return chosen


def run_program(program, source, variant):
    """Run one program; (what went wrong or None, what it printed)."""
    command = [str(program)]
    if source.parent.name == "fuzz":
        command.append(str(ROOT / "tests" / "fuzz" / "corpus" / source.stem.removeprefix("fuzz_")))
    if variant == "tsan":  # the kernel's wide address randomisation is beyond gcc 12's tsan
        command = ["setarch", "-R", *command]
    env = {**SANITIZER_OPTIONS, **os.environ}
    try:
        done = subprocess.run(command, cwd=ROOT, env=env, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, timeout=TIMEOUT_S)  # fmt: skip
    except subprocess.TimeoutExpired as late:
        return f"no end after {TIMEOUT_S} s", (late.output or b"").decode(errors="replace")
    output = done.stdout.decode(errors="replace")
    return (f"exit status {done.returncode}" if done.returncode else None), output


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--variant", choices=VARIANTS, default="plain")
    parser.add_argument("--werror", action="store_true", help="warnings are errors")
    parser.add_argument("--build-only", action="store_true", help="do not run what was built")
    parser.add_argument(
        "-v", "--verbose", action="store_true", help="show what passing tests print"
    )
    parser.add_argument(
        "names", nargs="*", help="c, fuzz-replay, or names of modules; default: all"
    )
    args = parser.parse_args()

    builder = Builder(args.variant, args.werror)
    sources = programs(args.variant, args.names)
    sources.sort(key=lambda path: -path.stat().st_size)  # a long one that starts last runs alone
    started = time.monotonic()

    built = builder.programs(sources)
    passed, failed = 0, 0

    def outcome(source, program):
        """(what went wrong or None, what was printed)."""
        if isinstance(program, BuildError):
            return f"build: {program}", ""
        if args.build_only or args.variant == "fuzz":
            return None, ""
        return run_program(program, source, args.variant)

    with ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
        for source, (problem, output) in zip(sources, pool.map(outcome, sources, built)):
            passed, failed = passed + (problem is None), failed + (problem is not None)
            if problem is not None:
                print(f"{output}FAIL {source.name}: {problem}", flush=True)
            elif args.verbose:
                print(f"ok   {source.name}\n{output}", flush=True)
    took = time.monotonic() - started
    print(f"C {args.variant}: {passed} passed, {failed} failed in {took:.1f} s", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
