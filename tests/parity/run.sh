#!/bin/sh
# Compares reelpool with LeRobot 0.6.1: makes .venv-parity if need be, installs this checkout, runs the tests.
# Arguments go to pytest.
set -eu
cd "$(dirname "$0")/../.."
sh tests/parity/setup.sh
python=$PWD/.venv-parity/bin/python
"$python" -m pip install -q --no-deps --force-reinstall .
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
HF_HUB_OFFLINE=1
HF_HOME=$scratch/hf
HF_DATASETS_CACHE=$scratch/datasets
export HF_HUB_OFFLINE HF_HOME HF_DATASETS_CACHE
"$python" -m pytest -c tests/parity/pytest.ini --rootdir tests/parity -p no:cacheprovider \
    -n 2 --dist worksteal tests/parity "$@"
if [ $# = 0 ]; then
    "$python" -m pytest -c tests/parity/pytest.ini --rootdir tests -p no:cacheprovider tests/py/test_pixels_torchcodec.py
fi
