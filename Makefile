# Every target sets up what it needs: system packages (apt, when permitted), .venv, the extension.
#   make demo [DATA=root]    benchmark and pictures on the embedded or on your own data set
#   make test [JOBS=2]       C tests, fuzz corpora, pytest in so many processes
#   make bench | lint | format | setup | clean
#   make test-c test-asan test-tsan fuzz-replay parity
#   make test-slurm          the tests marked slurm: a SLURM of two nodes on this machine (Debian, root)
#   make test-gpu bench-gpu  what needs a GPU or nvcc: with gcc, nvcc and pytest alone, no setup, no network
#   make gpu-kit             for these two on another machine: an FFmpeg with NVDEC, clips, check_nvdec, the extension; about 45 MB
#   make nightly             the tests marked soak, and other versions of FFmpeg
#   make wheel               dist/: sdist, and a wheel built from it and tried in a fresh environment
#   make fuzz TARGET=mp4_index SECONDS=60
EXTRAS ?= test
DATA   ?=
PYTHON ?= python3
ROOT   := $(if $(DATA),--root "$(abspath $(DATA))",)
VENV   := .venv/bin/python
BUILD_C := $(VENV) tests/build_c.py
PYTEST := REELPOOL_TEST_CLIPS=$(CURDIR)/build/clips $(VENV) -m pytest -q
JOBS   ?= 2
NOT_HERE := not net and not gpu and not slurm and not soak

.PHONY: help setup clips demo bench test lint format clean test-c test-asan test-tsan fuzz-replay fuzz parity test-slurm nightly test-gpu bench-gpu gpu-kit wheel
.DEFAULT_GOAL := help

help:
	@sed -n '1,/^[^#]/{s/^# \{0,1\}//p}' Makefile

setup:
	@EXTRAS="$(EXTRAS)" PYTHON="$(PYTHON)" .ci/setup

demo: setup
	$(VENV) -m reelpool bench $(ROOT) --out_dir demo_out

bench: setup
	$(VENV) -m reelpool bench $(ROOT) --scenario local --repeats 5 --out_dir bench_out

# Clips of every codec and layout; without the ffmpeg program the tests that want them skip.
build/clips/.made: tests/data/make_clips.py
	@if command -v ffmpeg >/dev/null; then \
	    $(VENV) tests/data/make_clips.py build/clips >/dev/null && touch $@; \
	else echo "no ffmpeg program: tests of generated clips will skip" >&2; fi

clips: setup
	@$(MAKE) -s build/clips/.made

test: clips
	@$(BUILD_C) c
	@$(BUILD_C) --variant asan fuzz-replay
	@$(PYTEST) -n $(JOBS) --dist worksteal -m "$(NOT_HERE)"

test-c: clips
	@$(BUILD_C)

test-asan: clips
	@$(BUILD_C) --variant asan

test-tsan: clips
	@$(BUILD_C) --variant tsan

fuzz-replay: setup
	@$(BUILD_C) --variant asan fuzz-replay

SECONDS ?= 60
fuzz: setup
	@test -n "$(TARGET)" || { echo "make fuzz TARGET=mp4_index SECONDS=60" >&2; exit 2; }
	@$(BUILD_C) --variant fuzz fuzz_$(TARGET)
	@mkdir -p build/fuzz-found/$(TARGET)
	build/c-fuzz/fuzz_$(TARGET) -max_total_time=$(SECONDS) -max_len=1048576 -timeout=1 \
	    -rss_limit_mb=512 -malloc_limit_mb=64 -artifact_prefix=build/fuzz-found/ \
	    build/fuzz-found/$(TARGET) tests/fuzz/corpus/$(TARGET)

parity: setup
	@tests/parity/run.sh

# tests/slurm/cluster.sh packages installs what it needs.
test-slurm: setup
	$(PYTEST) -m slurm tests/slurm

# A bare CUDA machine has no FFmpeg to build with and no network to get it from: these need neither.
PYTHON_HERE := $(if $(wildcard $(VENV)),$(VENV),$(PYTHON))
gpu-kit:
	@tests/gpu/build_ffmpeg.sh
	@$(MAKE) -s build/clips/.made
	@tests/gpu/make_clips.sh
	@PATH="$(CURDIR)/build/gpu-ffmpeg/bin:$$PATH" REELPOOL_CUDA=0 $(PYTHON_HERE) tests/build_c.py --variant gpu --build-only check_nvdec
	@PATH="$(CURDIR)/build/gpu-ffmpeg/bin:$$PATH" $(PYTHON_HERE) setup.py -q build_ext --build-lib build/gpu-python --build-temp build/gpu-python-objects
	@rm -rf build/c-gpu/obj && du -shc build/c-gpu build/gpu-python build/gpu-ffmpeg build/gpu-clips

test-gpu:
	$(PYTHON_HERE) -m pytest -c tests/gpu.ini -q -rs tests/gpu

bench-gpu:
	@REELPOOL_CUDA=1 $(PYTHON_HERE) tests/build_c.py --build-only gpu
	build/c-plain/check_gpu --bench
	@if [ -x build/c-gpu/check_nvdec ]; then REELPOOL_TEST_CLIPS=build/gpu-clips build/c-gpu/check_nvdec --bench; \
	else echo "no NVDEC: make gpu-kit, where there is a network, and bring build/c-gpu, gpu-ffmpeg and gpu-clips"; fi
	@$(PYTHON_HERE) tests/gpu/bench_batches.py --json build/bench-gpu.json || [ $$? -eq 3 ]

# Other libraries; what `make test` has no time for: the whole matrices, runs of minutes.
nightly: clips
	.ci/debian13
	$(PYTEST) -m "soak"

wheel: setup
	@.ci/wheel

# Every check runs; the target fails when one did.
lint:
	@EXTRAS=dev PYTHON="$(PYTHON)" .ci/setup
	@bad=0; \
	$(VENV) tests/lint/check_source.py || bad=1; \
	git ls-files -co --exclude-standard -- '*.c' '*.h' | \
	    xargs -r .venv/bin/clang-format --dry-run --Werror || bad=1; \
	.venv/bin/ruff check -q . || bad=1; \
	.venv/bin/ruff format --check --output-format concise . || bad=1; \
	$(VENV) setup.py -q build_ext --build-lib build/lint --build-temp build/lint-objects && \
	    $(VENV) tests/lint/check_symbols.py build/lint build/lint-objects || bad=1; \
	MYPYPATH=python $(VENV) -m mypy.stubtest reelpool._core || bad=1; \
	test -e python/reelpool/_core.pyi || { echo "_core.pyi is missing"; bad=1; }; \
	$(VENV) -m pytest -q tests/lint || bad=1; \
	exit $$bad

format:
	@EXTRAS=dev PYTHON="$(PYTHON)" .ci/setup
	@git ls-files -co --exclude-standard -- '*.c' '*.h' | xargs -r .venv/bin/clang-format -i
	@.venv/bin/ruff check -q --fix-only . && .venv/bin/ruff format -q .

clean:
	rm -rf build dist demo_out bench_out python/*.egg-info python/reelpool/*.so
	find . -name __pycache__ -prune -exec rm -rf {} +
