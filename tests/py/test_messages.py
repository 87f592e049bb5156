"""What somebody reads whose dataset is broken: which dataset, which file, what to do."""

import json
import pickle
import shlex

import pytest
from demo_sets import copy_demo, open_demo
from reelpool import StreamingLeRobotDataset, errors, verify
from reelpool import __main__ as command

TABLE = "data/chunk-000/file-000.parquet"
POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"


def gone(rel):
    return lambda root: (root / rel).unlink()


def text(rel, words):
    return lambda root: (root / rel).write_text(words)


def other_info(**changes):
    def harm(root):
        path = root / "meta/info.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    return harm


HARMS = {
    "no table": (gone(TABLE), TABLE),
    "a table cut short": (text(TABLE, "PAR1"), TABLE),
    "no tasks": (gone("meta/tasks.parquet"), "meta/tasks.parquet"),
    "no episodes": (gone("meta/episodes/chunk-000/file-000.parquet"), "meta/episodes"),
    "info that is no JSON": (text("meta/info.json", "{oops"), "meta/info.json"),
    "too many episodes": (other_info(total_episodes=5), "meta/episodes"),
    "too many frames": (other_info(total_frames=185), "meta/info.json"),
    "a number as text": (other_info(fps="10"), "meta/info.json"),
}


@pytest.mark.parametrize("name", HARMS)
def test_metadata_and_tables_say_what_to_do(tmp_path, name):
    root = copy_demo(tmp_path / "a set")
    harm, file = HARMS[name]
    harm(root)
    for make in (open_demo, lambda r: StreamingLeRobotDataset("reelpool/demo", root=r)):
        with pytest.raises(errors.ReelpoolError) as caught:
            make(root)
        error, said = caught.value, str(caught.value)
        assert file in said and error.file == file and error.dataset == "reelpool/demo"
        assert f"  Run: reelpool verify {shlex.quote(str(root))}" in said
        assert len(said.splitlines()) == 2
        assert str(pickle.loads(pickle.dumps(error))) == said


@pytest.mark.parametrize("file", [TABLE, "videos/observation.images.front/chunk-000/file-000.mp4"])
def test_pointers_of_git_lfs_are_known(tmp_path, file):
    root = copy_demo(tmp_path / "cloned")
    text(file, POINTER)(root)
    with pytest.raises(errors.FormatError) as caught:
        open_demo(root)[0]
    assert file in str(caught.value)
    assert f"pointer of Git LFS. Run: cd {root} && git lfs" in str(caught.value)
    (fault,) = verify.check(root).faults
    assert fault.file == file and fault.fix.endswith("git lfs pull")


def test_the_advised_command_runs_as_it_stands(tmp_path, capsys):
    """Also where the folder's name holds a space."""
    root = copy_demo(tmp_path / "a set")
    gone("videos/observation.images.front/chunk-000/file-000.mp4")(root)
    with pytest.raises(errors.NotFoundError) as caught:
        open_demo(root)[0]
    assert caught.value.episode == 0 and "file-000.mp4" in str(caught.value)
    gone(TABLE)(root)
    with pytest.raises(errors.NotFoundError) as caught:
        open_demo(root)
    advised = str(caught.value).partition("Run: reelpool ")[2].partition(" (")[0]
    assert command.main([*shlex.split(advised), "--quiet"]) == 1
    said = capsys.readouterr().out
    assert TABLE in said and "file-000.mp4" in said
