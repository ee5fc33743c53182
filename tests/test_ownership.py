"""One process uses a data folder: who that is, how it is found, and who may not."""

import os
import stat
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from hms_memory_gateway.engine import Engine
from hms_memory_gateway.ownership import Address, FolderTaken, owned, publish, published

from .conftest import Client
from .ports import free_port
from .test_cli import Process, command, environment, run, running
from .test_survival import ALONE, can_mount

has_mounts = pytest.mark.skipif(
    not can_mount(), reason="no mount namespace of our own on this machine"
)


@pytest.fixture
def environ(engine: Engine, tmp_path: Path) -> dict[str, str]:
    """The environment of a gateway whose data folder has a store `alice`."""
    environ = environment(engine, tmp_path / "data")
    with running(environ, tmp_path / "log") as gateway:
        alice(gateway).command("create", path="/memories/f", file_text="x")
    return environ


def alice(gateway: Process) -> Client:
    return Client(gateway.http, "alice")


def compact(environ: Mapping[str, str], *more: str) -> subprocess.CompletedProcess[str]:
    return run(environ, "namespaces", "compact", "alice", *more)


def compactions(gateway: Process) -> int:
    line = 'hms_gateway_compactions_total{outcome="ok"} '
    figures = gateway.http.get("/metrics").text.splitlines()
    return sum(int(float(one.removeprefix(line))) for one in figures if one.startswith(line))


def is_sentence(ended: subprocess.CompletedProcess[str], *said: str) -> bool:
    """Whether a command failed with one line that says all of these."""
    (line,) = ended.stderr.splitlines()[-1:]
    assert ended.returncode == 1, ended
    assert "Traceback" not in ended.stderr
    return all(one in line for one in said)


def test_an_address_is_there_while_somebody_listens(tmp_path: Path) -> None:
    address = Address("http://127.0.0.1:1", "x")
    with owned(tmp_path):
        assert published(tmp_path) is None
        publish(tmp_path, address)
        assert published(tmp_path) == address
        with pytest.raises(FolderTaken), owned(tmp_path):
            pass
        assert published(tmp_path) == address
    assert published(tmp_path) is None
    publish(tmp_path, address)  # and that owner was killed
    with owned(tmp_path):
        assert published(tmp_path) is None


def test_the_gateway_of_the_data_folder_is_asked_and_no_other(
    engine: Engine, environ: dict[str, str], tmp_path: Path
) -> None:
    """Whatever the settings say about where gateways listen."""
    with (
        running(environment(engine, tmp_path / "other"), tmp_path / "log of other") as other,
        running(environ, tmp_path / "log") as own,
    ):
        alice(other).command("create", path="/memories/f", file_text="x")
        done = compact(environ, "--port", str(other.http.base_url.port))
        assert (done.returncode, "1 memories" in done.stdout) == (0, True), done
        assert (compactions(other), compactions(own)) == (0, 1)


def test_a_gateway_that_only_seems_to_be_the_one_is_not_asked(
    engine: Engine, environ: dict[str, str], tmp_path: Path
) -> None:
    """That of the data folder is in a container, say, and another has its port out here."""
    with running(environment(engine, tmp_path / "other"), tmp_path / "log of other") as other:
        alice(other).command("create", path="/memories/f", file_text="x")
        url = str(other.http.base_url).rstrip("/")
        with owned(tmp_path / "data"):
            publish(tmp_path / "data", Address(url, "the id of the other one"))
            assert is_sentence(compact(environ), url, "another program answers")
        assert compactions(other) == 0


def test_an_owner_that_is_not_found_is_said(environ: dict[str, str], tmp_path: Path) -> None:
    with owned(tmp_path / "data"):
        assert is_sentence(compact(environ), "in use", "try again")
        url = f"http://127.0.0.1:{free_port()}"
        publish(tmp_path / "data", Address(url, "x"))
        assert is_sentence(compact(environ), url, "does not answer")


def test_what_a_command_makes_is_for_its_user_alone(
    environ: dict[str, str], tmp_path: Path
) -> None:
    umask = os.umask(0o022)
    try:
        assert compact(environ).returncode == 0
    finally:
        os.umask(umask)
    kept = list((tmp_path / "data").rglob("*"))
    assert len(kept) > 3
    assert [path for path in kept if stat.S_IMODE(path.stat().st_mode) & 0o077] == []


@pytest.mark.skipif(os.geteuid() != 0, reason="root alone can give files away")
@pytest.mark.parametrize("place", [".", "stores", ".gateway.lock"])
def test_root_is_refused_where_somebody_else_keeps_stores(
    engine: Engine, tmp_path: Path, place: str
) -> None:
    """Be it a new folder, or one in a volume of root's."""
    data = tmp_path / "data"
    data.mkdir()
    if place == "stores":
        (data / place).mkdir()
    else:
        (data / place).touch()
    os.chown(data / place, 4_321, 4_321)
    before = list(data.iterdir())
    environ = environment(engine, data)
    for ended in (run(environ), compact(environ)):
        assert is_sentence(ended, str(data), "Run this as uid 4321")
    assert list(data.iterdir()) == before


@has_mounts
@pytest.mark.skipif(os.geteuid() != 0, reason="root alone can give files away")
def test_whoever_may_not_write_is_told_whose_stores_they_are(
    environ: dict[str, str], tmp_path: Path
) -> None:
    somebody = ["unshare", "--user", "--map-user=1234"]
    for path in ("data/.gateway.lock", "data", "."):  # what is closed is more, each time
        os.chown(tmp_path / path, 4_321, 4_321)
        for arguments in ([], ["namespaces", "compact", "--all"]):
            ended = subprocess.run(
                [*somebody, *command(*arguments)],
                env=environ,
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )
            assert is_sentence(ended, str(tmp_path / "data"))
            assert path == "." or "uid" in ended.stderr.splitlines()[-1]


def under(
    environ: Mapping[str, str], script: str, *arguments: str
) -> subprocess.CompletedProcess[str]:
    """Run a command with mounts of its own."""
    return subprocess.run(
        [*ALONE, f'{script} && exec "$0" "$@"', *command(*arguments)],
        env=environ,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@has_mounts
def test_a_data_folder_that_is_read_only_is_said(environ: dict[str, str], tmp_path: Path) -> None:
    mount = f"mount --bind {tmp_path} {tmp_path} && mount -o remount,bind,ro {tmp_path}"
    ended = under(environ, mount, "namespaces", "compact", "--all")
    assert is_sentence(ended, str(tmp_path / "data"), "Read-only file system")


@has_mounts
@pytest.mark.parametrize("place", ["stores", "compaction"])
@pytest.mark.parametrize("mount", ["-t tmpfs tmpfs", "--bind {}"])
def test_a_mount_between_the_folders_is_said_before_anything_is_copied(
    engine: Engine, tmp_path: Path, place: str, mount: str
) -> None:
    """A part of the same file system that is mounted there is in the way of a rename, too."""
    folder = tmp_path / "data" / place
    folder.mkdir(parents=True)
    script = f"mount {mount.format(folder)} {folder}"
    environ = environment(engine, tmp_path / "data")
    for arguments in ([], ["namespaces", "compact", "--all"]):
        ended = under(environ, script, *arguments)
        assert is_sentence(ended, str(folder), "Invalid cross-device link")
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("place", ["stores", "compaction"])
def test_a_file_in_the_place_of_a_folder_is_said(
    engine: Engine, tmp_path: Path, place: str
) -> None:
    (tmp_path / place).touch()
    environ = environment(engine, tmp_path)
    for arguments in ([], ["namespaces", "compact", "--all"]):
        assert is_sentence(run(environ, *arguments), str(tmp_path / place), "Not a directory")
