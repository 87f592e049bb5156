"""Work items shared by threads, processes and hosts, through files of one folder.

An item is pending, leased (`ITEM.lease`, made exclusively, touched at a third of its life) or done
(`ITEM.done`, a JSON record that appears by rename). A lease is void when the folder's own clock
says that it was not touched for its life, or at once when its process is known to be gone. An item
worked on twice does no harm: results are equal byte for byte, and appear by rename.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import threading
import uuid
from pathlib import Path
from typing import Any

from ..errors import StorageError, make_error
from .durable import PART, publish, read_json, storing, sync, write_json

LIFE_S = 60.0
_MOUNTS = "/proc/self/mountinfo"
_OBJECT_STORAGE = re.compile(  # FUSE's names of what shows a bucket as folders
    r"fuse\.(s3fs|goofys|geesefs|gcsfuse|rclone|mount(point)?-s3|blobfuse2?|ossfs2?|cosfs|obsfs)"
)
_YOUNG_S = 5.0  # a lease without text: its maker died between two system calls


def _read(path: str) -> str:
    try:
        with open(path, encoding="ascii", errors="replace") as stream:
            return stream.read().strip()
    except OSError:
        return ""


def _started(pid: int) -> str:
    """Start time of a process in clock ticks since boot; "" if there is none, or no /proc."""
    return (_read(f"/proc/{pid}/stat").rpartition(")")[2].split() + [""] * 20)[19]


def _machine() -> list[str]:
    """What two processes must share for one to judge by pid whether the other lives."""
    try:
        namespace = os.readlink("/proc/self/ns/pid")
    except OSError:
        namespace = ""
    return [socket.gethostname(), _read("/proc/sys/kernel/random/boot_id"), namespace]


class WorkFolder:
    """The folder of one plan. Thread: any; forked processes make their own by `reopen`."""

    def __init__(self, path: Path, life_s: float = LIFE_S) -> None:
        self.path = path
        self.state = path / "state"
        self.life_s = life_s
        self._family = uuid.uuid4().hex[:12]  # processes of one command
        self.met_others = False  # another command was seen at work
        self.reopen()

    def reopen(self) -> None:
        """A new identity without leases, in a forked process."""
        self.token = uuid.uuid4().hex[:12]
        self._held: set[Path] = set()
        self._lock = threading.Lock()
        self._stop: threading.Event | None = None
        self._securing = threading.Lock()
        self._secured = False

    def prepare(self) -> None:
        """Make the folder and see that it can be shared. Raises StorageError."""
        refuse_object_storage(self.path)
        with storing(self.state):
            self.state.mkdir(parents=True, exist_ok=True)
        probe_folder(self.state, self.token)

    # -- state of an item --

    def _lease(self, item: str) -> Path:
        return self.state / f"{item}.lease"

    def _done(self, item: str) -> Path:
        return self.state / f"{item}.done"

    def done(self, item: str) -> Any:
        """The item's record, or None while it is not done."""
        try:
            return read_json(self._done(item))
        except ValueError:  # its bytes were lost with the power
            self.forget(item)
            return None

    def is_done(self, item: str) -> bool:
        return self._done(item).exists()

    def done_items(self) -> set[str]:
        """Names of all items done. Empty when the folder is gone."""
        try:
            names = os.listdir(self.state)
        except FileNotFoundError:
            return set()
        return {name[: -len(".done")] for name in names if name.endswith(".done")}

    def finish(self, item: str, record: Any) -> None:
        """Record that an item is done: its files are on disk already. A record that is lost with
        the power means the work is done again, so nothing waits for it.
        """
        write_json(self._done(item), record, named=False, synced=True)

    def forget(self, item: str) -> None:
        """Make an item pending again: what it describes has changed."""
        self._done(item).unlink(missing_ok=True)

    # -- leases --

    def claim(self, item: str) -> bool:
        """Lease a pending item. False if it is done, or leased by a process that lives."""
        lease = self._lease(item)
        if self.is_done(item):
            return False
        with storing(lease):
            if not self._create(lease):
                void = self._void(lease)
                if void is None or not self._remove(lease, void) or not self._create(lease):
                    self._meet(lease)
                    return False  # it lives, or another one was faster
        if self.is_done(item):  # done and released between the two looks
            self.release(item)
            return False
        return True

    def _meet(self, lease: Path) -> None:
        with contextlib.suppress(OSError, ValueError):  # it was just given back
            found = json.loads(lease.read_bytes()).get("family", self._family)
            self.met_others = self.met_others or found != self._family

    def holds(self, item: str) -> bool:
        """Whether a thread of this process has the lease, as far as it knows."""
        with self._lock:
            return self._lease(item) in self._held

    def _create(self, lease: Path) -> bool:
        try:
            handle = os.open(lease, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
        except FileExistsError:
            return False
        except PermissionError:
            if os.path.lexists(lease):  # what sshfs says of a file that another host has made
                return False
            raise
        try:
            pid = os.getpid()
            owner = {"machine": _machine(), "pid": pid, "started": _started(pid)}
            owner |= {"token": self.token, "family": self._family}
            os.write(handle, json.dumps(owner).encode())
        except OSError:  # a full disk: without its text it would be in the way for a while
            lease.unlink(missing_ok=True)
            raise
        finally:
            os.close(handle)
        with self._lock:
            self._held.add(lease)
            if self._stop is None:
                self._stop = threading.Event()
                threading.Thread(target=self._renew, args=(self._stop,), daemon=True).start()
        return True

    def release(self, item: str) -> None:
        """Give a lease back."""
        lease = self._lease(item)
        with self._lock:
            self._held.discard(lease)
        with contextlib.suppress(OSError):
            owner = json.loads(lease.read_bytes() or b"{}")
            if owner.get("token") == self.token:  # not one that was taken over meanwhile
                lease.unlink()

    def close(self) -> None:
        """Stop renewing. Leases still held run out."""
        with self._lock:
            self._held.clear()
            if self._stop is not None:
                self._stop.set()
                self._stop = None

    def _renew(self, stop: threading.Event) -> None:
        while not stop.wait(self.life_s / 3):
            with self._lock:
                held = list(self._held)
            for lease in held:
                try:
                    os.utime(lease)  # without a time: the file server's clock
                except OSError:  # taken over, or the folder is away: another one may work on it
                    with self._lock:
                        self._held.discard(lease)

    def _now(self) -> float:
        """The clock that leases are stamped by: the folder's, not this host's."""
        probe = self.state / f"clock-{self.token}-{threading.get_ident()}"
        probe.write_bytes(b"")
        try:
            os.utime(probe)
            return probe.stat().st_mtime
        finally:
            probe.unlink(missing_ok=True)

    def _void(self, lease: Path) -> bytes | None:
        """The text of a lease that counts no longer; None for one that does."""
        try:
            touched = lease.stat().st_mtime
            text = lease.read_bytes()
        except FileNotFoundError:
            return b""
        life = self.life_s
        try:
            owner = json.loads(text)
        except ValueError:
            owner, life = {}, min(life, _YOUNG_S)
        pid, started = owner.get("pid"), owner.get("started")
        if started and owner.get("machine") == _machine() and _started(pid) != started:
            return text
        return text if self._now() - touched > life else None

    def _remove(self, lease: Path, text: bytes) -> bool:
        """Take a void lease away, but not one that another process has put in its place."""
        aside = lease.with_name(f"{lease.name}.{self.token}-{threading.get_ident()}{PART}")
        try:
            os.rename(lease, aside)
        except FileNotFoundError:
            return True
        same = aside.read_bytes() == text
        if same:
            aside.unlink(missing_ok=True)
        else:
            os.rename(aside, lease)
        return same

    # -- files that every participant makes alike --

    def settle(self, name: str, document: Any) -> Any:
        """Write `name` unless it is there; the document that is there now. It may be lost with the
        power until `secure`.
        """
        path = self.path / name
        try:
            found = read_json(path)
        except ValueError:  # its bytes were lost with the power
            found = None
        if found is None:
            part = path.with_name(f"{name}.{self.token}{PART}")
            with storing(path):
                try:
                    part.write_text(json.dumps(document, separators=(",", ":")) + "\n")
                    publish(part, path, named=False, synced=True)
                except OSError:
                    part.unlink(missing_ok=True)
                    raise
            found = read_json(path)
        return found

    def secure(self, *names: str) -> None:
        """Bring settled files to the disk, once for this process: before the first record that
        makes sense with them only. Blocks until they are there. Raises StorageError.
        """
        with self._securing:
            if not self._secured:
                for path in (*(self.path / name for name in names), self.path):
                    with storing(path):
                        sync(path)
                self._secured = True


def _file_system(path: Path) -> str:
    """The kernel's name of the file system that holds a path; "" where there is no /proc."""
    real, best, kind = os.path.realpath(path), "", ""
    for line in _read(_MOUNTS).splitlines():
        place, _, rest = line.partition(" - ")
        point = re.sub(r"\\([0-7]{3})", lambda m: chr(int(m[1], 8)), place.split()[4])
        below = real == point or real.startswith(point.rstrip("/") + "/")
        if below and len(point) >= len(best):  # the last one lies above others of the same place
            best, kind = point, rest.split()[0]
    return kind


def refuse_object_storage(folder: Path) -> None:
    """Refuse a mounted bucket: renaming a folder copies each file of it, and a file that one host
    makes exclusively another host makes, too. No probe on one host shows that. Raises StorageError.
    """
    kind = _file_system(folder)
    if _OBJECT_STORAGE.fullmatch(kind):
        text = f"{folder} is object storage ({kind}): folders cannot be exchanged there at once"
        advice = "Convert on a disk (--out-dir, --work-dir), then copy the new dataset"
        raise make_error(StorageError, f"{text}\n  {advice}", file=str(folder))


def probe_folder(folder: Path, token: str) -> None:
    """Refuse a folder that cannot keep promises: exclusive creation, atomic rename, a clock.

    Mounts of object storage may silently let two processes create one file, or copy on rename.
    Raises StorageError.
    """
    one, two = folder / f"probe-{token}-1", folder / f"probe-{token}-2"
    flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY
    try:
        with storing(folder):
            os.close(os.open(one, flags, 0o644))
            try:
                os.close(os.open(one, flags, 0o644))
            except FileExistsError:
                pass
            else:
                raise _refuse(folder, "it creates a file that exists already (no O_EXCL)")
            one.write_bytes(b"1")
            two.write_bytes(b"2")
            number = one.stat().st_ino
            os.replace(one, two)
            found = two.stat()
            if one.exists() or two.read_bytes() != b"1" or found.st_ino != number:
                raise _refuse(folder, "its rename copies instead of moving")
            os.utime(two, (0, 0))
            os.utime(two)
            if two.stat().st_mtime <= 0:
                raise _refuse(folder, "it keeps no times of files")
    finally:
        for path in (one, two):
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)


def _refuse(folder: Path, why: str) -> StorageError:
    text = f"{folder} cannot hold work that is shared: {why}\n  Choose another --work-dir"
    return make_error(StorageError, text, file=str(folder))
