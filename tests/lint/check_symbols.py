"""Checks the symbols of a build: the module exports PyInit__core alone, its objects only rp_ names.

python tests/lint/check_symbols.py FOLDER_OF_THE_MODULE FOLDER_OF_THE_OBJECTS
"""

import re
import subprocess
import sys
from pathlib import Path


def defined(nm_options, path):
    """Names of the global symbols that a file defines."""
    done = subprocess.run(
        ["nm", "--defined-only", "-P", *nm_options, str(path)],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    return [line.split()[0] for line in done.stdout.splitlines() if line.strip()]


def module_problems(path):
    """What a shared library exports beyond its init function."""
    names = sorted(defined(["-D", "-g"], path))
    if names == ["PyInit__core"]:
        return []
    return [f"{path.name}: exports {' '.join(names) or 'nothing'}, not PyInit__core alone"]


def object_problems(path):
    """Global names of an object that could clash with another library's."""
    wrong = [n for n in defined(["-g"], path) if not re.match(r"rp_|PyInit__core$", n)]
    # A sanitizer's or a compiler's own marks are no names of ours.
    return [f"{path.name}: global {name} is not rp_" for name in wrong if not name.startswith("__")]


def main():
    modules = sorted(Path(sys.argv[1]).rglob("_core*.so"))
    objects = sorted(Path(sys.argv[2]).rglob("*.o"))
    found = [] if modules else [f"no _core*.so below {sys.argv[1]}"]
    found += [] if objects else [f"no objects below {sys.argv[2]}"]
    for path in modules:
        found += module_problems(path)
    for path in objects:
        found += object_problems(path)
    print("\n".join([*found, f"check_symbols: {len(found)} breaches in {len(objects)} objects"]))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
