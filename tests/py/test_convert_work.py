"""Shared work: leases, the folder's clock, folders that cannot be shared, workers that stall."""

import errno
import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import threading
import time

import pytest
from convert_sets import options, reference_fixture, tree  # noqa: F401
from reelpool import env
from reelpool.convert import durable, head_start, job, metadata, run, work
from reelpool.convert.job import Job
from reelpool.convert.run import convert
from reelpool.convert.source import Source
from reelpool.convert.work import WorkFolder
from reelpool.errors import StateError, StorageError


@pytest.fixture
def folder(tmp_path):
    made = WorkFolder(tmp_path / "work")
    made.prepare()
    yield made
    made.close()


def other(folder, **changes):
    return WorkFolder(folder.path, **{"life_s": folder.life_s} | changes)


def lease(folder, item, **owner):
    """A lease as another process leaves it."""
    path = folder.state / f"{item}.lease"
    path.write_text(json.dumps({"machine": ["elsewhere", "", ""], "pid": 1, "token": "x"} | owner))
    return path


def age(path, seconds):
    """Let a file look as if it was touched that long ago."""
    then = time.time() - seconds
    os.utime(path, (then, then))


def test_one_of_many_gets_a_lease(folder):
    folders = [other(folder) for _ in range(8)]
    for item in map(str, range(20)):
        barrier, won = threading.Barrier(8), []

        def claim(who, item=item, barrier=barrier, won=won):
            barrier.wait()
            if who.claim(item):
                won.append(who)

        threads = [threading.Thread(target=claim, args=(f,)) for f in folders]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(won) == 1
    for made in folders:
        made.close()


def test_states_of_an_item(folder):
    assert folder.done("a") is None and not folder.is_done("a")
    assert folder.claim("a")
    assert not other(folder).claim("a")
    folder.finish("a", {"size": 3})
    folder.release("a")
    assert folder.done("a") == {"size": 3}
    assert folder.done_items() == {"a"}
    assert not folder.claim("a")
    folder.forget("a")
    assert folder.claim("a")
    assert sorted(os.listdir(folder.state)) == ["a.lease"]


def test_a_lease_ends_with_its_life(folder):
    path = lease(folder, "a")
    assert not folder.claim("a")
    age(path, folder.life_s - 5)
    assert not folder.claim("a")
    age(path, folder.life_s + 5)
    assert folder.claim("a")


def test_the_folders_clock_counts_not_the_hosts(folder, monkeypatch):
    """A host whose clock is a day off takes no lease that lives, and keeps none that is void."""
    for skew in (86400, -86400):
        real = time.time
        monkeypatch.setattr(time, "time", lambda real=real, skew=skew: real() + skew)
        path = lease(folder, f"live{skew}")
        assert not folder.claim(f"live{skew}")
        monkeypatch.undo()
        path = lease(folder, f"void{skew}")
        age(path, folder.life_s + 5)
        monkeypatch.setattr(time, "time", lambda real=real, skew=skew: real() + skew)
        assert folder.claim(f"void{skew}")
        monkeypatch.undo()


def test_a_dead_process_of_this_machine_holds_nothing(folder):
    done = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"],
                          capture_output=True, text=True, check=True)  # fmt: skip
    lease(folder, "a", machine=work._machine(), pid=int(done.stdout), started="1")
    assert folder.claim("a")
    # The same number elsewhere (a container, another host, an earlier boot) says nothing.
    for field in range(3):
        machine = work._machine()
        machine[field] = "other"
        lease(folder, f"b{field}", machine=machine, pid=int(done.stdout), started="1")
        assert not folder.claim(f"b{field}")


def test_a_lease_without_text_is_soon_void(folder):
    path = folder.state / "a.lease"
    path.touch()
    assert not folder.claim("a")
    age(path, 6)
    assert folder.claim("a")


def test_a_lease_that_was_just_renamed_in_is_put_back(folder):
    """Two judge one void lease; the second finds the first one's new lease in its place."""
    path = lease(folder, "a")
    age(path, folder.life_s + 5)
    text = folder._void(path)
    second = other(folder)
    assert second.claim("a")
    mine = path.read_bytes()
    assert not folder._remove(path, text)
    assert path.read_bytes() == mine != text
    assert os.listdir(folder.state) == ["a.lease"]
    second.close()


def test_leases_are_renewed(tmp_path):
    folder = WorkFolder(tmp_path / "work", life_s=0.3)
    folder.prepare()
    assert folder.claim("a")
    path = folder.state / "a.lease"
    age(path, 3600)
    deadline = time.monotonic() + 20
    while time.time() - path.stat().st_mtime > 60 and time.monotonic() < deadline:
        time.sleep(0.02)
    assert time.time() - path.stat().st_mtime < 60
    folder.close()


def test_a_lease_taken_over_is_not_given_back(folder):
    assert folder.claim("a")
    path = folder.state / "a.lease"
    path.unlink()
    second = other(folder)
    assert second.claim("a")
    folder.release("a")
    assert path.exists()
    second.release("a")
    assert not path.exists()
    second.close()


@pytest.mark.parametrize("fault", ["create", "rename", "times"])
def test_folders_that_keep_no_promises_are_refused(tmp_path, monkeypatch, fault):
    """What mounts of object storage do."""
    real_open = os.open
    if fault == "create":
        monkeypatch.setattr(os, "open", lambda p, flags, *m: real_open(p, flags & ~os.O_EXCL, *m))
    elif fault == "rename":
        monkeypatch.setattr(os, "replace", lambda a, b: (shutil.copyfile(a, b), os.unlink(a)))
    else:
        real = os.utime
        monkeypatch.setattr(os, "utime", lambda p, times=(0, 0): real(p, times))
    folder = WorkFolder(tmp_path / "work")
    with pytest.raises(StorageError, match=r"cannot hold work that is shared(.|\n)*--work-dir"):
        folder.prepare()
    monkeypatch.undo()
    folder.prepare()
    assert not list(folder.state.iterdir())


def test_files_settle_once(folder):
    assert folder.settle("plan.json", {"a": 1}) == {"a": 1}
    assert other(folder).settle("plan.json", {"a": 2}) == {"a": 1}


# -- whole conversions --


def stall_in_second_file(chosen, count):
    """Convert, but stop the whole process while it makes its second file."""
    real = Job.fill

    def fill(self, output, part, *inputs):
        spans = real(self, output, part, *inputs)
        count.value += 1
        if count.value == 2:
            os.kill(os.getpid(), signal.SIGSTOP)
        return spans

    Job.fill = fill
    convert(chosen, threads=1)


@pytest.mark.parametrize("ending", ["wakes", "dies"])
def test_a_stalled_worker_is_overtaken(tmp_path, reference, ending):
    """Another process takes its lease; what it does after waking harms nothing."""
    source, wanted = reference
    root = shutil.copytree(source, tmp_path / "arm")
    chosen = options(root, lease_s=0.5)
    context = multiprocessing.get_context("fork")
    count = context.Value("i", 0)
    process = context.Process(target=stall_in_second_file, args=(chosen, count))
    process.start()
    try:
        _, status = os.waitpid(process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        assert count.value == 2
        convert(chosen, threads=2)
        assert tree(root) == wanted
        os.kill(process.pid, signal.SIGKILL if ending == "dies" else signal.SIGCONT)
        process.join(60)
        if ending == "wakes":
            assert process.exitcode == 0
    finally:
        process.kill()
        process.join()
    assert tree(root) == wanted
    assert sorted(p.name for p in tmp_path.iterdir()) == ["arm", "arm_old"]


def stall_before(module, name, ends):
    """Stop the whole process before the first call of a function of a module with such a path."""
    real = getattr(module, name)

    def late(*args, **known):
        if any(str(arg).endswith(ends) for arg in args):
            setattr(module, name, real)
            os.kill(os.getpid(), signal.SIGSTOP)
        return real(*args, **known)

    setattr(module, name, late)


def convert_stalled(chosen, *where):
    stall_before(*where)
    convert(chosen, threads=2 if where[0] is head_start else 1)


@pytest.mark.parametrize(
    "where",
    [
        (metadata, "write_json", "info.json"),
        (metadata, "make_below", "v30/meta"),
        (metadata, "make_below", "episodes/chunk-000"),
        (job, "make_below", "chunk-000"),
        (head_start, "make_below", "chunk-000"),
        (head_start, "make_built", "arm_v30"),
    ],
    ids=["info", "tasks", "episodes", "file", "early file", "early folder"],
)
def test_a_folder_that_others_put_in_its_place_does_not_come_back(tmp_path, reference, where):
    """A process that stood still before it wrote there finds nothing to do."""
    source, wanted = reference
    root = shutil.copytree(source, tmp_path / "arm")
    chosen = options(root, lease_s=0.5)
    context = multiprocessing.get_context("fork")
    process = context.Process(target=convert_stalled, args=(chosen, *where))
    process.start()
    try:
        _, status = os.waitpid(process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        convert(chosen, threads=2)
        assert tree(root) == wanted
        os.kill(process.pid, signal.SIGCONT)
        process.join(60)
        assert process.exitcode == 0
    finally:
        process.kill()
        process.join()
    assert tree(root) == wanted
    assert sorted(p.name for p in tmp_path.iterdir()) == ["arm", "arm_old"]


@pytest.mark.parametrize("step", ["meta_digests", "input_sizes"])
def test_another_host_may_be_faster_at_any_step(tmp_path, reference, monkeypatch, step):
    """It puts the dataset in place while this process reads the old one: all is well."""
    source, wanted = reference
    root = shutil.copytree(source, tmp_path / "arm")
    real = getattr(Source, step)

    def slow(self, *arguments):
        monkeypatch.undo()
        other = multiprocessing.get_context("fork").Process(target=convert, args=(options(root),))
        other.start()
        other.join(60)
        assert other.exitcode == 0
        return real(self, *arguments)

    monkeypatch.setattr(Source, step, slow)
    result = convert(options(root, lease_s=0.5))
    assert result.already and result.old == tmp_path / "arm_old"
    assert tree(root) == wanted
    assert sorted(p.name for p in tmp_path.iterdir()) == ["arm", "arm_old"]


def test_several_commands_share_one_conversion(tmp_path, reference):
    """As on several hosts: each ends well, one result."""
    source, wanted = reference
    root = shutil.copytree(source, tmp_path / "arm")
    words = [sys.executable, "-m", "reelpool", "convert", root, "--episodes-per-batch", "1"]
    running = [subprocess.Popen(words, stdout=-1, stderr=-1, text=True) for _ in range(3)]
    for process in running:
        out, err = process.communicate(timeout=120)
        assert process.returncode == 0, err
        assert f"{root} is v3.0" in out
    assert tree(root) == wanted
    assert sorted(p.name for p in tmp_path.iterdir()) == ["arm", "arm_old"]


def test_a_part_that_another_worker_took_away(tmp_path, reference, monkeypatch):
    """Its lease ran out unnoticed: the item is done again, by whoever comes first."""
    source, wanted = reference
    root = shutil.copytree(source, tmp_path / "arm")
    real, count = Job.fill, [0]

    def fill(self, output, part, *inputs):
        spans = real(self, output, part, *inputs)
        count[0] += 1
        if count[0] in (1, 4):
            part.unlink()
        return spans

    monkeypatch.setattr(Job, "fill", fill)
    convert(options(root))
    assert count[0] == 12
    assert tree(root) == wanted


# -- storage that fails --


def full_disk(monkeypatch, number, code=errno.ENOSPC):
    """Let the `number`th sync of a file or folder fail; returns how many there were."""
    real, count = os.fsync, [0]

    def fsync(handle):
        count[0] += 1
        if count[0] == number:
            raise OSError(code, os.strerror(code))
        real(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    return count


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_storage_may_fail_at_each_write(tmp_path, reference, monkeypatch, code):
    """A typed error, the source untouched, finished files kept, the same result in the end."""
    source, wanted = reference
    before = tree(source)
    count = full_disk(monkeypatch, 0)
    convert(options(shutil.copytree(source, tmp_path / "count")))
    total = count[0]
    monkeypatch.undo()
    assert total > 30
    videos = sum(rel.startswith("videos/") for rel in wanted)  # a file of check sums each
    for number in range(1, total, 5 if code == errno.ENOSPC else 11):
        root = shutil.copytree(source, tmp_path / f"arm{number}")
        count = full_disk(monkeypatch, number, code)
        try:
            result = convert(options(root))
        except StorageError as error:
            assert error.status == code
            assert number < total - videos
        else:  # the new dataset was in its place: the journal was gone, or only sums were left
            assert number >= total - videos
            noted = [note for note in result.notes if "check sums are not kept" in note]
            assert noted or number == total - videos
        monkeypatch.undo()
        if not root.with_name(f"{root.name}.swap.json").exists():
            found = tree(root)
            assert found in (before, wanted)
        convert(options(root))
        assert tree(root) == wanted
        assert tree(root.with_name(f"{root.name}_old")) == before


def test_free_space_is_checked_first(tmp_path, reference, monkeypatch):
    source, _ = reference
    root = shutil.copytree(source, tmp_path / "arm")
    real = os.statvfs(tmp_path)
    less = os.statvfs_result((*real[:4], 100, *real[5:10]))
    monkeypatch.setattr(os, "statvfs", lambda path: less)
    with pytest.raises(StorageError, match=r"0\.07 GB are needed, 0\.00 GB free"):
        convert(options(root))
    assert not list(root.with_name("arm_v30").rglob("*.mp4"))
    assert tree(root) == tree(source)


def test_no_permission(tmp_path, reference):
    """Neither beside the dataset nor in the work folder can anything be made."""
    if os.geteuid() == 0:
        pytest.skip("root may write everywhere")
    source, _ = reference
    home = tmp_path / "home"
    root = shutil.copytree(source, home / "arm")
    home.chmod(0o555)
    with pytest.raises(StorageError, match="permissions"):
        convert(options(root))
    home.chmod(0o755)


def test_a_read_only_file_system_is_named(tmp_path, reference, monkeypatch):
    source, _ = reference
    root = shutil.copytree(source, tmp_path / "arm")

    def mkdir(*arguments, **keywords):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(os, "mkdir", mkdir)
    with pytest.raises(StorageError, match=r"_work/arm/state: Read-only(.|\n)*read-only"):
        convert(options(root))


def test_a_killed_worker_process_is_an_error(tmp_path, reference, monkeypatch):
    source, _ = reference
    root = shutil.copytree(source, tmp_path / "arm")

    def fill(self, output, part, *inputs):
        os._exit(9)

    monkeypatch.setattr(Job, "fill", fill)
    with pytest.raises(StateError, match=r"ended with status 9(.|\n)*same command again"):
        convert(options(root), processes=2)
    monkeypatch.undo()
    assert convert(options(root), processes=2).files == 10


@pytest.mark.parametrize("cpus, wanted, most", [(2, 6, 2), (3, 2, 2), (64, 64, 10)])
def test_no_more_processes_than_cpus_or_items(tmp_path, reference, monkeypatch, cpus, wanted, most):
    """And the same bytes. The 10 files are the phase with the most items; scans are 6 at most."""
    source, files = reference
    root = shutil.copytree(source, tmp_path / "arm")
    monkeypatch.setattr(env, "granted_cpus", lambda: cpus)
    begun, real = [], run._Processes.__init__

    def count(self, job, items, step, count, threads):
        begun.append(count)
        real(self, job, items, step, count, threads)
        assert len(self._workers) == count

    monkeypatch.setattr(run._Processes, "__init__", count)
    result = convert(options(root, episodes_per_batch=1), processes=wanted)
    assert result.workers == max(begun) == most and min(begun) <= 6
    assert tree(root) == files


def test_records_that_a_power_cut_emptied_are_made_again(tmp_path, reference):
    """Nothing waits for their bytes to be on the disk."""
    source, wanted = reference
    root = shutil.copytree(source, tmp_path / "arm")
    job = Job(options(root))
    assert job.begin()
    for item in job.scan_steps():
        job.scan(item)
    job.settle_plan()
    for item in job.write_steps():
        job.write(item)
    job.folder.close()
    for path in sorted(job.folder.state.glob("*.done"))[::2]:
        path.write_bytes(b"")
    convert(options(root))
    assert tree(root) == wanted


def test_writes_are_whole_or_absent(tmp_path, monkeypatch):
    path = tmp_path / "a.json"
    durable.write_json(path, [1])
    full_disk(monkeypatch, 1)
    with pytest.raises(StorageError, match="Free some space"):
        durable.write_json(path, [2])
    assert durable.read_json(path) == [1]
    assert [p.name for p in tmp_path.iterdir()] == ["a.json"]
