#!/bin/sh
# Makes .venv-parity in the repository's root: Python 3.12 with the LeRobot release that reelpool is compared with.
# Safe to repeat. Needs the FFmpeg shared libraries that torchcodec loads (apt: ffmpeg).
set -eu
cd "$(dirname "$0")/../.."

find_python() {
    if command -v python3.12 >/dev/null 2>&1 && python3.12 -c 'import venv' >/dev/null 2>&1; then
        echo python3.12
        return
    fi
    for exe in "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3.12*/bin/python3.12; do
        if [ -x "$exe" ]; then
            echo "$exe"
            return
        fi
    done
    echo "parity: no Python 3.12 found (LeRobot needs it): install python3.12 and python3.12-venv, or pyenv install 3.12" >&2
    exit 3
}

if [ ! -x .venv-parity/bin/python ]; then
    python=$(find_python)
    "$python" -m venv .venv-parity
fi
if ! .venv-parity/bin/python -c 'import xdist, importlib.metadata as m; assert m.version("lerobot") == "0.6.1"' 2>/dev/null; then
    .venv-parity/bin/python -m pip install -q -r tests/parity/requirements.txt
fi
if ! .venv-parity/bin/python -c 'import torchcodec.decoders' 2>/dev/null; then
    echo "parity: torchcodec finds no FFmpeg shared libraries: apt-get install ffmpeg" >&2
    exit 3
fi
