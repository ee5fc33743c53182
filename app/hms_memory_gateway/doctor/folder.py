"""The data folder: whether stores can be kept in it, safely, and for their owner alone."""

import fcntl
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path

from hms_memory_gateway.folders import Folders, FolderUnusable
from hms_memory_gateway.ownership import check_user

from .findings import Case, Finding, failure, ok, warning

MOUNTS = Path("/proc/mounts")

_SAMPLE = 100  # stores, and files of each, that are looked at
_STORE_BYTES = 64 << 20  # of a new store, where files are not sparse
_LOW_BYTES = 1 << 30
_FEW_FILES = 10_000
_FILES_OF_STORE = 20
_REMOTE = {
    *("nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "lustre"),
    *("fuse.sshfs", "fuse.glusterfs", "fuse.s3fs", "fuse.rclone"),
}
_PASSING = {
    "tmpfs": "is gone when the machine restarts",
    "ramfs": "is gone when the machine restarts",
    "overlay": "goes with its container",
}
_ELSEWHERE = "choose another folder with --data-dir or HMS_GATEWAY_DATA_DIR"


def usable(case: Case) -> Finding:
    """It is there or can be made, and is ours to write to."""
    folder = case.settings.data_dir
    for way in (folder, *folder.parents):
        if os.path.islink(way) and not os.path.exists(way):
            return failure(
                f"{way} is a link to {os.readlink(way)}, which is not there",
                f"Make that folder, or {_ELSEWHERE}.",
            )
    try:
        case.scratch  # noqa: B018 - making it is the test
    except OSError as error:
        return failure(
            f"{folder} cannot be written to ({error.strerror})",
            f"Make it a folder that uid {os.geteuid()} can write to, or {_ELSEWHERE}.",
        )
    if case.ground != folder:
        return ok(f"{folder} is not there yet, and can be made")
    try:
        check_user(folder)
        Folders(folder).check()
    except FolderUnusable as error:
        return failure(error.found, error.advice)
    return ok(f"{folder} is there, and can be written to")


def served(case: Case) -> Finding:
    """Whether a gateway runs on it; both are fine."""
    if case.has_gateway:
        return ok("one runs on this data folder; its stores are left alone")
    return ok("none runs on this data folder")


def on_disk(case: Case) -> Finding:
    """It is on a disk of this machine."""
    try:
        kind = file_system(case.ground.resolve(), MOUNTS.read_text())
    except OSError:
        return ok("this system does not say which it is")
    if kind in _REMOTE:
        return warning(
            f"{kind}: locks and syncs cannot be relied on over a network",
            f"Keep stores on a local disk: {_ELSEWHERE}.",
        )
    if kind in _PASSING:
        return warning(
            f"{kind}: what is kept there {_PASSING[kind]}",
            f"Mount a volume there, or {_ELSEWHERE}.",
        )
    return ok(kind)


def file_system(folder: Path, mounts: str) -> str:
    """The type of a folder's file system.

    Args:
        folder: without symbolic links.
        mounts: the text of /proc/mounts, where a later mount hides an earlier one.
    """
    kinds = {}
    for line in mounts.splitlines():
        _, point, kind = line.split(" ")[:3]
        # white space and backslashes of a path are written in octal
        kinds[re.sub(r"\\(\d{3})", lambda code: chr(int(code[1], 8)), point)] = kind
    ways = (str(path) for path in (folder, *folder.parents))
    return next((kinds[way] for way in ways if way in kinds), "unknown")


def space(case: Case) -> Finding:
    """There is room for stores, in bytes and in files."""
    disk = os.statvfs(case.ground)
    free, files = disk.f_bavail * disk.f_frsize, disk.f_favail
    found = f"{free / 1e9:,.2f} GB free"
    figures = {"free_bytes": free}
    advice = f"Make room, or {_ELSEWHERE}."
    if disk.f_files:  # some file systems make inodes as they need them
        found += f", and room for {files:,} files"
        figures["free_files"] = files
    if free < _STORE_BYTES or (disk.f_files and files < _FILES_OF_STORE):
        return failure(f"{found}: too little for one more store", advice, **figures)
    if free < _LOW_BYTES or (disk.f_files and files < _FEW_FILES):
        return warning(f"{found}: that is soon used up", advice, **figures)
    return ok(found, **figures)


def keeps(case: Case) -> Finding:
    """What is written can be synced and locked."""
    path = case.scratch / "file"
    try:
        with path.open("wb") as one, path.open("rb") as other:
            one.write(b"x" * 4_096)
            one.flush()
            os.fsync(one.fileno())
            fcntl.flock(one, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _can_lock(other.fileno()):
                return failure(
                    "two could lock one file at once",
                    f"Two gateways would not notice: {_ELSEWHERE}.",
                )
    except OSError as error:
        return failure(
            f"a file cannot be written, synced and locked ({error.strerror})",
            f"Look at the disk and its mount options, or {_ELSEWHERE}.",
        )
    return ok("files can be written, synced and locked")


def _can_lock(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def owned(case: Case) -> Finding:
    """What is kept belongs to the user who runs this, as the gateway will, too: a sample."""
    user, folder = os.geteuid(), case.settings.data_dir
    for path, state in _kept(folder):
        if state.st_uid != user:
            say = warning if os.access(path, os.R_OK | os.W_OK) else failure
            return say(
                f"{path} belongs to uid {state.st_uid}, and this is uid {user}",
                f"Run the gateway, and this, as uid {state.st_uid}, or give all of it to this one: "
                f"chown -R {user} {_places(folder)}",
            )
    return ok(f"all that is kept belongs to uid {user}, who asks")


def private(case: Case) -> Finding:
    """Nobody else can read what is kept: a sample, since there may be a million files."""
    folder = case.settings.data_dir
    advice = f"Close it with: chmod -R go= {_places(folder)}"
    others = stat.S_IRWXG | stat.S_IRWXO
    modes = {path: mode for path, state in _kept(folder) if (mode := state.st_mode & others)}
    for path, mode in modes.items():
        # that the folder itself can be read shows names of stores, and opens none of them
        if mode & (stat.S_IWOTH if path == folder else stat.S_IRWXO):
            return failure(f"every user of this machine can open {path}", advice)
    if modes:
        return warning(f"other users can open {next(iter(modes))}", advice)
    return ok("what is kept is open to its owner alone")


def _kept(folder: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """A sample of what is there, and the state of each; a link in it is nothing that we keep."""
    stores = folder / "stores"
    yield from _states((folder, stores), os.stat)  # each of them may be a link to where it is
    for store in islice(stores.glob("*"), _SAMPLE):
        below = () if store.is_symlink() else islice(store.rglob("*"), _SAMPLE)
        yield from _states((store, *below), os.lstat)


def _states(
    paths: Iterable[Path], look: Callable[[Path], os.stat_result]
) -> Iterator[tuple[Path, os.stat_result]]:
    for path in paths:
        with suppress(OSError):  # it was removed, or is not ours to see
            state = look(path)
            if not stat.S_ISLNK(state.st_mode):
                yield path, state


def _places(folder: Path) -> str:
    """The folder as an argument of `chown -R` and `chmod -R`, which follow no links."""
    ways = (one for one in (folder, folder / "stores") if one == folder or one.is_symlink())
    return " ".join(f"'{one.resolve()}'" for one in ways)
