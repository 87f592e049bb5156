"""`verify.check` of datasets that are elsewhere: what it copies, and faults as of a local one."""

import shutil

import pytest
from demo_sets import ROOT
from hub_sets import hub_fixture  # noqa: F401
from reelpool import verify
from reelpool.errors import AuthError


def damaged(tmp_path):
    """The demo set with one byte of a picture changed and one video file missing."""
    copy = tmp_path / "damaged"
    shutil.copytree(ROOT, copy, copy_function=shutil.copyfile)
    videos = sorted(copy.glob("videos/*/*/*.mp4"))
    videos[-1].unlink()
    data = bytearray(videos[0].read_bytes())
    data[len(data) // 2] ^= 0xFF
    videos[0].write_bytes(bytes(data))
    return copy


def faults(report):
    return [(f.file, f.camera, f.episode, f.frame, f.what) for f in report.faults]


@pytest.mark.parametrize("level", ["meta", "index", "decode"])
def test_a_sound_set_of_the_hub(hub, level):
    report = verify.check("o/n", level=level)
    assert report.ok, report.text()
    assert report.episodes == 4
    asked = [e for e in hub.log if "/resolve/" in e["path"] and e["path"].endswith(".mp4")]
    assert bool(asked) == (level != "meta")


def test_a_bucket_by_its_url(hub):
    hub.add_bucket("o/b", ROOT)
    report = verify.check("hf://buckets/o/b", level="decode")
    assert report.ok, report.text()
    assert report.pictures == verify.check(ROOT, level="decode").pictures


def test_faults_are_those_of_a_local_copy(hub, tmp_path):
    copy = damaged(tmp_path)
    hub.add_bucket("o/b", copy)
    local, remote = (
        verify.check(copy, level="decode"),
        verify.check("hf://buckets/o/b", level="decode"),
    )
    assert not local.ok and faults(remote) == faults(local)


def test_no_such_set(hub):
    with pytest.raises(AuthError):  # without a token the Hub does not tell missing from private
        verify.check("hf://buckets/o/none")
