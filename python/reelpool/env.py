"""The process's surroundings: environment variables, CPUs and memory granted to it.

The only module, beside `distributed`, that reads os.environ. Nothing is cached: a variable counts
at the time of the call.
"""

from __future__ import annotations

import logging
import math
import os
import re
import sys
from pathlib import Path

logger = logging.getLogger("reelpool")

_TRUE = {"1", "ON", "YES", "TRUE"}
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_warned_lerobot_home = False
_warned_log_level = False


def _flag(name: str) -> bool:
    return os.environ.get(name, "").strip().upper() in _TRUE


def _integer(name: str) -> int | None:
    """The variable as an int; None where unset or empty. Raises ValueError naming the variable."""
    text = os.environ.get(name, "").strip()
    if not text:
        return None
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"{name}={text!r} is not an integer") from None


def cpu_tier() -> str | None:
    """REELPOOL_CPU: the highest kernel tier to use ("c", "avx2", ...); None = what the CPU has."""
    return os.environ.get("REELPOOL_CPU", "").strip().lower() or None


def log_level() -> int | None:
    """REELPOOL_LOG as a logging level; None where unset, and with one warning for another name."""
    global _warned_log_level
    text = os.environ.get("REELPOOL_LOG", "").strip()
    if not text:
        return None
    level = logging.getLevelName(text.upper())
    if isinstance(level, int):
        return level
    if not _warned_log_level:
        _warned_log_level = True
        logger.warning("REELPOOL_LOG=%r: use debug, info, warning or error", text)
    return None


def log_to_stderr() -> None:
    """Print reelpool's log where REELPOOL_LOG is set; else Python prints warnings, and a script
    that configures logging has it all.
    """
    level = log_level()
    if level is None:
        return
    logger = logging.getLogger("reelpool")
    if not logger.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(name)s: %(message)s"))
        logger.addHandler(handler)
        logger.propagate = False
    logger.setLevel(level)


def required_extras() -> frozenset[str]:
    """REELPOOL_REQUIRE: names whose absence fails a test instead of skipping it."""
    return frozenset(
        p.strip() for p in os.environ.get("REELPOOL_REQUIRE", "").split(",") if p.strip()
    )


def video_decoder_cache_size(default: int = 100) -> int | None:
    """LEROBOT_VIDEO_DECODER_CACHE_SIZE: open decoders; None = unbounded ("none", "unbounded" or
    -1).
    """
    text = os.environ.get("LEROBOT_VIDEO_DECODER_CACHE_SIZE", "").strip().lower()
    if not text:
        return default
    if text in ("none", "unbounded", "-1"):
        return None
    if re.fullmatch(r"\d+", text) and int(text) > 0:
        return int(text)
    raise ValueError(
        f"LEROBOT_VIDEO_DECODER_CACHE_SIZE={text!r}: "
        "use a positive integer, or none, unbounded or -1"
    )


def hf_home() -> Path:
    """HF_HOME, else huggingface below XDG_CACHE_HOME or ~/.cache."""
    value = os.environ.get("HF_HOME")
    if value:
        return Path(value).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "huggingface"


def hf_lerobot_home() -> Path:
    """HF_LEROBOT_HOME, else HF_HOME/lerobot. The old name LEROBOT_HOME gives one warning and no
    effect.
    """
    global _warned_lerobot_home
    if "LEROBOT_HOME" in os.environ and not _warned_lerobot_home:
        _warned_lerobot_home = True
        logger.warning("LEROBOT_HOME has no effect: use HF_LEROBOT_HOME instead")
    value = os.environ.get("HF_LEROBOT_HOME")
    return Path(value).expanduser() if value else hf_home() / "lerobot"


def cache_dir() -> Path:
    """REELPOOL_CACHE, else .reelpool below `hf_lerobot_home`: what reelpool writes for itself."""
    value = os.environ.get("REELPOOL_CACHE")
    return Path(value).expanduser() if value else hf_lerobot_home() / ".reelpool"


def hf_hub_cache() -> Path:
    """HF_HUB_CACHE (or its old name HUGGINGFACE_HUB_CACHE), else HF_HOME/hub."""
    value = os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE")
    return Path(value).expanduser() if value else hf_home() / "hub"


def hf_endpoint() -> str:
    """HF_ENDPOINT, else the Hub's address; without a slash at the end."""
    return (os.environ.get("HF_ENDPOINT", "").strip() or "https://huggingface.co").rstrip("/")


def hub_token() -> str | None:
    """HF_TOKEN or HUGGING_FACE_HUB_TOKEN, without line breaks; None where neither says anything."""
    text = os.environ.get("HF_TOKEN") or os.environ.get("HUGGING_FACE_HUB_TOKEN") or ""
    return text.replace("\r", "").replace("\n", "").strip() or None


def hub_token_is_made() -> bool:
    """True if huggingface_hub may get a token by asking for one: trusted publishers, Colab."""
    return "HF_OIDC_RESOURCE" in os.environ or "google.colab" in sys.modules


def hub_implicit_token_disabled() -> bool:
    """True if HF_HUB_DISABLE_IMPLICIT_TOKEN is set: a stored token is sent on request only."""
    return _flag("HF_HUB_DISABLE_IMPLICIT_TOKEN")


def hub_offline() -> bool:
    """True if HF_HUB_OFFLINE or TRANSFORMERS_OFFLINE is set."""
    return _flag("HF_HUB_OFFLINE") or _flag("TRANSFORMERS_OFFLINE")


def proxies() -> dict[str, str]:
    """HTTP_PROXY, HTTPS_PROXY, ALL_PROXY and NO_PROXY, upper or lower case, by "http", "https",
    "all", "no".
    """
    from urllib.request import getproxies_environment

    return getproxies_environment()


def ca_file() -> str | None:
    """SSL_CERT_FILE, else REQUESTS_CA_BUNDLE or CURL_CA_BUNDLE: certificates to trust."""
    names = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
    return next((value for name in names if (value := os.environ.get(name))), None)


def aws(name: str) -> str | None:
    """The variable AWS_{name}; None where unset or empty."""
    return os.environ.get(f"AWS_{name}", "").strip() or None


def progress_disabled() -> bool:
    """True if HF_HUB_DISABLE_PROGRESS_BARS is set."""
    return _flag("HF_HUB_DISABLE_PROGRESS_BARS")


def _read(path: str) -> str | None:
    try:
        with open(path, encoding="ascii", errors="replace") as stream:
            return stream.read().strip()
    except OSError:
        return None  # this kernel or container has no such file: no limit from it


def _cgroup_files(
    proc: str, sys: str, controller: str, v1_name: str, v2_name: str
) -> list[list[str]]:
    """Candidate files of the limit, one list per hierarchy, from the own group up to the root."""
    found = []
    for line in (_read(f"{proc}/self/cgroup") or "").splitlines():
        number, _, rest = line.partition(":")
        names, _, path = rest.partition(":")
        if number == "0" and not names:
            mounts, name = [sys, f"{sys}/unified"], v2_name
        elif controller in names.split(","):
            mounts, name = [f"{sys}/{names}", f"{sys}/{controller}"], v1_name
        else:
            continue
        parts = [p for p in path.split("/") if p and p != ".."]
        for mount in mounts:
            found.append(
                ["/".join([mount, *parts[:depth], name]) for depth in range(len(parts), -1, -1)]
            )
    return found


def _cpu_quota(proc: str, sys: str) -> float | None:
    """The tightest CPU quota of the own cgroup and its parents, in CPUs; None = no limit."""
    limits = []
    for files in _cgroup_files(proc, sys, "cpu", "cpu.cfs_quota_us", "cpu.max"):
        for path in files:
            text = _read(path)
            if text is None:
                continue
            if path.endswith("cpu.max"):
                quota, period = (text.split() + ["100000"])[:2]
            else:
                quota, period = text, _read(path.replace("quota", "period")) or "100000"
            if quota.isdigit() and period.isdigit() and int(quota) > 0 and int(period) > 0:
                limits.append(int(quota) / int(period))
    return min(limits) if limits else None


def granted_cpus(proc: str = "/proc", sys: str = "/sys/fs/cgroup") -> int:
    """CPUs that this process may keep busy, at least 1.

    SLURM_CPUS_PER_TASK inside a step; else the affinity mask, capped by the cgroup's quota (v1 or
    v2, rounded up) and divided by LOCAL_WORLD_SIZE.
    """
    if os.environ.get("SLURM_STEP_ID"):
        cpus = _integer("SLURM_CPUS_PER_TASK")
        if cpus:
            return max(1, cpus)
    try:
        cpus = len(os.sched_getaffinity(0))
    except AttributeError:  # not on macOS
        cpus = os.cpu_count() or 1
    quota = _cpu_quota(proc, sys)
    if quota is not None:
        cpus = min(cpus, math.ceil(quota))
    return max(1, cpus // max(1, _integer("LOCAL_WORLD_SIZE") or 1))


def granted_memory(proc: str = "/proc", sys: str = "/sys/fs/cgroup") -> int:
    """Bytes of memory that this process may use: the RAM, or the cgroup's limit where that is
    smaller.
    """
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for files in _cgroup_files(proc, sys, "memory", "memory.limit_in_bytes", "memory.max"):
        limits += [
            int(t) for t in map(_read, files) if t is not None and t.isdigit() and int(t) > 0
        ]
    return min(limits)


def parse_bytes(value: int | str) -> int:
    """A number of bytes: an int, or text such as "4096", "500 MB", "2GiB", "1.5g" (k, M, G, T; i =
    1024).

    Raises TypeError for another type, ValueError for text without meaning or a negative number.
    """
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        raise TypeError(f"bytes must be an int or text like '2GiB', not {type(value).__name__}")
    if isinstance(value, int):
        if value < 0:
            raise ValueError(f"a number of bytes cannot be negative: {value}")
        return _fitting(value)
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?\s*", value, re.IGNORECASE)
    if match is None or (match.group(3) and not match.group(2)):
        raise ValueError(
            f"{value!r} is not a number of bytes: use an int or text like '512MiB', '2GB'"
        )
    power = _UNITS[match.group(2).lower()]
    if match.group(3):
        power = 1024 ** round(math.log10(power) / 3)
    return _fitting(int(float(match.group(1)) * power))


def _fitting(count: int) -> int:
    if count >= 2**62:
        raise ValueError(f"{count} bytes are more than a machine has")
    return count
