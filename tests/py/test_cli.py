"""The command: exit statuses, streams, options; what `doctor` says of a broken installation."""

from __future__ import annotations

import errno
import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from demo_sets import copy_demo, open_demo
from reelpool import __main__ as command
from reelpool import errors
from reelpool.bench import suite_cli
from reelpool.cli import batch_pictures, console, doctor

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "net"))

from remote_things import bare, serve
from written_datasets import write_v30

DEMO = Path(command.__file__).parent / "_demo/dataset"


def run(*words: str, **keywords) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "reelpool", *words],
        capture_output=True,
        text=True,
        timeout=240,
        **keywords,
    )


@pytest.mark.parametrize(
    "word, wanted",
    [
        ("--num-workers", "--num_workers"),
        ("--out-dir=a-b", "--out_dir=a-b"),
        ("--", "--"),
        ("-q", "-q"),
        ("a-b", "a-b"),
    ],
)
def test_dash_equals_underscore(word, wanted):
    assert console.plain(word) == wanted


def test_wrong_option_is_usage():
    done = run("bench", "--no-such-option")
    assert done.returncode == 2
    assert "no_such_option" in done.stderr
    assert done.stdout == ""


def test_no_verb_is_usage():
    assert run().returncode == 2


@pytest.mark.parametrize("verb", sorted(command.VERBS))
def test_help_of_every_verb(verb):
    done = run(verb, "--help")
    assert done.returncode == 0
    for option in ("--json", "--quiet", "--verbose", "--out_dir"):
        assert option in done.stdout


def test_wrong_value_is_usage():
    done = run("bench", "--impl", "reelpool,nonsense")
    assert done.returncode == 2
    assert "lerobot" in done.stderr


@pytest.mark.parametrize("verb", ["bench", "inspect"])
def test_missing_dataset_is_unusable_without_traceback(verb, tmp_path):
    done = run(verb, str(tmp_path / "nothing"), "--out_dir", str(tmp_path))
    assert done.returncode == 3
    assert "Traceback" not in done.stderr
    assert "no such folder" in done.stderr
    assert done.stdout == ""


def test_verbose_shows_the_traceback(tmp_path):
    done = run("inspect", str(tmp_path / "nothing"), "-v")
    assert done.returncode == 3
    assert "Traceback" in done.stderr


def test_interrupt(monkeypatch):
    def stop(args):
        raise KeyboardInterrupt

    monkeypatch.setattr(doctor, "run", stop)
    assert command.main(["doctor"]) == 130


def test_an_unexpected_error_is_one_message(monkeypatch, capsys):
    def trip(args):
        raise ZeroDivisionError("by zero")

    monkeypatch.setattr(doctor, "run", trip)
    assert command.main(["doctor"]) == 3
    said = capsys.readouterr()
    assert said.out == ""
    assert "ZeroDivisionError: by zero" in said.err
    assert "-v" in said.err


def test_verify_takes_several_levels(capsys):
    assert (
        command.main(["verify", str(DEMO), "--json", "--level", "decode, meta", "--no-sums"]) == 0
    )
    found = json.loads(capsys.readouterr().out)
    assert found["level"] == "decode" and found["pictures"] == 2 * 184
    assert command.main(["verify", str(DEMO), "--level", "meta,all"]) == 2
    assert "meta,index,decode" in capsys.readouterr().err


def test_doctor_is_well():
    done = run("doctor", str(DEMO), "--json")
    document = json.loads(done.stdout)
    failed = [f for f in document["findings"] if f["status"] == "FAIL"]
    assert not failed
    assert document["ok"]
    assert done.returncode == 0
    sections = {f["section"] for f in document["findings"]}
    assert sections == set("host native decode gpu python caches hub ranks dataset".split())
    native = "\n".join(f["text"] for f in document["findings"] if f["section"] == "native")
    assert re.search(r"licence: L?GPL version .*\nCA certificates: ", native)
    decoded = [f["text"] for f in document["findings"] if f["section"] == "decode"]
    assert sum("checksums right" in text for text in decoded) == 5


def test_doctor_names_the_certificates(monkeypatch, tmp_path):
    def told():
        (line,) = [x for x in doctor.examine() if x.text.startswith("CA certificates")]
        return line

    for name in ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("CURL_CA_BUNDLE", str(tmp_path / "none.pem"))
    assert told().status == "WARN" and "none.pem is not there" in told().text
    assert "CURL_CA_BUNDLE" in told().fix
    (tmp_path / "mine.pem").touch()
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "mine.pem"))
    assert told().status == "ok" and told().text.endswith("mine.pem")


def test_doctor_reports_a_core_that_does_not_load(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "reelpool._core", None)  # import raises ImportError
    assert command.main(["doctor"]) == 1
    said = capsys.readouterr().out
    assert "FAIL  reelpool._core does not load" in said
    assert "Fix: pip install" in said


def test_doctor_finds_wrong_pixels(monkeypatch, tmp_path):
    """With one checksum altered, that codec and no other fails."""
    record = json.loads((doctor.DEMO / "frames.json").read_text())
    record["clips"]["h264"][0] = "0" * 64
    (tmp_path / "frames.json").write_text(json.dumps(record))
    (tmp_path / "clips").symlink_to(doctor.DEMO / "clips")
    monkeypatch.setattr(doctor, "DEMO", tmp_path)
    failed = [line.text for line in doctor.examine() if line.status == "FAIL"]
    assert failed == ["h264: 1 of 8 frames have wrong pixels"]


def test_doctor_finds_a_package_that_is_too_old(monkeypatch):
    monkeypatch.setitem(doctor.PACKAGES, "numpy", ("99", None))
    failed = [line for line in doctor.examine() if line.status == "FAIL"]
    assert len(failed) == 1
    assert failed[0].fix == 'pip install "numpy>=99"'


def test_inspect_writes_its_files(tmp_path):
    png = tmp_path / "sheet.png"
    done = run("inspect", str(DEMO), "--out-dir", str(tmp_path), "--png", str(png), "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["episodes"] == 4
    assert document["frames"] == 184
    front = document["cameras"]["observation.images.front"]
    assert (front["codec"], front["gop"], front["width"], front["height"]) == ("av1", 2, 320, 240)
    assert 100 < front["bytes_per_frame"] < 5000
    assert front["bytes_per_gop"] == pytest.approx(2 * front["bytes_per_frame"], abs=2)
    wrist = document["cameras"]["observation.images.wrist"]
    assert wrist["codec"] == "h264" and wrist["gop"] == 2
    assert wrist["bytes_per_gop"] == pytest.approx(
        wrist["gop"] * wrist["bytes_per_frame"], rel=0.01
    )
    page = (tmp_path / "inspect.html").read_text()
    assert "bytes/GOP" in page and f">{wrist['bytes_per_gop']}<" in page
    assert page.count("data:image/png;base64,") == 16
    assert "_is_pad" in page
    from PIL import Image

    with Image.open(png) as image:
        assert image.width > 500


def test_inspect_prints_a_line_per_camera(tmp_path, capsys):
    assert command.main(["inspect", str(DEMO), "--out-dir", str(tmp_path)]) == 0
    head, _, *lines = capsys.readouterr().out.split("\n\n")[1].splitlines()
    assert len(lines) == 2
    assert head.split()[-4:] == ["frames/GOP", "bytes/GOP", "bytes/frame", "files"]
    for line in lines:
        gop, of_gop, of_frame, files = line.split()[-4:]
        assert int(of_gop) == pytest.approx(float(gop) * int(of_frame), rel=0.05) and files == "2"


def test_inspect_names_the_episodes_there_are(tmp_path, capsys):
    assert command.main(["inspect", str(DEMO), "--episode", "4", "--out_dir", str(tmp_path)]) == 3
    assert "0..3" in capsys.readouterr().err


def test_contact_sheet_shows_the_recorded_pixels():
    """The batch behind the sheet is the dataset's: same pixels as item by item."""
    import numpy as np

    dataset, batch = batch_pictures.real_batch("demo", DEMO, 5)
    for row, index in enumerate(batch["index"]):
        item = dataset[int(index)]
        for camera in dataset.meta.camera_keys:
            assert batch[camera].dtype == np.uint8
            assert np.array_equal(np.asarray(item[camera]), batch[camera][row])


# -- datasets behind URLs --


@pytest.fixture(name="served")
def served_fixture(tmp_path, monkeypatch):
    """The demo set behind http; no request of this process may go elsewhere."""
    bare(monkeypatch.setenv, lambda name: monkeypatch.delenv(name, raising=False), tmp_path)
    with serve() as server:
        yield server


def test_inspect_of_a_url_copies_no_video(served, tmp_path, capsys):
    url = served.url("/set")
    assert command.main(["inspect", url, "--json", "--out_dir", str(tmp_path / "out")]) == 0
    document = json.loads(capsys.readouterr().out)
    videos = list(DEMO.glob("videos/**/*.mp4"))
    size = sum(path.stat().st_size for path in videos)
    assert (document["episodes"], document["frames"]) == (4, 184)
    assert document["videos"] == {"files": len(videos), "bytes": size}
    assert document["bytes_per_epoch"] == size and document["data"]["files"] == 2
    front = document["cameras"]["observation.images.front"]
    assert (front["files"], front["width"]) == (2, 320) and front["bytes"] < size
    asked = [s.headers.get("Range") for s in served.log if s.path.endswith(".mp4")]
    assert asked and set(asked) == {"bytes=0-0"}
    assert not [
        s for s in served.log if "/data/" in s.path and s.headers.get("Range") != "bytes=0-0"
    ]
    assert not (tmp_path / "out").exists()
    assert command.main(["inspect", url]) == 0
    said = capsys.readouterr().out
    assert f"at most {size:,} bytes per epoch" in said and url in said and "frames/GOP" in said


def test_inspect_of_a_url_draws_if_asked(served, tmp_path, capsys):
    png = tmp_path / "sheet.png"
    assert command.main(["inspect", served.url("/set"), "--frames", "2", "--png", str(png)]) == 0
    assert png.stat().st_size > 1000 and str(png) in capsys.readouterr().out


def test_inspect_of_a_folder_by_its_url(tmp_path, capsys):
    words = ["inspect", f"file://{DEMO}", "--frames", "1", "--json", "--out_dir", str(tmp_path)]
    assert command.main(words) == 0
    assert json.loads(capsys.readouterr().out)["files"] == [str(tmp_path / "inspect.html")]


def test_bench_wants_a_copy(served, capsys):
    assert command.main(["bench", served.url("/set"), "--quiet"]) == 3
    assert capsys.readouterr().out == "" and not served.log


def root_findings(capsys, *words):
    command.main(["doctor", *words, "--json"])
    found = json.loads(capsys.readouterr().out)["findings"]
    return [f for f in found if f["section"] in ("root", "dataset")]


def test_doctor_asks_a_url(served, capsys):
    found = root_findings(capsys, served.url("/set"))
    assert [f["status"] for f in found] == ["ok"] * len(found) and len(found) > 5
    text = "\n".join(f["text"] for f in found)
    assert "no credentials are sent" in text and "byte ranges are served" in text
    assert "one request: " in text and "first item decoded" in text


def test_doctor_says_what_is_wrong_with_a_url(served, capsys):
    served.accept_ranges = False
    (wrong,) = [f for f in root_findings(capsys, served.url("/set")) if f["status"] != "ok"]
    assert "no byte ranges" in wrong["text"]
    served.accept_ranges = True
    served.fault("s403", None)
    texts = [f["text"] + str(f["fix"]) for f in root_findings(capsys, served.url("/set"))]
    assert "AuthError" in texts[0] and "hf auth login" not in "".join(texts)
    served.calm()
    (absent, *_) = root_findings(capsys, served.url("/nothing"))
    assert absent["status"] == "FAIL" and "NotFoundError" in absent["text"]


def test_no_credential_is_shown(served, capsys, monkeypatch):
    secret = "-".join(["Canary", "of", "S3"])
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIA" + secret)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", secret)
    monkeypatch.setenv("AWS_ENDPOINT_URL", served.origin)
    command.main(["doctor", "s3://bucket/set", "--json", "-v"])
    command.main(["inspect", "s3://bucket/set"])
    said = capsys.readouterr()
    assert "bucket" in said.out and secret not in said.out + said.err


def test_inspect_of_a_revision_reads_no_other(tmp_path, monkeypatch):
    """Page and contact sheet are of the revision that was asked for."""
    import reelpool

    asked = []

    class Noted(reelpool.LeRobotDataset):
        def __init__(self, *arguments, revision=None, **options):
            asked.append(revision)
            super().__init__(*arguments, **options)

    monkeypatch.setattr(reelpool, "LeRobotDataset", Noted)
    words = ["inspect", str(DEMO), "--revision", "v9", "--frames", "1", "-q"]
    places = ["--out_dir", str(tmp_path), "--png", str(tmp_path / "sheet.png")]
    assert command.main([*words, *places]) == 0
    assert len(asked) == 3 and set(asked) == {"v9"}


@pytest.mark.parametrize(
    "words",
    [
        ["inspect", "x", "--frames", "0"],
        ["inspect", "x", "--delta", "action"],
        ["inspect", "x", "--delta", "[0]"],
        ["inspect", "x", "--delta", '{"action": 0}'],
        ["verify", "x", "--jobs", "0"],
    ],
)
def test_values_that_mean_nothing_are_usage(words, capsys):
    assert command.main(words) == 2
    assert f"argument {words[2]}: " in capsys.readouterr().err


def test_verify_of_a_url(served, tmp_path, capsys):
    url = served.url("/set")
    assert command.main(["verify", url, "--quiet", "--no_sums"]) == 0
    assert "184 frames" in capsys.readouterr().out
    assert command.main(["verify", served.url("/nothing"), "--quiet"]) == 3
    said = capsys.readouterr().err
    assert "NotFoundError" in said and "Traceback" not in said


def test_inspect_shows_times_that_no_picture_has(tmp_path, capsys):
    """What the error of a mistimed frame advises works on the dataset that raised it."""
    root = copy_demo(tmp_path / "set")
    table = root / "data/chunk-000/file-000.parquet"
    rows = pq.read_table(table)
    late = pa.array(rows.column("timestamp").to_numpy() + np.float32(0.03))
    column = rows.schema.get_field_index("timestamp")
    pq.write_table(rows.set_column(column, "timestamp", late), table)
    with pytest.raises(errors.FrameTimestampError) as caught:
        open_demo(root)[0]
    advised = str(caught.value).partition("Run: reelpool ")[2].partition(" (")[0]
    words = [*shlex.split(advised), "--out_dir", str(tmp_path), "--png", str(tmp_path / "a.png")]
    assert command.main(words) == 0
    page = (tmp_path / "inspect.html").read_text()
    assert "at most 30 ms; tolerance_s allows 0.1 ms" in page
    delta = ["--delta", '{"action": [0.05]}']
    assert command.main([*words, *delta]) == 3
    assert "no multiples of 1/10 s" in capsys.readouterr().err


def test_inspect_of_a_broken_video_advises_another_command(tmp_path, capsys):
    root = copy_demo(tmp_path / "set")
    file = root / "videos/observation.images.front/chunk-000/file-000.mp4"
    file.write_bytes(file.read_bytes()[:20000])
    assert command.main(["inspect", str(root), "--out_dir", str(tmp_path)]) == 3
    said = capsys.readouterr().err
    assert "file-000.mp4" in said and f"Run: reelpool verify {root}" in said


def empty_set(root):
    """A dataset that was made, and nothing was recorded."""
    none = {"total_episodes": 0, "total_frames": 0, "total_tasks": 0}
    write_v30(root, (1,), info=none)
    shutil.rmtree(root / "data")
    shutil.rmtree(root / "meta/episodes")
    return root


def test_doctor_gives_the_errors_own_advice(tmp_path, capsys):
    root = copy_demo(tmp_path / "set")
    file = root / "videos/observation.images.front/chunk-000/file-000.mp4"
    file.write_bytes(file.read_bytes()[:20000])
    (found,) = [f for f in root_findings(capsys, str(root)) if f["status"] != "ok"]
    assert "\n" not in found["text"] and found["text"].startswith("FormatError: truncated")
    assert found["fix"].startswith(f"Run: reelpool verify {root} --episode 0")
    (found,) = root_findings(capsys, str(tmp_path / "nothing"))
    assert found["text"] == f"{tmp_path}/nothing: no such folder, and not a repo id (owner/name)"
    assert found["fix"] is None


def test_a_dataset_without_episodes(tmp_path, capsys):
    root = empty_set(tmp_path / "set")
    found = root_findings(capsys, str(root))[-1]
    assert found["status"] == "WARN" and "no episode" in found["text"]
    assert command.main(["inspect", str(root), "--out_dir", str(tmp_path)]) == 3
    assert "set has no episode" in capsys.readouterr().err


@pytest.mark.parametrize("harm", ["info", "fields", "episodes", "video"])
def test_bench_of_a_broken_dataset_says_what_to_do(tmp_path, capsys, harm):
    root = copy_demo(tmp_path / "set")
    if harm == "info":
        (root / "meta/info.json").write_text("{oops")
    elif harm == "fields":
        (root / "meta/info.json").write_text("{}")
    elif harm == "episodes":
        (root / "meta/episodes/chunk-000/file-000.parquet").write_bytes(b"PAR1")
    else:
        (root / "videos/observation.images.front/chunk-000/file-000.mp4").unlink()
    assert command.main(["bench", str(root), "--out_dir", str(tmp_path / "out")]) == 3
    said = capsys.readouterr().err
    assert f"Run: reelpool verify {root}" in said and "unexpected" not in said


def test_verify_sees_before_its_work_where_it_cannot_write(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    words = ["verify", str(DEMO), "--no_sums", "--out_dir", str(tmp_path / "file/out")]
    assert command.main(words) == 3
    said = capsys.readouterr()
    assert f"--out_dir {tmp_path}/file/out cannot be written" in said.err and not said.out


@pytest.mark.parametrize(
    "words", [["--delta", '{"nokey": [0]}'], ["--revision", "a..b"], ["--episode", "9"]]
)
def test_arguments_that_the_library_refuses_are_nothing_unexpected(words, tmp_path, capsys):
    place = ["a/b"] if "--revision" in words else [str(DEMO)]
    assert command.main(["inspect", *place, *words, "--out_dir", str(tmp_path)]) == 3
    said = capsys.readouterr().err
    assert words[1].strip('{}": [0]') in said and "unexpected" not in said
    assert len(said.splitlines()) <= 2


@pytest.mark.parametrize("value", ["0", "-1", "nan", "inf", "x"])
def test_a_window_of_time_that_cannot_be_is_usage(value, capsys):
    """nan never ended."""
    assert command.main(["bench", "--duration_s", value]) == 2
    assert suite_cli.streaming(["--duration_s", value]) == 2
    assert capsys.readouterr().err.count("argument --duration_s: ") == 2


def test_an_interpreter_that_is_not_there_is_named_with_its_option(tmp_path, capsys):
    words = ["--lerobot_python", str(tmp_path / "python"), "--out_dir", str(tmp_path)]
    assert command.main(["bench", *words]) == 3
    assert f"--lerobot_python {tmp_path}/python: no such program" in capsys.readouterr().err


@pytest.mark.parametrize("verb", ["verify", "inspect", "doctor"])
def test_a_full_disk_names_the_file_and_costs_no_report(verb, tmp_path, capsys, monkeypatch):
    def full(path, *_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(console.Path, "write_text", full)
    words = [str(DEMO), "--no_sums"] if verb == "verify" else [str(DEMO)]
    assert command.main([verb, *words, "--out_dir", str(tmp_path)]) == 3
    said = capsys.readouterr()
    assert "184 frames" in said.out or verb == "inspect"  # its page is its result
    assert f"{tmp_path}/{verb}." in said.err and "No space left" in said.err
