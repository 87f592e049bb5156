"""Variables, CPUs and memory granted, numbers of bytes."""

import os
import subprocess
import sys

import pytest
from reelpool import env


@pytest.mark.parametrize(
    "text, want",
    [(5, 5), ("5", 5), ("2GiB", 2 << 30), ("2 gb", 2 * 10**9), ("1.5k", 1500), ("1KiB", 1024)],
)
def test_parse_bytes(text, want):
    assert env.parse_bytes(text) == want


@pytest.mark.parametrize("wrong", ["", "GiB", "-1", -1, "2 XB", "1e9", "5ib"])
def test_parse_bytes_refuses(wrong):
    with pytest.raises(ValueError):
        env.parse_bytes(wrong)
    for kind in (True, 1.5, None):
        with pytest.raises(TypeError):
            env.parse_bytes(kind)


def cgroup(tmp_path, line, files):
    proc, sys_ = tmp_path / "proc", tmp_path / "sys"
    (proc / "self").mkdir(parents=True)
    (proc / "self/cgroup").write_text(line + "\n")
    for name, text in files.items():
        (sys_ / name).parent.mkdir(parents=True, exist_ok=True)
        (sys_ / name).write_text(text + "\n")
    return {"proc": str(proc), "sys": str(sys_)}


@pytest.fixture
def many_cpus(monkeypatch):
    for name in ("SLURM_STEP_ID", "SLURM_CPUS_PER_TASK", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(env.os, "sched_getaffinity", lambda pid: set(range(16)), raising=False)


@pytest.mark.parametrize(
    "line, files, want",
    [
        ("0::/a/b", {"a/b/cpu.max": "max 100000", "a/cpu.max": "250000 100000"}, 3),
        ("0::/a", {"a/cpu.max": "max 100000"}, 16),
        ("0::/gone", {"cpu.max": "400000 100000"}, 4),
        ("0::/", {"cpu.max": "50000 100000"}, 1),
        (
            "3:cpuacct,cpu:/a",
            {"cpu/a/cpu.cfs_quota_us": "200000", "cpu/a/cpu.cfs_period_us": "50000"},
            4,
        ),
        ("1:cpu:/", {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, 16),
        ("", {}, 16),
    ],
)
def test_granted_cpus_follow_the_cgroup(tmp_path, many_cpus, monkeypatch, line, files, want):
    where = cgroup(tmp_path, line, files)
    assert env.granted_cpus(**where) == want
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert env.granted_cpus(**where) == max(1, want // 2)


def test_granted_cpus_of_a_slurm_step(tmp_path, many_cpus, monkeypatch):
    where = cgroup(tmp_path, "", {})
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", "6")
    assert env.granted_cpus(**where) == 16  # not inside a step
    monkeypatch.setenv("SLURM_STEP_ID", "0")
    assert env.granted_cpus(**where) == 6


def test_granted_memory(tmp_path):
    total = env.granted_memory(**cgroup(tmp_path / "none", "", {}))
    assert total > 64 << 20
    for line, files in (
        ("0::/a/b", {"a/b/memory.max": "max", "a/memory.max": "1000000"}),
        ("4:memory:/a", {"memory/a/memory.limit_in_bytes": "1000000"}),
    ):
        where = cgroup(tmp_path / line.replace("/", "_"), line, files)
        assert env.granted_memory(**where) == 1_000_000


def test_decoder_cache_size(monkeypatch):
    name = "LEROBOT_VIDEO_DECODER_CACHE_SIZE"
    for text, want in (("", 100), ("7", 7), ("none", None), ("Unbounded", None), ("-1", None)):
        monkeypatch.setenv(name, text)
        assert env.video_decoder_cache_size() == want
    for wrong in ("0", "-2", "x", "1.5"):
        monkeypatch.setenv(name, wrong)
        with pytest.raises(ValueError, match=name):
            env.video_decoder_cache_size()


def test_homes(monkeypatch, tmp_path, caplog):
    for name in ("HF_HOME", "HF_LEROBOT_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert env.hf_lerobot_home() == tmp_path / "huggingface/lerobot"
    monkeypatch.setenv("HF_HOME", str(tmp_path / "h"))
    assert env.hf_hub_cache() == tmp_path / "h/hub"
    monkeypatch.setattr(env, "_warned_lerobot_home", False)
    monkeypatch.setenv("LEROBOT_HOME", "/x")
    for _ in range(2):
        assert env.hf_lerobot_home() == tmp_path / "h/lerobot"
    assert len(caplog.records) == 1 and "HF_LEROBOT_HOME" in caplog.text


SAY = (
    "import logging, reelpool; l = logging.getLogger('reelpool'); l.info('some'); l.warning('more')"
)


@pytest.mark.parametrize(
    ("level", "printed"),
    [("", "more\n"), ("info", "reelpool: some\nreelpool: more\n"), ("error", "")],
)
def test_what_scripts_print_of_the_log(level, printed):
    done = subprocess.run(
        [sys.executable, "-c", SAY], capture_output=True, text=True, check=True,
        env={**os.environ, "REELPOOL_LOG": level},
    )  # fmt: skip
    assert done.stderr == printed


@pytest.mark.parametrize("words", [["-c", "import reelpool"], ["-m", "reelpool", "--version"]])
def test_a_log_level_that_is_none_stops_nothing(words):
    """A misspelled variable must not keep a package from being imported."""
    done = subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, timeout=60,
        env={**os.environ, "REELPOOL_LOG": "loud"},
    )  # fmt: skip
    assert done.returncode == 0 and "Traceback" not in done.stderr
    assert "REELPOOL_LOG='loud'" in done.stderr and "debug, info, warning or error" in done.stderr
