"""Who may use a data folder: one process, since a store can be open in one process alone."""

import json
import os
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from .folders import FolderUnusable

LOCK = ".gateway.lock"
ID_HEADER = "X-Gateway-Id"
_ADDRESS = ".gateway.json"


class FolderTaken(Exception):
    """Another gateway uses the data folder."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where the gateway that uses a data folder is asked.

    Attributes:
        url: as this machine reaches it.
        gateway_id: what `/healthz` has to answer: in another container, or after the gateway's
            end, it may be another one that listens there.
    """

    url: str
    gateway_id: str

    def is_answered_in(self, headers: Mapping[str, str]) -> bool:
        """Whether these are of an answer of its, and of no other's."""
        return headers.get(ID_HEADER) == self.gateway_id


@contextmanager
def owned(data_dir: Path) -> Generator[None]:
    """Be the one who uses a data folder that exists; what is made meanwhile is for its user alone.

    Raises:
        FolderTaken: somebody else is.
        FolderUnusable: it is not this user's to use.
    """
    check_user(data_dir)
    umask = os.umask(0o077)
    lock = FileLock(data_dir / LOCK)
    try:
        try:
            lock.acquire(blocking=False)
        except Timeout:
            raise FolderTaken from None
        except OSError as error:
            raise unwritable(data_dir, error.strerror) from error
        try:
            (data_dir / _ADDRESS).unlink(missing_ok=True)  # of an owner that was killed
            yield
        finally:
            (data_dir / _ADDRESS).unlink(missing_ok=True)
            lock.release()
    finally:
        os.umask(umask)


def publish(data_dir: Path, address: Address) -> None:
    """As the owner, say where we listen."""
    written = data_dir / f"{_ADDRESS}.new"
    written.write_text(json.dumps(asdict(address)))
    written.rename(data_dir / _ADDRESS)


def published(data_dir: Path) -> Address | None:
    """Where the owner of a data folder listens; None as long as it has not said so."""
    try:
        return Address(**json.loads((data_dir / _ADDRESS).read_text()))
    except FileNotFoundError:
        return None


def check_user(data_dir: Path) -> None:
    """Refuse root where another user's stores are: nothing else keeps it from making files that
    the other cannot open.

    Raises:
        FolderUnusable: it is like that.
    """
    uid = _keeper(data_dir)
    if os.geteuid() == 0 and uid != 0:
        raise FolderUnusable(
            f"The stores of the data folder {data_dir} are those of uid {uid}, and this is root",
            f"Run this as uid {uid}, who could not open what root makes there.",
        )


def unwritable(data_dir: Path, why: str | None) -> FolderUnusable:
    """What is said of a data folder that cannot be written to."""
    user, uid = os.geteuid(), _keeper(data_dir)
    return FolderUnusable(
        f"The data folder {data_dir} cannot be written to by uid {user} ({why})",
        f"Run this as uid {uid}, whose stores it holds."
        if uid != user
        else "Let that user write to it, and to all that is in it.",
    )


def _keeper(data_dir: Path) -> int:
    """The uid of the user whose stores these are."""
    # The folder itself comes last: that of a volume may be root's, for whoever is in its group.
    kept = (data_dir / "stores", data_dir / LOCK, data_dir)
    # os.path.exists: that of a Path raises where it may not look
    return next(path for path in kept if os.path.exists(path)).stat().st_uid
