"""Conversions on file systems that are no disk: mounted buckets are refused, sshfs works."""

import copy
import os
import shutil
import socket
import subprocess
import sys
import time

import pytest
from convert_sets import options, reference_fixture, tree  # noqa: F401
from reelpool.convert import run, work
from reelpool.convert.run import convert
from reelpool.convert.work import WorkFolder
from reelpool.errors import StorageError

LINE = "36 25 0:32 / {} rw,relatime shared:1 - {} source rw\n"


@pytest.fixture(name="mounts")
def mounts_fixture(tmp_path, monkeypatch):
    """Say what is mounted: [(folder, kind)]."""

    def mount(*pairs):
        file = tmp_path / "mountinfo"
        escaped = [(str(place).replace(" ", "\\040"), kind) for place, kind in pairs]
        file.write_text("".join(LINE.format(*pair) for pair in escaped))
        monkeypatch.setattr(work, "_MOUNTS", str(file))

    return mount


@pytest.mark.parametrize(
    "kind",
    ["fuse.s3fs", "fuse.rclone", "fuse.gcsfuse", "fuse.goofys", "fuse.mountpoint-s3",
     "fuse.blobfuse2"],
)  # fmt: skip
def test_a_mounted_bucket_is_refused(tmp_path, reference, mounts, kind):
    """Nothing is written there; with the new dataset elsewhere it is a source as any."""
    source, wanted = reference
    bucket = tmp_path / "my bucket"
    bucket.mkdir()
    root = shutil.copytree(source, bucket / "arm")
    mounts(("/", "ext4"), (bucket, kind))
    before = tree(bucket)
    with pytest.raises(StorageError, match=rf"object storage \({kind}\)(.|\n)*--out-dir"):
        convert(options(root), threads=2)
    with pytest.raises(StorageError, match="object storage"):
        convert(options(root, out=tmp_path / "new", work_dir=bucket / "work"), threads=2)
    assert tree(bucket) == before
    convert(options(root, out=tmp_path / "new"), threads=2)
    assert tree(tmp_path / "new") == wanted
    assert tree(bucket) == before


@pytest.mark.parametrize("below", [("bucket", "fuse.s3fs", "ext4"), ("buck", "ext4", "fuse.s3fs")])
def test_the_innermost_mount_counts(tmp_path, mounts, below):
    """And not a folder that is called alike."""
    name, kind, other = below
    (tmp_path / "bucket/disk").mkdir(parents=True)
    mounts(("/", "ext4"), (tmp_path / name, kind), (tmp_path / "bucket/disk", other))
    refused = [tmp_path / "bucket"] if kind != "ext4" else [tmp_path / "bucket/disk/arm"]
    for folder in (tmp_path, tmp_path / "bucket", tmp_path / "bucket/disk/arm"):
        if folder in refused:
            with pytest.raises(StorageError, match="object storage"):
                work.refuse_object_storage(folder)
        else:
            work.refuse_object_storage(folder)


def test_a_mount_over_another_counts(tmp_path, mounts):
    mounts((tmp_path, "fuse.s3fs"), (tmp_path, "ext4"))
    work.refuse_object_storage(tmp_path)
    mounts((tmp_path, "ext4"), (tmp_path, "fuse.s3fs"))
    with pytest.raises(StorageError):
        work.refuse_object_storage(tmp_path)


def test_without_proc_nothing_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(work, "_MOUNTS", str(tmp_path / "absent"))
    work.refuse_object_storage(tmp_path)


def test_this_machines_mounts_can_be_read(tmp_path):
    if not os.path.exists("/proc/self/mountinfo"):
        pytest.skip("no /proc/self/mountinfo here")
    assert work._file_system(tmp_path)


@pytest.mark.parametrize("there", [True, False])
def test_a_lease_of_another_host_may_look_forbidden(tmp_path, monkeypatch, there):
    """sshfs answers EPERM where a file is there already; a folder without permission is told."""
    folder, real = WorkFolder(tmp_path / "work"), os.open
    folder.prepare()

    def forbidden(path, flags, *mode):
        if flags & os.O_EXCL:
            if there and not os.path.exists(path):
                os.close(real(path, os.O_CREAT | os.O_WRONLY, 0o644))
            raise PermissionError(1, "Operation not permitted", str(path))
        return real(path, flags, *mode)

    monkeypatch.setattr(os, "open", forbidden)
    if there:
        assert not folder.claim("a")
    else:
        with pytest.raises(StorageError, match="permissions of the folder"):
            folder.claim("a")
    folder.close()


def sftp_server():
    """The program that sshfs talks to, where sshfs can be used."""
    places = ["/usr/lib/openssh/sftp-server", "/usr/lib/ssh/sftp-server",
              "/usr/libexec/openssh/sftp-server"]  # fmt: skip
    found = [place for place in places if os.path.exists(place)]
    usable = shutil.which("sshfs") and os.access("/dev/fuse", os.R_OK | os.W_OK) and found
    return found[0] if usable else None


@pytest.fixture(name="two_hosts")
def two_hosts_fixture(tmp_path):
    """(a folder, two mounts of it by sshfs)."""
    server = sftp_server()
    if server is None:
        pytest.skip("needs sshfs, sftp-server and /dev/fuse")
    folder, listener = tmp_path / "disk", socket.create_server(("127.0.0.1", 0))
    folder.mkdir()
    listener.settimeout(20)
    mounts, processes = [tmp_path / "host1", tmp_path / "host2"], []
    how = f"directport={listener.getsockname()[1]},dcache_timeout=3"
    try:
        for mount in mounts:
            mount.mkdir()
            processes.append(
                subprocess.Popen(["sshfs", "-f", "-o", how, f"127.0.0.1:{folder}", mount])
            )
            connection = listener.accept()[0]
            processes.append(subprocess.Popen([server], stdin=connection, stdout=connection))
            connection.close()
            deadline = time.monotonic() + 20
            while not os.path.ismount(mount):
                assert time.monotonic() < deadline
                time.sleep(0.05)
        yield folder, mounts
    finally:
        listener.close()
        for mount in mounts:
            subprocess.run(["umount", "-l", mount], check=False)
        for process in processes:
            process.kill()
            process.wait()


def test_two_hosts_share_a_folder_by_sshfs(two_hosts, reference):
    """A network file system that caches names: both return when it is done."""
    source, wanted = reference
    folder, mounts = two_hosts
    shutil.copytree(source, folder / "arm")
    command = [sys.executable, "-m", "reelpool", "convert", "-q", "--orchestrate",
               "--num-workers=1", "--episodes-per-batch=1"]  # fmt: skip
    hosts = [subprocess.Popen([*command, str(mount / "arm")]) for mount in mounts]
    assert [host.wait(120) for host in hosts] == [0, 0]
    assert sorted(p.name for p in folder.iterdir()) == ["arm", "arm_old"]
    assert tree(folder / "arm") == wanted
    assert tree(folder / "arm_old") == tree(source)


def gone(*others):
    """As a worker that finds a file gone, which it read a moment ago."""
    raise FileNotFoundError(2, "No such file or directory", "arm/videos")


@pytest.mark.parametrize("met", [True, False])
def test_a_folder_that_shows_late_what_another_host_did(tmp_path, reference, monkeypatch, met):
    """Its work is taken for done once it shows; without another command at work nothing waits."""
    source, wanted = reference
    root = shutil.copytree(source, tmp_path / "arm")
    finished = shutil.copytree(source, tmp_path / "late/arm")
    convert(options(finished), threads=2)
    monkeypatch.setattr(run, "_run_once", gone)
    monkeypatch.setattr(run, "_STALE_S", 30.0)
    looked, real = [], run.Job.overtaken

    def overtaken(self):
        looked.append(1)
        if len(looked) == 5:  # of begin, and some of the wait
            root.rename(tmp_path / "arm_old")
            finished.rename(root)
        return real(self)

    def prepare(self):
        real_prepare(self)
        self.met_others = met

    real_prepare = WorkFolder.prepare
    monkeypatch.setattr(WorkFolder, "prepare", prepare)
    monkeypatch.setattr(run.Job, "overtaken", overtaken)
    if met:
        assert convert(options(root), threads=2).already
        assert len(looked) == 5 and tree(root) == wanted
    else:
        with pytest.raises(FileNotFoundError):
            convert(options(root), threads=2)
        assert len(looked) == 2


def test_processes_of_one_command_are_no_others(tmp_path):
    """Only a lease of another command tells that somebody else is at work."""
    first = WorkFolder(tmp_path / "work")
    first.prepare()
    assert first.claim("a")
    sibling = copy.copy(first)
    sibling.reopen()
    assert not sibling.claim("a") and not sibling.met_others
    second = WorkFolder(tmp_path / "work")
    assert not second.claim("a") and second.met_others
    for folder in (first, sibling, second):
        folder.close()
