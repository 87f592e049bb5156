"""Checks every source file against the rules of the house; prints `file:line: rule: what`.

    python tests/lint/check_source.py [ROOT]

The include law stands here as data: tests/build_c.py links by the same table. There is no list of
exceptions: a rule that needs one is wrong and is changed.
"""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

# folder of csrc: (its public headers, None = all; what else it may include: a folder's public
# headers, or one header)
LAW = {
    "base": (None, ()),
    "fetch": (("fetch.h", "http_client.h", "node_cache.h"), ("base",)),
    "demux": (("demux.h", "index_sidecar.h", "mp4_write.h"), ("base",)),
    "parquet": (("parquet.h",), ("base",)),
    "decode": (("decode.h", "nvdec.h"), ("base", "cuda", "demux/demux.h")),
    "cuda": (("cuda.h", "cuda_video.h", "convert_frame.h"), ("base",)),
    "convert": (("convert.h", "convert_cuda.h"), ("base", "cuda")),
    "pool": (
        ("pool.h", "device.h", "nvdec_probe.h", "plan.h", "feed.h", "sums.h"),
        ("base", "fetch", "demux", "decode", "cuda", "convert"),
    ),
    "python": ((), ("base", "cuda", "fetch", "demux", "parquet", "pool")),
}
# <header> that is not the C library's: the files that may include it
AV_FILES = r"decode/(dec_(av|cuda)\w*\.[ch]|av_compat\.h)"
SIMD = r"convert/convert_(avx2|avx512|neon)\w*\.c"
VENDOR = (
    (r"libavcodec/", AV_FILES),
    (r"libavutil/", AV_FILES + r"|convert/convert_sws\.c"),
    (r"libswscale/", r"convert/convert_sws\.c"),
    (r"curl/", r"fetch/http_curl\.c"),
    (r"(cuda|nvcuvid|dynlink_)\w*\.h|ffnvcodec/", r"decode/dec_cuda\.c"),
    (r"(immintrin|x86intrin|arm_neon)\.h", SIMD),
    (r"(cpuid|sys/auxv|asm/hwcap)\.h", r"base/cpu\.c"),
    (r"Python\.h|structmember\.h|numpy/", r"python/\w+\.[ch]"),
)
LIBC = re.compile(
    r"(arpa/inet|assert|complex|ctype|dirent|dlfcn|errno|fcntl|fenv|float|inttypes|limits|locale|malloc|math|netinet/in|poll"
    r"|pthread|sched|setjmp|signal|stdalign|stdarg|stdatomic|stdbool|stddef|stdint|stdio|stdlib"
    r"|stdnoreturn|string|strings|time|unistd|linux/\w+|sys/\w+)\.h"
)
# module of Python: the files of python/reelpool that may import it
PYTHON_LAW = {
    "torch": r"torch_bridge\.py|collation\.py|bench/.*",
    "pyarrow": r"(tables|metadata|image_cells)\w*\.py|convert/.*|bench/.*",
    "huggingface_hub": r"hub(_place)?\.py|convert/hub\.py",
    "lerobot": r"lerobot\.py|bench/.*",
}
ENVIRONMENT = r"env\.py|distributed\.py"
OUTER = ("bench", "convert", "cli")  # packages that nothing but themselves and __main__ imports

MAX_LINES = {".c": 600, ".h": 200, ".py": 500}
MAX_FUNCTION = 100
MAX_COMPLEXITY = 15
BANNED = re.compile(
    r"\b(strcpy|strcat|sprintf|vsprintf|printf|puts|putchar|atoi|atol|atof|strtok|alloca|system"
    r"|popen|gets|abort|exit)\s*\("
)
ALLOCATION = re.compile(
    r"\b(malloc|calloc|realloc|free|strdup|strndup|posix_memalign|aligned_alloc)\s*\("
)
ODD_UNICODE = re.compile("[\u00a0\u00ad\u200b-\u200f\u2028-\u202f\u2060-\u206f\ufeff\ufffc-\uffff]")
# Written so that this file does not match itself.
LEAKS = (
    ("machine path", re.compile(r"/(root|work|Users|home)/[\w.]")),
    ("registry host", re.compile(
        r"py[p]i\.org|python[h]osted\.org|deb\.[d]ebian\.org|archive\.[u]buntu\.com"
        r"|download\.[p]ytorch\.org|registry\.[n]pmjs|proxy\.[g]olang\.org|conda\.[a]naconda")),
    ("token-like string", re.compile(
        r"hf_[A-Za-z0-9]{30,}|gh[pousr]_[A-Za-z0-9]{30,}|AKIA[0-9A-Z]{16}|\bsk-[A-Za-z0-9]{32,}"
        r"|-{5}BEGIN [A-Z ]*PRIVATE KEY")),
)  # fmt: skip
TEXT = {".c", ".h", ".cu", ".py", ".pyi", ".md", ".toml", ".sh", ".in", ".txt", ".yml", ".supp",
        ".html", ".svg", ".cfg", ""}  # fmt: skip


def link_closure(folder):
    """Folders of csrc that an object of `folder` may need, itself first."""
    folders = [folder]
    for allowed in LAW[folder][1]:
        folders += [f for f in link_closure(allowed.split("/")[0]) if f not in folders]
    return folders


class Source:
    """One file: its path from the root, its text, and its text without comments and strings."""

    def __init__(self, root, path):
        self.root = root
        self.path = path.relative_to(root).as_posix()
        self.suffix = path.suffix
        self.text = path.read_text(encoding="utf-8")
        self.lines = self.text.splitlines()

    def code(self):
        return strip_c(self.text)

    def in_csrc(self):
        """Its path below csrc, or None."""
        return self.path[5:] if self.path.startswith("csrc/") else None

    def is_c(self):
        return self.suffix in (".c", ".h", ".cu")


def strip_c(text):
    """Blank comments, strings and character constants; lines stay where they are."""

    def blank(match):
        word = match.group(0)
        if word.startswith("/"):
            return re.sub(r"[^\n]", " ", word)
        return word[0] + re.sub(r"[^\n]", " ", word[1:-1]) + word[-1]

    token = r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\''
    return re.sub(token, blank, text, flags=re.S)


def functions(code):
    """(first line, last line, body) of every function: PEP 7 opens and closes it in column 0."""
    lines = code.splitlines()
    start = None
    for number, line in enumerate(lines, 1):
        if line == "{":
            start = number
        elif line.startswith("}") and start is not None:
            yield start, number, "\n".join(lines[start - 1 : number])
            start = None


def check_includes(source):
    """include: who may include what, spelled how, in which order."""
    name = source.in_csrc()
    if name is None or not source.is_c():
        return
    folder = name.split("/")[0]
    if folder not in LAW:
        yield 1, f"csrc/{folder} is not a folder of the include law"
        return
    first = None
    for number, line in enumerate(source.lines, 1):
        found = re.match(r'\s*#\s*include\s*([<"])([^>"]+)[>"]', line)
        if not found:
            continue
        quote, header = found.groups()
        first = first or (number, quote, header)
        problem = include_problem(folder, name, quote, header)
        if problem:
            yield number, problem
    if source.suffix != ".c" or first is None:
        return
    own = name[:-2] + ".h"
    if (source.root / "csrc" / own).exists():
        if first[2] != own:
            yield first[0], f'"{own}" comes first'
    elif first[1] != '"' or first[2].split("/")[0] != folder:
        yield first[0], f"a header of {folder}/ comes first"


def include_problem(folder, name, quote, header):
    """Why csrc/<name> may not include this header, or None."""
    if quote == "<":
        for pattern, files in VENDOR:
            if re.match(pattern, header):
                return None if re.fullmatch(files, name) else f"<{header}> does not belong here"
        return None if LIBC.fullmatch(header) else f"<{header}> is not the C library's"
    other, _, base = header.rpartition("/")
    if other not in LAW:
        return f'"{header}" is not spelled from csrc'
    if other == folder:
        return None
    public = LAW[other][0]
    allowed = other in LAW[folder][1] and (public is None or base in public)
    if (allowed or header in LAW[folder][1]) and not base.endswith("_priv.h"):
        return None
    return f'{folder}/ may not include "{header}"'


def check_sizes(source):
    """size: lines of a file and of a function, branches of a function."""
    limit = MAX_LINES.get(source.suffix)
    if limit and len(source.lines) > limit:
        yield len(source.lines), f"{len(source.lines)} lines, {limit} are allowed"
    if not source.is_c():
        return
    for start, end, body in functions(source.code()):
        if end - start + 1 >= MAX_FUNCTION:
            yield start, f"function of {end - start + 1} lines, below {MAX_FUNCTION} are allowed"
        branches = 1 + len(re.findall(r"\b(?:if|for|while|switch)\b|&&|\|\||\?", body))
        if branches > MAX_COMPLEXITY:
            yield start, f"complexity {branches}, {MAX_COMPLEXITY} is allowed"


def check_banned(source):
    """banned: calls that overflow, print, end the process or bypass the counted allocator."""
    if source.in_csrc() is None or not source.is_c():
        return
    for number, line in enumerate(source.code().splitlines(), 1):
        for call in BANNED.findall(line):
            yield number, f"{call}()"
        if source.path != "csrc/base/memory.c":
            for call in ALLOCATION.findall(line):
                yield number, f"{call}() outside base/memory.c"
        jump = re.search(r"\bgoto\s+(\w+)", line)
        if jump and not jump.group(1).startswith("fail"):
            yield number, f"goto {jump.group(1)}: goto is for fail"
        if re.search(r"#\s*define\s+_GNU_SOURCE", line):
            yield number, "_GNU_SOURCE is set by the build"


def declarations(source):
    """(line, declaration, comment of its paragraph) for every function prototype of a header."""
    code, text = source.code().splitlines(), source.lines
    number = 0
    while number < len(code):
        if not re.match(r"[A-Za-z_][\w\s*]*\brp_\w+\s*\(", code[number]):
            number += 1
            continue
        end = number
        while end < len(code) - 1 and not re.search(r"[;{]\s*$", code[end]):
            end += 1
        declaration = " ".join(" ".join(code[number : end + 1]).split())
        top = number
        while top > 0 and text[top - 1].strip() and not text[top - 1].startswith("#"):
            top -= 1
        yield number + 1, declaration, "\n".join(text[top:number])
        number = end + 1


def check_contracts(source):
    """contract: what a caller must know of every function that another folder can call."""
    name = source.in_csrc()
    if name is None or source.suffix != ".h" or name.endswith("_priv.h"):
        return
    folder, _, base = name.rpartition("/")
    public = LAW.get(folder, ((), ()))[0]
    if public is not None and base not in public:
        return
    for number, text, comment in declarations(source):
        if text.startswith(("static", "typedef", "return")):
            continue
        function = re.search(r"\b(rp_\w+)\s*\(", text).group(1)
        if "Thread:" not in comment:
            yield number, f"{function}: no Thread: line above it"
        if re.search(r"\*\s*\*\s*out\b", text) and "Owner:" not in comment:
            yield number, f"{function}: no Owner: line above it"
        fallible = re.search(r"struct rp_error \*\s*err\s*\)\s*;", text)
        if fallible and re.match(r"rp_status\b", text):
            yield number, f"{function}: RP_CHECKED is missing"


def check_text(source):
    """text: white space, odd Unicode, and what must not leave a developer's machine."""
    if source.text and not source.text.endswith("\n"):
        yield len(source.lines), "no newline at the end"
    for number, line in enumerate(source.lines, 1):
        if line != line.rstrip():
            yield number, "trailing white space"
        if "\t" in line and (source.is_c() or source.suffix in (".py", ".pyi")):
            yield number, "tab"
        if ODD_UNICODE.search(line):
            yield number, "odd Unicode character"
        for what, pattern in LEAKS:
            if pattern.search(line):
                yield number, what
        if source.is_c() and len(line) > 100:
            yield number, f"{len(line)} columns, 100 are allowed"
        if re.search(r"\b(TODO|FIXME|XXX)\b(?!.*#\d)", line) and "TODO|" not in line:
            yield number, "a TODO names an issue (#12)"


def check_python(source):
    """python: which module may import what, and where the environment is read."""
    prefix = "python/reelpool/"
    if not source.path.startswith(prefix) or source.suffix != ".py":
        return
    name = source.path[len(prefix) :]
    top = name.split("/")[0]
    for node in unguarded(ast.parse(source.text)):
        for module in imported(node, name):
            allowed = PYTHON_LAW.get(module.split(".")[0])
            if allowed and not re.fullmatch(allowed, name):
                yield node.lineno, f"{module} may not be imported here"
            inner = module.removeprefix("reelpool.").split(".")[0]
            outside = module.startswith("reelpool.") and inner in OUTER
            if outside and top not in (*OUTER, "__main__.py"):
                yield node.lineno, f"reelpool.{inner} is imported by nothing but itself"
        reads = isinstance(node, ast.Attribute) and node.attr in ("environ", "getenv")
        if reads and not re.fullmatch(ENVIRONMENT, name):
            yield node.lineno, f"os.{node.attr} is for env.py"


def unguarded(tree):
    """Every node but those under `if TYPE_CHECKING:`."""
    todo = [tree]
    while todo:
        node = todo.pop()
        yield node
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        todo += ast.iter_child_nodes(node)


def imported(node, name):
    """Absolute names of the modules that an import statement in reelpool/<name> names."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if not isinstance(node, ast.ImportFrom):
        return []
    if node.level == 0:
        if node.module == "reelpool":
            return [f"reelpool.{alias.name}" for alias in node.names]
        return [node.module]
    package = ["reelpool", *name.split("/")[:-1]]
    package = package[: len(package) - (node.level - 1)]
    if node.module:
        return [".".join([*package, node.module])]
    return [".".join([*package, alias.name]) for alias in node.names]


def check_names(root):
    """name: base names are unique in csrc and say their topic."""
    seen = {}
    for path in sorted((root / "csrc").glob("*/*")):
        if path.suffix not in (".c", ".h", ".cu"):
            continue
        other = seen.setdefault(path.stem, path.parent)
        where = path.relative_to(root).as_posix()
        if other != path.parent:
            yield where, 1, f"{other.name}/ has a {path.stem} already"
        if re.search(r"_(utils?|misc|helpers?|\d)$", path.stem):
            yield where, 1, "a file's name is its topic"


def check_headers_alone(root):
    """header: every header of csrc compiles on its own."""
    import sysconfig

    flags = ["-std=c11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", "-Icsrc"]
    for path in sorted((root / "csrc").glob("*/*.h")):
        extra = []
        if path.parent.name == "python":
            import numpy

            extra = ["-isystem", sysconfig.get_path("include"), "-isystem", numpy.get_include()]
        name = path.relative_to(root / "csrc").as_posix()
        done = subprocess.run(
            [os.environ.get("CC", "cc"), *flags, *extra, "-xc", "-"],
            input=f'#include "{name}"\n', capture_output=True, text=True, cwd=root,
        )  # fmt: skip
        if done.returncode != 0:
            first = next((x for x in done.stderr.splitlines() if "error" in x), done.stderr)
            yield f"csrc/{name}", 1, f"does not compile alone: {first}"


FILE_RULES = (check_includes, check_sizes, check_banned, check_contracts, check_text, check_python)
TREE_RULES = (check_names, check_headers_alone)


def sources(root):
    """The text files of the tree: what git knows or would add; without git, all but hidden ones."""
    done = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=root, capture_output=True, text=True,
    )  # fmt: skip
    if done.returncode == 0 and (root / ".git").exists():
        paths = [root / name for name in done.stdout.split("\0") if name]
    else:
        paths = [p for p in root.rglob("*") if not any(x.startswith(".") for x in p.parts[-2:])]
    for path in sorted(set(paths)):
        data = path.is_file() and "corpus" not in path.parts and "_demo" not in path.parts
        if data and path.suffix in TEXT and path.name != "LICENSE":
            yield Source(root, path)


def problems(root, compile_headers=True):
    """Every breach under `root` as `file:line: rule: what`."""
    found = []
    for source in sources(root):
        for rule in FILE_RULES:
            kind = rule.__doc__.split(":")[0]
            found += [f"{source.path}:{line}: {kind}: {text}" for line, text in rule(source)]
    for rule in TREE_RULES if compile_headers else TREE_RULES[:1]:
        kind = rule.__doc__.split(":")[0]
        found += [f"{path}:{line}: {kind}: {text}" for path, line, text in rule(root)]
    return found


def main():
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parents[2]
    found = problems(root)
    print("\n".join([*found, f"check_source: {len(found)} breaches"]))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
