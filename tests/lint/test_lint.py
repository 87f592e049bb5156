"""Feeds each rule of the lint a violation, and once what is right."""

import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import check_source
import check_symbols

GOOD_HEADER = """\
#ifndef RP_DEMUX_DEMUX_H
#define RP_DEMUX_DEMUX_H

#include "base/error.h"

/* Parse. Owner: *out is the caller's. Thread: any. Blocks: never. Errors: RP_E_FORMAT. */
RP_CHECKED rp_status rp_thing_parse(const char *text, int **out, struct rp_error *err);

#endif
"""
ERROR_HEADER = """\
#ifndef RP_BASE_ERROR_H
#define RP_BASE_ERROR_H
#define RP_CHECKED __attribute__((warn_unused_result))
typedef int rp_status;
struct rp_error {
    int code;
};
#endif
"""
GOOD_SOURCE = """\
#include "demux/demux.h"

#include <string.h>

rp_status rp_thing_parse(const char *text, int **out, struct rp_error *err)
{
    /* strcpy(printf) in a comment and "goto out" in a string are no calls */
    (void)out;
    (void)err;
    return strlen(text) > 3 ? 1 : 0;
}
"""
GOOD_PYTHON = """\
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
"""
GOOD = {
    "csrc/base/error.h": ERROR_HEADER,
    "csrc/demux/demux.h": GOOD_HEADER,
    "csrc/demux/demux.c": GOOD_SOURCE,
    "python/reelpool/dataset.py": GOOD_PYTHON,
    "README.md": "# A title – with a dash, 640×480\n",
}


def body(lines):
    """A source whose one function has these lines."""
    text = "\n".join(f"    {line}" for line in lines)
    return f'#include "demux/demux.h"\n\nvoid rp_f(int a)\n{{\n{text}\n}}\n'


# Path, content, and part of the message that must come of it.
BAD = {
    "up": ("csrc/demux/a.c", '#include "demux/demux.h"\n#include "pool/pool.h"\n',
           "may not include"),
    "private": ("csrc/pool/a.c", '#include "pool/pool.h"\n#include "demux/mp4_priv.h"\n',
                "may not include"),
    "packet only": ("csrc/decode/a.c", '#include "decode/decode.h"\n#include "demux/mp4_box.h"\n',
                    "may not include"),
    "spelling": ("csrc/demux/a.c", '#include "demux/demux.h"\n#include "error.h"\n', "not spelled"),
    "vendor": ("csrc/demux/a.c", '#include "demux/demux.h"\n#include <libavcodec/avcodec.h>\n',
               "does not belong here"),
    "python.h": ("csrc/pool/a.c", '#include "pool/pool.h"\n#include <Python.h>\n',
                 "does not belong here"),
    "stranger": ("csrc/demux/a.c", '#include "demux/demux.h"\n#include <zlib.h>\n',
                 "not the C library's"),
    "own first": ("csrc/demux/demux.c", '#include "base/error.h"\n#include "demux/demux.h"\n',
                  '"demux/demux.h" comes first'),
    "folder first": ("csrc/demux/a.c", "#include <string.h>\n", "a header of demux/ comes first"),
    "folder": ("csrc/extra/a.c", "", "not a folder of the include law"),
    "long file": ("csrc/demux/a.c", "\n" * 601, "601 lines"),
    "long header": ("csrc/demux/a.h", "\n" * 201, "201 lines"),
    "long python": ("python/reelpool/a.py", "a = 1\n" * 501, "501 lines"),
    "long function": ("csrc/demux/a.c", body(["a++;"] * 98), "function of 100 lines"),
    "complexity": ("csrc/demux/a.c", body(["if (a) { a--; }"] * 15), "complexity 16"),
    "banned": ("csrc/demux/a.c", body(["sprintf(b, c);"]), "banned: sprintf()"),
    "print": ("csrc/demux/a.c", body(["printf(c);"]), "banned: printf()"),
    "malloc": ("csrc/demux/a.c", body(["b = malloc(a);"]), "malloc() outside"),
    "goto": ("csrc/demux/a.c", body(["goto out;"]), "goto out"),
    "thread line": ("csrc/demux/demux.h", GOOD_HEADER.replace("Thread:", ""), "no Thread: line"),
    "owner line": ("csrc/demux/demux.h", GOOD_HEADER.replace("Owner:", ""), "no Owner: line"),
    "checked": ("csrc/demux/demux.h", GOOD_HEADER.replace("RP_CHECKED ", ""),
                "RP_CHECKED is missing"),
    "white space": ("README.md", "text \n", "trailing white space"),
    "last newline": ("README.md", "text", "no newline at the end"),
    "tab": ("csrc/demux/a.c", body(["\ta++;"]), "tab"),
    "bidi": ("README.md", "a\u202eb\n", "odd Unicode"),
    "zero width": ("README.md", "a\u200bb\n", "odd Unicode"),
    "columns": ("csrc/demux/a.c", body(["/* " + "x" * 100 + " */"]), "columns"),
    "path": ("README.md", "see /" + "root/x\n", "machine path"),
    "registry": ("README.md", "https://py" + "pi.org/simple\n", "registry host"),
    "token": ("README.md", "hf_" + "a" * 34 + "\n", "token-like"),
    "todo": ("csrc/demux/a.c", body(["/* TO" + "DO: later */"]), "names an issue"),
    "torch": ("python/reelpool/dataset.py", "import torch\n", "torch may not be imported"),
    "pyarrow": ("python/reelpool/loader.py", "def f():\n    from pyarrow import x\n",
                "pyarrow may not be imported"),
    "environment": ("python/reelpool/loader.py", 'import os\na = os.environ["A"]\n', "env.py"),
    "outer": ("python/reelpool/loader.py", "from .bench import scenarios\n", "reelpool.bench"),
    "outer name": ("python/reelpool/loader.py", "from . import bench\n", "reelpool.bench"),
    "name taken": ("csrc/pool/demux.c", "", "has a demux already"),
    "topic": ("csrc/demux/mp4_utils.c", "", "a file's name is its topic"),
    "header": ("csrc/demux/alone.h", "size_t rp_size;\n", "does not compile alone"),
}  # fmt: skip


def write(root, files):
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def test_good_tree(tmp_path):
    write(tmp_path, GOOD)
    assert check_source.problems(tmp_path) == []


@pytest.mark.parametrize("case", BAD)
def test_violation(tmp_path, case):
    path, text, message = BAD[case]
    write(tmp_path, {**GOOD, path: text})
    found = check_source.problems(tmp_path, compile_headers=case == "header")
    assert [p for p in found if p.startswith(path) and message in p], found


def test_law_is_acyclic_and_base_is_everywhere():
    for folder in check_source.LAW:
        closure = check_source.link_closure(folder)
        assert closure[0] == folder
        assert "base" in closure
        assert not any(folder in check_source.link_closure(f) for f in closure[1:])
    assert check_source.link_closure("demux") == ["demux", "base"]


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("int PyInit__core(void) { return 0; }", None),
        ("int PyInit__core(void) { return 0; } int rp_x(void) { return 0; }", "exports"),
        ("int rp_x(void) { return 0; }", "exports"),
        ("", "exports nothing"),
    ],
)
def test_exports(tmp_path, source, problem):
    module = tmp_path / "_core.so"
    subprocess.run(
        ["cc", "-shared", "-fPIC", "-xc", "-", "-o", module], input=source, text=True, check=True
    )
    found = check_symbols.module_problems(module)
    assert (problem in found[0]) if problem else found == []


def test_object_names(tmp_path):
    made = tmp_path / "a.o"
    source = "int rp_good(void) { return 0; } int parse(void) { return 0; } static int own = 1;"
    source += "int PyInit__core(void) { return own; }"
    subprocess.run(["cc", "-c", "-xc", "-", "-o", made], input=source, text=True, check=True)
    assert check_symbols.object_problems(made) == ["a.o: global parse is not rp_"]
