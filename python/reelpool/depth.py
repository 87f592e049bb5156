"""Depth codes -> values: a table of 4096 entries per camera, with LeRobot's float32 steps."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .errors import FormatError, make_error

CODES = 4096
_DEFAULTS: dict[str, Any] = {"depth_min": 0.01, "depth_max": 10.0, "shift": 3.5, "use_log": True}


def depth_table(info: dict | None, unit: str, key: str = "") -> np.ndarray:
    """Value of each 12-bit code, float32 (4096,), in `unit` ("m" or "mm").

    `info` is the feature's info block; absent parameters have LeRobot's defaults. With torch the
    steps are torch's, bit for bit LeRobot's; without it NumPy's exp may differ by one millimetre in
    two codes. Raises FormatError for parameters without a logarithm.
    """
    stored = {name: (info or {}).get(f"video.{name}") for name in _DEFAULTS}
    p = {name: _DEFAULTS[name] if value is None else value for name, value in stored.items()}
    low, high, shift = (float(p[name]) for name in ("depth_min", "depth_max", "shift"))
    offset, scale = low, (high - low) / (CODES - 1)
    if p["use_log"]:
        if low + shift <= 0 or high + shift <= 0:
            what = f"features[{key!r}]: depth_min + shift must be positive, it is {low + shift}"
            raise make_error(FormatError, what, file="meta/info.json", camera=key)
        offset = math.log(low + shift)
        scale = (math.log(high + shift) - offset) / (CODES - 1)
    used_shift = shift if p["use_log"] else None
    try:
        from .torch_bridge import depth_values
    except ImportError:
        return _numpy_table(scale, offset, used_shift, low, high, unit)
    return depth_values(CODES, scale, offset, used_shift, low, high, unit == "mm")


def _numpy_table(
    scale: float, offset: float, shift: float | None, low: float, high: float, unit: str
) -> np.ndarray:
    table = np.arange(CODES, dtype=np.float32) * np.float32(scale) + np.float32(offset)
    if shift is not None:
        table = np.exp(table) - np.float32(shift)
    table = np.clip(table, np.float32(low), np.float32(high))
    if unit == "mm":
        table = np.clip(np.rint(table * np.float32(1000.0)), 0.0, 65535.0)
    return np.ascontiguousarray(table, np.float32)
