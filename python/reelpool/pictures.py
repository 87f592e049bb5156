"""Pictures without a plotting library: SVG text for charts, Pillow for PNG and contact sheets.

Every function returns a string or a Pillow image and touches no file. Sizes are pixels.
"""

from __future__ import annotations

import base64
import html
import io
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

COLOURS = ("#0b6e75", "#d1603d", "#5b5ea6", "#c39b2b", "#3f7f4f", "#a23b72", "#6b7280", "#1f4e8c")
FONT = "font-family=\"system-ui, 'DejaVu Sans', Helvetica, Arial, sans-serif\""
INK, FAINT, RULE = "#1b2430", "#5c6773", "#dfe3e8"


def number(value: float) -> str:
    """A figure for people: three digits that matter, thousands apart."""
    if not math.isfinite(value):
        return "-"
    size = abs(value)
    if size == 0:
        return "0"
    if size >= 100:
        return f"{value:,.0f}"
    if size >= 10:
        return f"{value:.1f}"
    return f"{value:.2f}" if size >= 0.1 else f"{value:.3g}"


def _tick(value: float) -> str:
    return f"{value:,.10g}"


def _text(x: float, y: float, text: str, anchor: str = "start", **style: Any) -> str:
    size, fill, weight = style.get("size", 12), style.get("fill", INK), style.get("weight", 400)
    halo = ' paint-order="stroke" stroke="#ffffff" stroke-width="4"' if style.get("halo") else ""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" '
        f'font-weight="{weight}" fill="{fill}"{halo}>{html.escape(text)}</text>'
    )


def _width(text: str, size: float = 12) -> float:
    """An upper bound of a text's width in the fonts of FONT."""
    return len(text) * size * 0.6


def _svg(width: float, height: float, parts: Sequence[str], title: str) -> str:
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" '
        f'width="{width:.0f}" height="{height:.0f}" role="img" '
        f'aria-label="{html.escape(title, quote=True)}" {FONT}>\n'
        f'<rect width="100%" height="100%" fill="#ffffff"/>\n{body}\n</svg>\n'
    )


def nice_ticks(high: float, count: int = 5) -> list[float]:
    """Round numbers from 0 to at least `high`."""
    if not high > 0:
        return [0.0, 1.0]
    raw = high / count
    base = 10.0 ** math.floor(math.log10(raw))
    step = next(base * m for m in (1, 2, 2.5, 5, 10) if base * m >= raw * 0.999)
    return [step * i for i in range(math.ceil(high / step - 1e-9) + 1)]


def _beside(
    x: Callable[[float], float], value: float, text: str, marks: Sequence[tuple[str, float]]
) -> float:
    """Where a bar's figure begins: behind its end, and behind a mark that would cross it."""
    at = x(value) + 7
    for _, mark in sorted(marks, key=lambda m: m[1]):
        if at - 4 < x(mark) < at + _width(text):
            at = x(mark) + 6
    return at


def svg_bars(
    title: str,
    unit: str,
    bars: Sequence[tuple[str, float, float, float, int]],
    marks: Sequence[tuple[str, float]] = (),
    width: int = 760,
) -> str:
    """Horizontal bars (label, value, low, high, colour) with whiskers, and dashed marks."""
    left = max(110.0, max(_width(b[0]) for b in bars) + 18)
    ticks = nice_ticks(max([b[3] for b in bars] + [m[1] for m in marks]) * 1.02)
    right, top, row = 90.0, 64.0 if marks else 46.0, 30.0
    plot = width - left - right
    bottom = top + row * len(bars)

    def x(value: float) -> float:
        return left + value / ticks[-1] * plot

    parts, values = [_text(12, 22, title, weight=600, size=15)], []
    for tick in ticks:
        parts.append(f'<path d="M{x(tick):.1f} {top}V{bottom:.1f}" stroke="{RULE}"/>')
        parts.append(_text(x(tick), bottom + 17, _tick(tick), "middle", fill=FAINT, size=11))
    parts.append(_text(left + plot / 2, bottom + 36, unit, "middle", fill=FAINT))
    for i, (label, value, low, high, colour) in enumerate(bars):
        y = top + row * i + 5
        fill = COLOURS[colour % len(COLOURS)]
        parts.append(_text(left - 10, y + 14, label, "end"))
        parts.append(
            f'<rect x="{left:.1f}" y="{y:.1f}" width="{max(1.0, x(value) - left):.1f}" height="20" '
            f'rx="2" fill="{fill}"/>'
        )
        if high > low:
            parts.append(
                f'<path d="M{x(low):.1f} {y + 10:.1f}H{x(high):.1f}M{x(low):.1f} {y + 6:.1f}v8'
                f'M{x(high):.1f} {y + 6:.1f}v8" stroke="{INK}" fill="none"/>'
            )
        values.append(
            _text(_beside(x, max(high, value), number(value), marks), y + 14, number(value),
                  weight=600, halo=True)
        )  # fmt: skip
    for label, value in marks:
        parts.append(
            f'<path d="M{x(value):.1f} {top - 8}V{bottom:.1f}" stroke="{INK}" '
            'stroke-dasharray="5 4"/>'
        )
        half = _width(label) / 2
        at = min(max(x(value), left + half - 60), width - half - 6)
        parts.append(_text(at, top - 14, label, "middle", fill=INK))
    return _svg(width, bottom + 48, parts + values, title)


def svg_lines(
    title: str,
    x_unit: str,
    y_unit: str,
    lines: Sequence[tuple[str, Sequence[tuple[float, float]]]],
    width: int = 760,
    height: int = 260,
    zero: bool = True,
) -> str:
    """Lines (name, points) over a common axis; the legend stands below the plot."""
    lines = [(name, [p for p in points if math.isfinite(p[1])]) for name, points in lines]
    lines = [(name, points) for name, points in lines if points]
    if not lines:
        return _svg(width, 60, [_text(12, 22, title, weight=600, size=15),
                                _text(12, 46, "no samples", fill=FAINT)], title)  # fmt: skip
    ys = [y for _, points in lines for _, y in points]
    low = 0.0 if zero else min(ys)
    step = nice_ticks(max(max(ys) - low, 1e-9))[1]
    low = math.floor(low / step) * step
    ticks = [low + t for t in nice_ticks(max(max(ys) - low, step))]
    x_max = max(x for _, points in lines for x, _ in points) or 1.0
    left, right, top = 78.0, 20.0, 54.0
    bottom = height - 48.0

    def at(px: float, py: float) -> str:
        x = left + px / x_max * (width - left - right)
        y = bottom - (py - low) / (ticks[-1] - low) * (bottom - top)
        return f"{x:.1f} {y:.1f}"

    parts = [_text(12, 22, title, weight=600, size=15), _text(12, 42, y_unit, fill=FAINT)]
    for tick in ticks:
        y = float(at(0, tick).split()[1])
        parts.append(f'<path d="M{left} {y:.1f}H{width - right}" stroke="{RULE}"/>')
        parts.append(_text(left - 8, y + 4, _tick(tick), "end", fill=FAINT, size=11))
    for tick in nice_ticks(x_max, 8):
        if tick <= x_max * 1.0001:
            x = float(at(tick, low).split()[0])
            parts.append(_text(x, bottom + 17, f"{tick:g}", "middle", fill=FAINT, size=11))
    parts.append(_text((left + width - right) / 2, bottom + 36, x_unit, "middle", fill=FAINT))
    for i, (_, points) in enumerate(lines):
        path = "L".join(at(*p) for p in points)
        colour = COLOURS[i % len(COLOURS)]
        dash = ' stroke-dasharray="6 3"' if i >= len(COLOURS) else ""
        parts.append(f'<path d="M{path}" fill="none" stroke="{colour}" stroke-width="1.8"{dash}/>')
        if len(points) == 1:
            cx, cy = at(*points[0]).split()
            parts.append(f'<circle cx="{cx}" cy="{cy}" r="3.5" fill="{colour}"/>')
    x, y = left, float(height)
    for i, (name, _) in enumerate(lines):
        step = 28 + _width(name)
        if x > left and x + step > width:
            x, y = left, y + 20
        colour = COLOURS[i % len(COLOURS)]
        dash = ' stroke-dasharray="6 3"' if i >= len(COLOURS) else ""
        parts.append(f'<path d="M{x:.1f} {y:.1f}h15" stroke="{colour}" stroke-width="4"{dash}/>')
        parts.append(_text(x + 20, y + 4, name))
        x += step + 10
    return _svg(width, y + 18, parts, title)


def svg_stripes(
    title: str, x_unit: str, rows: Sequence[tuple[str, Sequence[bool]]], width: int = 760
) -> str:
    """One row of cells per name; a cell that is True is filled."""
    left = max(_width(name) for name, _ in rows) + 22
    count = max(len(cells) for _, cells in rows)
    cell = (width - left - 16) / count
    top, row = 40.0, 22.0
    parts = [_text(12, 22, title, weight=600, size=15)]
    for i, (name, cells) in enumerate(rows):
        y = top + i * row
        parts.append(_text(left - 10, y + 13, name, "end"))
        for j, on in enumerate(cells):
            fill = COLOURS[1] if on else "#e7f1f1"
            parts.append(
                f'<rect x="{left + j * cell:.1f}" y="{y:.1f}" width="{max(0.5, cell - 1):.1f}" '
                f'height="{row - 5:.0f}" fill="{fill}"/>'
            )
    end = top + row * len(rows)
    for j in range(0, count, max(1, count // 12)):
        parts.append(
            _text(left + (j + 0.5) * cell, end + 12, str(j), "middle", fill=FAINT, size=11)
        )
    parts.append(_text(left + (width - left) / 2, end + 31, x_unit, "middle", fill=FAINT))
    return _svg(width, end + 44, parts, title)


def to_rgb8(picture: np.ndarray) -> np.ndarray:
    """(H, W, 3) uint8 of a (3, H, W) picture, uint8 or [0, 1], or of a (1, H, W) depth map."""
    picture = np.asarray(picture)
    if picture.ndim != 3 or picture.shape[0] not in (1, 3):
        raise ValueError(f"a picture is (3, H, W) or (1, H, W), not {picture.shape}")
    if picture.shape[0] == 1:
        low, high = float(picture.min()), float(picture.max())
        picture = np.repeat((picture - low) / max(high - low, 1e-9), 3, 0)
    if picture.dtype != np.uint8:
        picture = np.clip(np.rint(np.asarray(picture, np.float32) * 255), 0, 255).astype(np.uint8)
    return np.ascontiguousarray(picture.transpose(1, 2, 0))


def png_data_uri(picture: np.ndarray, max_width: int = 320) -> str:
    """`data:image/png;base64,...` of a picture as `to_rgb8` takes it, scaled down to max_width."""
    from PIL import Image

    image = Image.fromarray(to_rgb8(picture))
    if image.width > max_width:
        image = image.resize((max_width, round(image.height * max_width / image.width)))
    stream = io.BytesIO()
    image.save(stream, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(stream.getvalue()).decode()


def contact_sheet(
    title: str,
    columns: Sequence[str],
    rows: Sequence[tuple[str, Sequence[np.ndarray]]],
    cell_width: int = 240,
) -> Any:
    """A Pillow image: a row of pictures per sample, labels on the left and above."""
    from PIL import Image, ImageDraw, ImageFont

    def font(size: int) -> Any:
        try:
            return ImageFont.load_default(size)
        except TypeError:  # Pillow < 10.1 has one size only
            return ImageFont.load_default()

    images = [
        (
            label,
            [
                Image.fromarray(p).resize((cell_width, round(p.shape[0] * cell_width / p.shape[1])))
                for p in map(to_rgb8, pictures)
            ],
        )
        for label, pictures in rows
    ]
    small, large, gap = font(13), font(18), 8
    left = (
        16 + max(int(small.getlength(line)) for label, _ in rows for line in label.split("\n")) + 16
    )
    top = 76
    heights = [max(i.height for i in pictures) for _, pictures in images]
    wide = max(left + len(columns) * (cell_width + gap), 32 + int(large.getlength(title)))
    sheet = Image.new("RGB", (wide + 8, top + sum(heights) + gap * len(heights) + 8), "#f5f6f7")
    draw = ImageDraw.Draw(sheet)
    draw.text((16, 14), title, fill=INK, font=large)
    for c, name in enumerate(columns):
        while small.getlength(name) > cell_width and len(name) > 4:
            name = name[:2] + "…" + name[4:] if "…" not in name else name[:2] + "…" + name[5:]
        draw.text((left + c * (cell_width + gap), top - 24), name, fill=FAINT, font=small)
    y = top
    for (label, pictures), height in zip(images, heights):
        draw.multiline_text((16, y + 4), label, fill=INK, font=small, spacing=5)
        for c, image in enumerate(pictures):
            sheet.paste(image, (left + c * (cell_width + gap), y + (height - image.height) // 2))
        y += height + gap
    return sheet
