"""`reelpool inspect DATASET`: what is in a dataset, in text and in one HTML page."""

from __future__ import annotations

import argparse
import html
import importlib
import json
from pathlib import Path
from typing import Any

import numpy as np

from .. import pictures
from ..errors import ReelpoolError, name_dataset
from ..selection import delta_rows
from . import batch_pictures, console, remote, timeline

CURVES = ("observation.state", "action")
TOLERANCE_S = 1e-4  # what reading allows unless told
ANY_S = 1e9  # here the nearest picture is shown, however far off it is


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options of `inspect`."""
    console.dataset_options(parser, required=True, urls=True)
    add = parser.add_argument
    add("--episode", type=int, default=0, help="the episode that is drawn (default: 0)")
    add("--frames", type=console.count(1), default=8, help="pictures per camera (default: 8)")
    add(
        "--delta",
        type=_deltas,
        metavar="JSON",
        help='delta_timestamps of the batch, {"action": [0, 0.1]} (default: 8 steps 0.5 s apart)',
    )
    add("--png", type=Path, metavar="FILE", help="write a contact sheet of a real batch")
    add("--rerun", type=Path, metavar="FILE", help="write the episode for Rerun's viewer (.rrd)")
    add("--spawn", action="store_true", help="show the episode in Rerun's viewer")
    add("--out_dir", type=Path, default=Path("."), help="for inspect.html (default: here)")


def _deltas(text: str) -> dict[str, list[float]]:
    """A parser of delta_timestamps."""
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict) or not all(isinstance(v, list) for v in found.values()):
        raise argparse.ArgumentTypeError(
            f"{text!r}: use JSON, seconds by feature, as '{{\"action\": [0, 0.1]}}'"
        )
    return found


def run(args: argparse.Namespace) -> int:
    """Print the facts, write the page and the contact sheet."""
    import reelpool

    name, root = console.place(args.dataset, args.root, urls=True)
    if args.rerun or args.spawn:
        timeline.viewer()  # that it lacks is said before the work
    if root is None and remote.is_url(name):
        return _run_remote(args, name)
    plain = reelpool.LeRobotDataset(
        name, root=root, revision=args.revision, tolerance_s=ANY_S, return_uint8=True
    )
    _need_episode(name, args.episode, plain.meta.total_episodes)
    try:
        cameras = camera_facts(plain)
    except ReelpoolError as error:
        name_dataset(error, name, plain.root)
        raise
    document = {
        "dataset": name,
        "version": str(plain.meta.info.codebase_version),
        "episodes": plain.meta.total_episodes,
        "frames": plain.meta.total_frames,
        "fps": plain.meta.fps,
        "seconds": round(plain.meta.total_frames / plain.meta.fps, 1),
        "robot_type": plain.meta.robot_type,
        "features": {
            k: {"dtype": f["dtype"], "shape": list(f["shape"])}
            for k, f in plain.meta.features.items()
        },
        "cameras": cameras,
    }
    console.prepare(args.out_dir)
    page = args.out_dir / "inspect.html"
    console.write(page, _page(args, name, root, plain, document))
    document["files"] = [str(page)]
    if args.png:
        dataset, batch = batch_pictures.real_batch(
            name, root, args.frames, revision=args.revision, tolerance_s=ANY_S
        )
        args.png.parent.mkdir(parents=True, exist_ok=True)
        batch_pictures.sheet(name, dataset, batch).save(args.png)
        document["files"].append(str(args.png))
    _timeline(args, name, plain, document)
    console.show(args, _text(document), document)
    return console.OK


def _need_episode(name: str, episode: int, total: int) -> None:
    if total == 0:
        raise console.Unusable(f"{name} has no episode: nothing to show")
    if not 0 <= episode < total:
        raise console.Unusable(f"--episode {episode}: {name} has episodes 0..{total - 1}")


def _timeline(args: argparse.Namespace, name: str, dataset: Any, document: dict) -> None:
    """What --rerun and --spawn ask for."""
    if args.rerun:
        timeline.show(name, dataset, args.episode, args.rerun)
        document["files"].append(str(args.rerun))
    if args.spawn:
        timeline.show(name, dataset, args.episode, None)


def _run_remote(args: argparse.Namespace, name: str) -> int:
    """The facts of a dataset behind a URL: no page, since that shows an episode's pictures."""
    import reelpool

    document = remote.describe(name, remote.metadata(name, args.revision))
    if args.png:
        dataset, batch = batch_pictures.real_batch(
            name,
            None,
            args.frames,
            revision=args.revision,
            download_videos=False,
            tolerance_s=ANY_S,
        )
        args.png.parent.mkdir(parents=True, exist_ok=True)
        batch_pictures.sheet(name, dataset, batch).save(args.png)
        document["files"].append(str(args.png))
    if args.rerun or args.spawn:
        _need_episode(name, args.episode, document["episodes"])
        options = {"revision": args.revision, "download_videos": False, "tolerance_s": ANY_S}
        dataset = reelpool.LeRobotDataset(
            name, episodes=[args.episode], return_uint8=True, **options
        )
        _timeline(args, name, dataset, document)
    text = "\n".join([_text(document), "", *remote.lines(document)])
    console.show(args, text, document)
    return console.OK


def video_info(path: Path) -> dict[str, Any]:
    """Index of an MP4 file: codec, width, height, samples, keys, bytes, times (s, sorted)."""
    core = importlib.import_module("reelpool._core")
    found = core.video_info(str(path))
    found["keys"], found["bytes"] = found.pop("keys_and_bytes")
    found["times"] = np.frombuffer(found["times"], np.float64)
    return found


def camera_facts(dataset: Any) -> dict[str, dict]:
    """Per camera: codec, size, frames and bytes per GOP, bytes per frame; means over at most 8 of
    its video files.
    """
    meta, out = dataset.meta, {}
    for camera in meta.camera_keys:
        feature = meta.features[camera]
        height, width = feature["shape"][:2]
        entry: dict[str, Any] = {"width": width, "height": height, "codec": feature["dtype"]}
        if feature["dtype"] == "video":
            paths = {meta.root / meta.get_video_file_path(e, camera)
                     for e in range(meta.total_episodes)}  # fmt: skip
            facts = [video_info(p) for p in sorted(paths)[:8]]
            samples, keys, size = (sum(f[k] for f in facts) for k in ("samples", "keys", "bytes"))
            entry |= {
                "codec": facts[0]["codec"],
                "gop": round(samples / max(1, keys), 1),
                "bytes_per_gop": round(size / max(1, keys)),
                "bytes_per_frame": round(size / max(1, samples)),
                "files": len(paths),
            }
        out[camera] = entry
    return out


def _text(document: dict) -> str:
    rows = [
        [name, c["codec"], f"{c['width']}x{c['height']}",
         *[str(c.get(k, "-")) for k in ("gop", "bytes_per_gop", "bytes_per_frame", "files")]]
        for name, c in document["cameras"].items()
    ]  # fmt: skip
    lines = [
        f"{document['dataset']} ({document['version']}): {document['episodes']} episodes, "
        f"{document['frames']} frames, {document['seconds']} s at {document['fps']} fps, "
        f"robot {document['robot_type']}",
        "",
        console.columns(
            ["camera", "codec", "size", "frames/GOP", "bytes/GOP", "bytes/frame", "files"], rows, 3
        ),
        "",
        console.columns(["feature", "dtype", "shape"],
                        [[k, f["dtype"], str(tuple(f["shape"]))]
                         for k, f in document["features"].items()], 3),
    ]  # fmt: skip
    if document["files"]:
        lines += ["", "written: " + ", ".join(document["files"])]
    return "\n".join(lines)


def _page(args: Any, name: str, root: Path | None, plain: Any, document: dict) -> str:
    from ..bench import report

    meta, episode = plain.meta, args.episode
    row = meta.episodes[episode]
    first, last = int(row["dataset_from_index"]), int(row["dataset_to_index"])
    chosen = np.unique(np.linspace(first, last - 1, min(args.frames, last - first)).round())
    items = [plain[int(i)] for i in chosen]
    cells = [[camera, *[_thumb(item[camera]) for item in items]] for camera in meta.camera_keys]
    head = ["", *[f"frame {int(i['frame_index'])}, {float(i['timestamp']):.2f} s" for i in items]]
    body = [f"<h2>Episode {episode}: {html.escape(items[0]['task'])}</h2>",
            report.card(_raw_table(head, cells))]  # fmt: skip
    times, columns = _curves(plain, first, last)
    for key, values in columns.items():
        names = meta.names.get(key) or []
        if isinstance(names, dict):
            names = [n for group in names.values() for n in group]
        lines = [(str(names[j]) if j < len(names) else str(j), list(zip(times, values[:, j])))
                 for j in range(values.shape[1])]  # fmt: skip
        body.append(report.card(pictures.svg_lines(
            key, "seconds in the episode", "as recorded", lines, zero=False)))  # fmt: skip
    body += _window(args, name, root, plain, first, last)
    body += _times(plain, first, last, episode)
    facts = [[k, str(v)] for k, v in document.items() if k not in ("features", "cameras", "files")]
    body += ["<h2>Dataset</h2>", report.card(report.table(["", ""], facts, "facts"))]
    keys = ("codec", "width", "height", "gop", "bytes_per_gop", "bytes_per_frame")
    rows = [[k, *[str(c.get(f, "-")) for f in keys]]
            for k, c in document["cameras"].items()]  # fmt: skip
    head = ["camera", "codec", "width", "height", "frames/GOP", "bytes/GOP", "bytes/frame"]
    body.append(report.card(report.table(head, rows)))
    subtitle = f"{document['episodes']} episodes, {document['frames']} frames at {meta.fps} fps"
    return report.page(f"reelpool inspect: {name}", subtitle, body)


def _thumb(picture: Any) -> str:
    return f'<img alt="" class="thumb" src="{pictures.png_data_uri(picture, 220)}">'


def _raw_table(head: list[str], rows: list[list[str]]) -> str:
    top = "".join(f"<th>{html.escape(h)}</th>" for h in head)
    body = "".join("<tr>" + "".join(f"<td>{c}</td>" for c in row) + "</tr>" for row in rows)
    return f"<table class='thumbs'><tr>{top}</tr>{body}</table>"


def _curves(plain: Any, first: int, last: int) -> tuple[list[float], dict[str, np.ndarray]]:
    keys = [k for k in CURVES if k in plain.meta.features]
    rows = [plain.get_raw_item(i) for i in range(first, last)]
    times = [float(r["timestamp"]) for r in rows]
    return times, {k: np.stack([np.asarray(r[k]).reshape(-1) for r in rows]) for k in keys}


def _window(
    args: Any, name: str, root: Path | None, plain: Any, first: int, last: int
) -> list[str]:
    """is_pad of a window over the episode, from items of a dataset with deltas."""
    import reelpool

    from ..bench import report

    fps = plain.meta.fps
    deltas = args.delta
    if deltas is None:
        step = max(1, round(fps / 2))
        keys = [k for k in ("action",) if k in plain.meta.features] + plain.meta.camera_keys[:1]
        deltas = {k: [s * step / fps for s in range(-4, 4)] for k in keys}
    if not deltas:
        return []
    delta_rows(plain.meta, deltas, TOLERANCE_S, plain.meta.camera_keys)  # ANY_S takes all of them
    dataset = reelpool.LeRobotDataset(
        name,
        root=root,
        revision=args.revision,
        delta_timestamps=deltas,
        return_uint8=True,
        tolerance_s=ANY_S,
    )
    chosen = np.unique(np.linspace(first, last - 1, min(6, last - first)).round()).astype(int)
    body = ["<h2>Windows</h2><p class='faint'>Filled: outside the episode, so the edge frame is "
            "repeated and is_pad is true.</p>"]  # fmt: skip
    items = {int(i): dataset[int(i)] for i in chosen}
    for key, offsets in deltas.items():
        rows = [(f"frame {i - first}", [bool(x) for x in np.asarray(item[f"{key}_is_pad"])])
                for i, item in items.items()]  # fmt: skip
        offsets_text = ", ".join(f"{o:g}" for o in offsets[:12])
        axis = f"step of the window; offsets in seconds: {offsets_text}"
        body.append(report.card(pictures.svg_stripes(f"{key}_is_pad", axis, rows)))
    return body


def _times(plain: Any, first: int, last: int, episode: int) -> list[str]:
    """Wanted time of each frame against the stored one: what tolerance_s is held against."""
    from ..bench import report

    meta, lines = plain.meta, []
    wanted = [float(plain.get_raw_item(i)["timestamp"]) for i in range(first, last)]
    for camera in meta.video_keys:
        start = float(meta.episodes[episode][f"videos/{camera}/from_timestamp"])
        stored = video_info(meta.root / meta.get_video_file_path(episode, camera))["times"]
        near = np.abs(stored[None, :] - (np.array(wanted) + start)[:, None]).min(1)
        lines.append((camera, [(i, float(d) * 1e3) for i, d in enumerate(near)]))
    if not lines:
        return []
    worst = max(d for _, points in lines for _, d in points)
    said = (
        f"Distance of each frame's wanted time to the nearest time stored in the video: at most "
        f"{worst:.3g} ms; tolerance_s allows {TOLERANCE_S * 1e3:g} ms."
    )
    chart = pictures.svg_lines("Distance", "frame of the episode", "ms", lines, height=220)
    return ["<h2>Timestamps</h2>", f"<p class='faint'>{said}</p>", report.card(chart)]
