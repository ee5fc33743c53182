"""The doctor: whatever can be wrong is made wrong, and it says so, and what to do."""

import json
import os
import re
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext
from dataclasses import asdict, dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from hms_memory_gateway.doctor import Given
from hms_memory_gateway.doctor import examine as look
from hms_memory_gateway.doctor.findings import Outcome
from hms_memory_gateway.doctor.folder import file_system
from hms_memory_gateway.doctor.machine import judged
from hms_memory_gateway.engine import Engine
from hms_memory_gateway.ownership import owned
from hms_memory_gateway.settings import Settings

from .conftest import Client, engines_in, shared_engine
from .ports import free_port
from .test_cli import command, environment, run, running
from .test_survival import ALONE, can_mount

TOKEN = "correct-horse-battery"
# What depends on the machine that the tests run on, and may well be a warning there.
OF_THE_MACHINE = {"limits", "file system", "space", "start", "temporary files"}

can_have_a_disk = pytest.mark.skipif(
    not can_mount(), reason="no mount namespace of our own on this machine"
)


@dataclass
class Examined:
    """What the doctor said."""

    code: int
    checks: list[dict[str, Any]]
    stderr: str = ""

    def __post_init__(self) -> None:
        for check in self.checks:
            assert bool(check["advice"]) == (check["outcome"] in ("warning", "failure"))

    def outcome(self, name: str) -> str:
        """The worst outcome of a check."""
        order = [str(one) for one in Outcome]
        return max((str(one["outcome"]) for one in self._of(name)), key=order.index)

    def said(self, name: str) -> str:
        """All that a check said."""
        return "\n".join(f"{one['found']} -> {one['advice']}" for one in self._of(name))

    def figures(self, name: str) -> Mapping[str, float]:
        figures: Mapping[str, float] = self._of(name)[0]["figures"]
        return figures

    def which(self, outcome: str) -> set[str]:
        """The checks that ended in a way."""
        return {one["name"] for one in self.checks if one["outcome"] == outcome}

    def _of(self, name: str) -> list[dict[str, Any]]:
        return [one for one in self.checks if one["name"] == name]


def examine(
    environ: Mapping[str, str], *arguments: str, under: Sequence[str] = (), cwd: Path | None = None
) -> Examined:
    """Run the command, as an operator does."""
    ended = subprocess.run(
        [*under, *command("doctor", "--json", *arguments)],
        env=environ,
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "Traceback" not in ended.stderr, ended.stderr
    return Examined(ended.returncode, json.loads(ended.stdout)["checks"], ended.stderr)


def examined(environ: Mapping[str, str], **settings: Any) -> Examined:
    """Run the checks in this process, which takes a tenth of the time."""
    data_dir = Path(environ["HMS_GATEWAY_DATA_DIR"])
    given = Given(
        settings=Settings(**{"data_dir": data_dir, "port": 0, **settings}),
        wrong=[],
        unknown=[],
        environ=environ,
    )
    with closing(look(given, data_dir / "cache", lambda name: nullcontext())) as findings:
        checks = [{"name": name, **asdict(finding)} for name, finding in findings]
    return Examined(int(any(one["outcome"] == "failure" for one in checks)), checks)


def script(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o700)
    return path


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir(mode=0o700)
    return folder


@pytest.fixture
def environ(engine: Engine, data: Path) -> dict[str, str]:
    return environment(engine, data)


def test_where_all_is_well_everything_is_looked_at_and_nothing_is_left(
    engine: Engine, tmp_path: Path
) -> None:
    seen = examine(environment(engine, tmp_path / "new" / "data"))
    assert seen.code == 0
    assert seen.which("failure") == seen.which("skipped") == set()
    assert seen.which("warning") <= OF_THE_MACHINE
    assert engine.version in seen.said("engine")
    assert "HMS_MCP_BIN" in seen.said("engine")
    assert seen.figures("start")["open_ms"] > 0
    assert seen.figures("round trip")["write_ms"] > 0
    assert list(tmp_path.iterdir()) == []


def test_lines_for_a_person_say_the_same_and_count_it(environ: dict[str, str]) -> None:
    environ["HMS_GATEWAY_TOKEN"] = "short"
    environ["HMS_GATEWAY_MAX_CONNECTIONS"] = "1"  # room for them comes and goes between the two
    ended = run(environ, "doctor")
    *lines, counts = ended.stdout.splitlines()
    said = [re.split(r" {1,}", line, maxsplit=1) for line in lines if not line.startswith(" ")]
    seen = examine(environ)
    assert [outcome for outcome, _ in said] == [check["outcome"] for check in seen.checks]
    for (_, rest), check in zip(said, seen.checks, strict=True):
        assert rest.startswith(check["name"])
    for check in seen.checks:
        assert f"-> {check['advice']}" in ended.stdout or not check["advice"]
    assert f"{len(seen.which('ok'))} ok" in counts
    assert ended.returncode == seen.code == 0


# a gateway that runs, and others at its port


def test_a_running_gateway_is_asked_and_left_alone(
    environ: dict[str, str], data: Path, tmp_path: Path
) -> None:
    with running({**environ, "HMS_GATEWAY_TOKEN": TOKEN}, tmp_path / "log") as gateway:
        gateway.http.headers["Authorization"] = f"Bearer {TOKEN}"
        client = gateway.client()
        assert client.command("create", path="/memories/a", file_text="x")[0]
        before, children = set(data.rglob("*")), gateway.children()
        port = str(gateway.http.base_url.port)
        seen = examine({**environ, "HMS_GATEWAY_TOKEN": TOKEN}, "--port", port)
        assert seen.code == 0
        assert "one runs" in seen.said("gateway")
        assert "is ready" in seen.said("port")
        assert seen.outcome("round trip") == "ok"
        assert set(data.rglob("*")) == before
        assert gateway.children() == children

        wrong = examined(environ, token="another-long-token", port=port)
        assert (wrong.code, wrong.which("failure")) == (1, {"port"})
        assert "HMS_GATEWAY_TOKEN" in wrong.said("port")
        assert "another-long-token" not in str(wrong.checks)

        other = examined(environ, data_dir=tmp_path / "x", port=port)
        assert (other.code, other.which("failure")) == (1, {"port"})
        assert "HMS_GATEWAY_DATA_DIR" in other.said("port")

        elsewhere = examined(environ, token=TOKEN, port=free_port())
        assert f":{port}, is ready" in elsewhere.said("port")
        assert elsewhere.outcome("port") == "ok"
        assert client.command("view", path="/memories/a")[0]
    after = examined(environ)  # the file of the lock is still there
    assert "none runs" in after.said("gateway")


def test_a_gateway_that_is_not_ready_says_why(
    engine: Engine, environ: dict[str, str], tmp_path: Path
) -> None:
    binary = tmp_path / "hms-mcp"
    binary.symlink_to(engine.path)
    with running({**environ, "HMS_MCP_BIN": str(binary)}, tmp_path / "log") as gateway:
        binary.unlink()
        seen = examined(environ, port=gateway.http.base_url.port)
    assert (seen.code, seen.which("failure")) == (1, {"port"})
    assert "engine_missing" in seen.said("port")


def test_a_port_that_something_silent_holds_is_a_failure_and_the_wait_is_shown(
    environ: dict[str, str],
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        seen = examine(environ, "--port", str(taken.getsockname()[1]))
    assert (seen.code, seen.which("failure")) == (1, {"port"})
    assert "gives no answer" in seen.said("port")
    assert "looking at `port` (2 s)" in seen.stderr


class Stranger(BaseHTTPRequestHandler):
    """A program that is no gateway, and has the same answer for everything."""

    body = b'{"status": "ok"}'

    def do_GET(self) -> None:
        self.answer(200, self.body)

    def answer(self, status: int, body: bytes, **headers: str) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        """Keep quiet."""


@contextmanager
def stranger(handler: type[BaseHTTPRequestHandler]) -> Generator[int]:
    """A server of another kind: its port."""
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()


def test_a_port_that_another_server_holds_is_a_failure(environ: dict[str, str]) -> None:
    with stranger(Stranger) as port:
        seen = examined(environ, port=port)
    assert (seen.code, seen.which("failure")) == (1, {"port"})
    assert "something else" in seen.said("port")


@pytest.mark.parametrize("text", [b"Not here", b"[]", b"{}", b'{"reason": []}', b"[" * 100_000])
def test_a_server_that_is_healthy_as_a_gateway_is_may_be_another(
    environ: dict[str, str], data: Path, text: bytes
) -> None:
    class Alike(Stranger):
        def do_GET(self) -> None:
            if self.path == "/healthz":
                self.answer(200, self.body, **{"X-Request-Id": "1"})
            else:
                self.answer(404, text)

    with owned(data), stranger(Alike) as port:
        seen = examined(environ, port=port)
    assert (seen.code, seen.which("failure")) == (1, {"port"})
    assert "something else" in seen.said("port")


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="no IPv6 on this machine")
def test_all_addresses_of_ipv6_are_tried_with_those_of_ipv4(environ: dict[str, str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        seen = examined(environ, token=TOKEN, host="::", port=taken.getsockname()[1])
    assert (seen.code, seen.which("failure")) == (1, {"port"})


def test_an_address_of_another_machine_is_a_failure(environ: dict[str, str]) -> None:
    seen = examined(environ, token=TOKEN, host="192.0.2.1")
    assert seen.which("failure") == {"port"}
    assert "--host" in seen.said("port")


# the engine


@pytest.mark.parametrize("text", [None, "echo hello", "echo broken >&2; exit 3"])
def test_an_engine_that_cannot_be_used_is_a_failure(
    environ: dict[str, str], tmp_path: Path, text: str | None
) -> None:
    binary = tmp_path / "hms-mcp"
    if text is not None:
        script(binary, text)
    seen = examined({**environ, "HMS_MCP_BIN": str(binary)})
    assert (seen.code, seen.which("failure")) == (1, {"engine"})
    assert seen.which("skipped") == {"start", "round trip"}
    assert "HMS_MCP_BIN" in seen.said("engine")


def test_an_engine_that_is_missing_is_not_installed(data: Path, tmp_path: Path) -> None:
    nowhere = {"HOME": str(tmp_path), "PATH": str(tmp_path), "HMS_GATEWAY_PORT": "0"}
    seen = examine({**nowhere, "HMS_GATEWAY_DATA_DIR": str(data)})
    assert (seen.code, seen.which("failure")) == (1, {"engine"})
    assert "hms-memory-gateway engine" in seen.said("engine")
    assert list(tmp_path.rglob("hms-mcp*")) == []


def test_an_old_engine_is_a_warning_and_is_tried(
    engine: Engine, environ: dict[str, str], tmp_path: Path
) -> None:
    old = f'[ "$1" = --version ] && exec echo hms-mcp 0.5.10\nexec {engine.path} "$@"'
    seen = examined({**environ, "HMS_MCP_BIN": str(script(tmp_path / "old", old))})
    assert (seen.code, seen.outcome("engine")) == (0, "warning")
    assert seen.outcome("round trip") == "ok"


def test_an_engine_that_loses_what_it_acknowledged_is_found_out(
    engine: Engine, environ: dict[str, str], tmp_path: Path
) -> None:
    """It starts from nothing each time."""
    forgetful = f'case "$PWD" in */stores/*) rm -rf ./*;; esac\nexec {engine.path} "$@"'
    seen = examined({**environ, "HMS_MCP_BIN": str(script(tmp_path / "bad", forgetful))})
    assert (seen.code, seen.which("failure")) == (1, {"round trip"})


@pytest.mark.parametrize(
    ("variable", "value", "advice"),
    [("HMS_MCP_ENCRYPT", "true", "HMS_MCP_PASSPHRASE"), ("HMS_MCP_DIM", "1", "HMS_MCP_")],
)
def test_settings_that_the_engine_refuses_are_said_in_its_own_words(
    environ: dict[str, str], variable: str, value: str, advice: str
) -> None:
    seen = examined({**environ, variable: value})
    assert (seen.code, seen.which("failure")) == (1, {"start"})
    assert advice in seen.said("start").split("->")[1]


def test_encrypted_stores_make_the_round_trip(environ: dict[str, str]) -> None:
    seen = examined({**environ, "HMS_MCP_ENCRYPT": "true", "HMS_MCP_PASSPHRASE": TOKEN})
    assert (seen.code, seen.outcome("round trip")) == (0, "ok")
    assert TOKEN not in str(seen.checks)


def test_the_smallest_limits_do_not_stop_the_round_trip(environ: dict[str, str]) -> None:
    seen = examined(environ, max_file_bytes=1, max_view_chars=100)
    assert seen.outcome("round trip") == "ok"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_interrupted_it_leaves_nothing_behind(
    engine: Engine, environ: dict[str, str], data: Path, tmp_path: Path, number: int
) -> None:
    gate, slow = tmp_path / "gate", tmp_path / "slow"
    os.mkfifo(gate)
    script(slow, f'[ "$1" = --version ] || read -r _ < {gate}\nexec {engine.path} "$@"')
    with subprocess.Popen(
        command("doctor"),
        env={**environ, "HMS_MCP_BIN": str(slow)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        assert any("looking at `start`" in line for line in process.stderr)
        (scratch,) = data.glob(".doctor-*")
        assert engines_in(scratch)
        process.send_signal(number)
        assert process.wait(timeout=30) == 130
        assert "Traceback" not in process.stderr.read()
    assert list(data.iterdir()) == []
    assert engines_in(scratch) == []


# the data folder


def test_a_file_in_the_way_of_the_data_folder_is_a_failure(engine: Engine, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    seen = examined(environment(engine, tmp_path / "file" / "data"))
    assert seen.code == 1
    assert "HMS_GATEWAY_DATA_DIR" in seen.said("data folder")
    assert {"start", "round trip", "permissions"} <= seen.which("skipped")


@pytest.mark.parametrize("below", [".", "data"])
def test_a_link_to_no_folder_is_refused_as_at_the_start(
    engine: Engine, tmp_path: Path, below: str
) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    environ = environment(engine, tmp_path / "link" / below)
    assert run(environ).returncode == 1
    seen = examine(environ)
    assert (seen.code, seen.which("failure")) == (1, {"data folder"})
    assert str(tmp_path / "nowhere") in seen.said("data folder")


def disk(data: Path, options: str, then: str = "true") -> list[str]:
    """Runs what follows with a disk of its own for a data folder."""
    return [*ALONE, f'mount -t tmpfs -o {options} tmpfs {data} && {then} && exec "$0" "$@"']


@can_have_a_disk
def test_a_read_only_disk_is_a_failure(environ: dict[str, str], data: Path) -> None:
    seen = examine(environ, under=disk(data, "ro"))
    assert seen.code == 1
    assert "Read-only" in seen.said("data folder")


@can_have_a_disk
def test_a_full_disk_is_a_failure_and_no_store_is_tried_on_it(
    environ: dict[str, str], data: Path
) -> None:
    fill = f"! dd if=/dev/zero of={data}/fill bs=4k 2>/dev/null"
    seen = examine(environ, under=disk(data, "size=80m,mode=700", fill))
    assert seen.code == 1
    assert {"space", "files"} <= seen.which("failure")
    assert seen.which("skipped") == {"start", "round trip"}


@can_have_a_disk
def test_a_disk_without_inodes_is_a_failure(environ: dict[str, str], data: Path) -> None:
    seen = examine(environ, under=disk(data, "nr_inodes=10,mode=700"))
    assert seen.outcome("space") == "failure"


@can_have_a_disk
def test_a_small_disk_in_memory_is_worth_three_warnings(
    environ: dict[str, str], data: Path
) -> None:
    seen = examine(environ, under=disk(data, "size=200m,mode=700"))
    assert seen.code == 0
    assert {"file system", "space", "start"} <= seen.which("warning")
    assert seen.figures("start")["store_bytes"] > 60e6


@can_have_a_disk
def test_stores_on_a_disk_of_their_own_are_a_failure(environ: dict[str, str], data: Path) -> None:
    (data / "stores").mkdir()
    seen = examine(environ, under=disk(data / "stores", "mode=700"))
    assert seen.code == 1
    assert "one file system" in seen.said("data folder")


@pytest.mark.skipif(os.geteuid() != 0, reason="root alone can give files away")
def test_root_on_the_data_folder_of_somebody_else_is_a_failure(
    environ: dict[str, str], data: Path
) -> None:
    os.chown(data, 4_321, 4_321)
    seen = examined(environ)
    assert (seen.code, seen.outcome("data folder")) == (1, "failure")
    assert "uid 4321" in seen.said("data folder")


def test_a_gateway_that_starts_or_ends_is_waited_for(environ: dict[str, str], data: Path) -> None:
    with owned(data):
        seen = examined(environ, port=free_port())
    assert (seen.code, seen.outcome("port")) == (0, "warning")


MOUNTS = r"""
/dev/vda / ext4 rw 0 0
proc /proc proc rw 0 0
tmpfs /srv tmpfs rw 0 0
files:/export /srv/our\040memory nfs4 rw,vers=4.2 0 0
overlay /srv/hidden tmpfs rw 0 0
/dev/vdb /srv/hidden xfs rw 0 0
""".lstrip()


@pytest.mark.parametrize(
    ("folder", "kind"),
    [
        ("/", "ext4"),
        ("/home/memory", "ext4"),
        ("/srv", "tmpfs"),
        ("/srv/our memory/data", "nfs4"),
        ("/srv/our", "tmpfs"),
        ("/srv/hidden/data", "xfs"),
        ("/srvice", "ext4"),
    ],
)
def test_the_file_system_is_that_of_the_nearest_mount(folder: str, kind: str) -> None:
    assert file_system(Path(folder), MOUNTS) == kind


@pytest.fixture
def store(environ: dict[str, str], data: Path, tmp_path: Path) -> Path:
    """A store that a gateway has made."""
    with running(environ, tmp_path / "log") as gateway:
        assert Client(gateway.http, "n").command("create", path="/memories/a", file_text="x")[0]
    return data / "stores" / "n"


@pytest.mark.parametrize(
    ("mode", "where", "outcome"),
    [
        (0o755, "stores/n", "failure"),
        (0o604, "stores/n/store.json", "failure"),
        (0o640, "stores/n/store.json", "warning"),
        (0o750, "stores", "warning"),
        (0o755, ".", "warning"),
        (0o777, ".", "failure"),
    ],
)
def test_what_others_can_read_is_found(
    environ: dict[str, str], store: Path, mode: int, where: str, outcome: str
) -> None:
    assert examined(environ).outcome("permissions") == "ok"
    path = store.parents[1] / where
    path.chmod(mode)
    seen = examined(environ)
    assert (seen.code, seen.outcome("permissions")) == (int(outcome == "failure"), outcome)
    assert str(path) in seen.said("permissions")
    subprocess.run(seen.said("permissions").split(": ")[-1], shell=True, check=True)  # noqa: S602
    assert examined(environ).outcome("permissions") == "ok"


@pytest.mark.parametrize("linked", [".", "stores"])
def test_a_folder_that_is_a_link_is_judged_by_what_it_leads_to(
    environ: dict[str, str], store: Path, linked: str
) -> None:
    data = store.parents[1]
    (data / linked).rename(data.parent / "elsewhere")
    (data / linked).symlink_to(data.parent / "elsewhere")
    (data / "stores" / "link").symlink_to(store)
    if os.geteuid() == 0:  # who owns a link owns nothing of what is kept
        os.chown(data / linked, 4_321, 4_321, follow_symlinks=False)
    seen = examined(environ)
    assert (seen.outcome("permissions"), seen.outcome("owner")) == ("ok", "ok")
    (store / "store.json").chmod(0o604)
    seen = examined(environ)
    assert seen.outcome("permissions") == "failure"
    subprocess.run(seen.said("permissions").split(": ")[-1], shell=True, check=True)  # noqa: S602
    assert examined(environ).outcome("permissions") == "ok"


@pytest.mark.skipif(os.geteuid() != 0, reason="root alone can give files away")
def test_what_belongs_to_somebody_else_is_found(environ: dict[str, str], store: Path) -> None:
    os.chown(store, 4_321, 4_321)
    seen = examined(environ)
    assert (seen.code, seen.outcome("owner")) == (0, "warning")
    assert "4321" in seen.said("owner")
    if can_mount():  # as root of a namespace in which that user does not exist
        seen = examine(environ, under=[*ALONE, 'exec "$0" "$@"'])
        assert (seen.code, seen.outcome("owner")) == (1, "failure")


# the machine


def limited(option: str) -> list[str]:
    """Runs what follows under a limit."""
    return ["bash", "-c", f'ulimit {option} && exec "$0" "$@"']


def test_too_few_open_files_are_a_warning(environ: dict[str, str]) -> None:
    seen = examine(environ, under=limited("-n 100"))
    assert (seen.code, seen.outcome("limits")) == (0, "warning")
    assert "LimitNOFILE" in seen.said("limits")


@can_have_a_disk
def test_too_few_processes_are_a_warning_to_all_but_root(environ: dict[str, str]) -> None:
    somebody = ["unshare", "--user", "--map-user=1234"]
    seen = examine(environ, under=[*somebody, *limited("-u 100")])
    assert (seen.code, seen.outcome("limits")) == (0, "warning")
    assert "LimitNPROC" in seen.said("limits")


def test_more_stores_than_there_is_memory_for_are_a_warning(environ: dict[str, str]) -> None:
    seen = examined(environ, max_connections=1_000_000)
    assert "memory" in seen.said("limits")


def test_a_clock_behind_what_was_written_is_a_failure(environ: dict[str, str], store: Path) -> None:
    assert examined(environ).outcome("clock") == "ok"
    file = store / "documents.text"
    later = file.stat().st_mtime + 86_400
    os.utime(file, (later, later))
    seen = examined(environ)
    assert (seen.code, seen.which("failure")) == (1, {"clock"})


@pytest.mark.parametrize(
    ("jumped", "newest", "outcome"),
    [
        (0, 900, "ok"),
        (0.1, 1_010, "ok"),
        (3, 900, "warning"),
        (-3, 900, "warning"),
        (0, 2_000, "failure"),
    ],
)
def test_a_clock_is_judged_by_what_is_steady(jumped: float, newest: float, outcome: str) -> None:
    assert judged(1_000, jumped, newest).outcome == outcome


@can_have_a_disk
def test_no_room_for_temporary_files_is_a_warning(environ: dict[str, str], data: Path) -> None:
    closed = [f"mount --bind {one} {one} && mount -o remount,bind,ro {one}" for one in TEMPORARY]
    ours = f"mount -t tmpfs -o mode=700 tmpfs {data}"
    under = [*ALONE, f'{" && ".join(closed)} && {ours} && exec "$0" "$@"']
    seen = examine(environ, under=under, cwd=Path("/proc"))
    assert (seen.code, seen.outcome("temporary files")) == (0, "warning")
    assert "TMPDIR" in seen.said("temporary files")


TEMPORARY = [one for one in ("/tmp", "/var/tmp", "/usr/tmp") if Path(one).is_dir()]  # noqa: S108


# settings


def test_every_wrong_setting_is_named_and_the_engine_is_looked_at_all_the_same(
    environ: dict[str, str],
) -> None:
    wrong = {"HMS_GATEWAY_PORT": "secret-marker", "HMS_GATEWAY_IDLE_SECONDS": "0"}
    seen = examine({**environ, **wrong, "HMS_GATEWAY_PROT": "1"})
    assert seen.code == 2
    assert seen.which("failure") == {"settings"}
    for name in (*wrong, "HMS_GATEWAY_PROT"):
        assert name in seen.said("settings")
    assert seen.which("ok") == {"engine", "temporary files"}
    assert "secret-marker" not in str(seen)
    assert run({**environ, **wrong}, "doctor").returncode == 2


def test_an_unknown_variable_is_a_warning(environ: dict[str, str]) -> None:
    seen = examine({**environ, "HMS_GATEWAY_PROT": "1"})
    assert (seen.code, seen.outcome("settings")) == (0, "warning")
    assert "HMS_GATEWAY_PROT" in seen.said("settings")


@pytest.mark.parametrize(
    ("settings", "outcome"),
    [
        ({}, "ok"),
        ({"token": TOKEN}, "ok"),
        ({"token": "short-marker"}, "warning"),
        ({"host": "0.0.0.0", "allow_unauthenticated": True}, "warning"),  # noqa: S104
        ({"host": "0.0.0.0", "token": TOKEN}, "ok"),  # noqa: S104
        ({"allowed_hosts": "*"}, "warning"),
    ],
)
def test_a_door_that_is_easily_opened_is_a_warning(
    environ: dict[str, str], settings: dict[str, Any], outcome: str
) -> None:
    seen = examined(environ, **settings)
    assert (seen.code, seen.outcome("access")) == (0, outcome)
    assert "marker" not in str(seen)


# a shared engine


@pytest.fixture
def shared(engine: Engine, environ: dict[str, str], tmp_path: Path) -> Iterator[dict[str, str]]:
    """The environment of a gateway over one."""
    with shared_engine(engine, tmp_path / "shared", TOKEN) as (url, _):
        yield {**environ, "HMS_GATEWAY_HMS_URL": url, "HMS_MCP_TOKEN": TOKEN}


def examined_shared(environ: Mapping[str, str], **settings: Any) -> Examined:
    return examined(environ, hms_url=environ["HMS_GATEWAY_HMS_URL"], **settings)


def test_a_shared_engine_is_asked_and_gets_no_store_for_it(
    shared: dict[str, str], tmp_path: Path
) -> None:
    stores = set((tmp_path / "shared").rglob("*"))
    seen = examined_shared(shared)
    assert (seen.code, seen.outcome("shared engine")) == (0, "ok")
    assert set((tmp_path / "shared").rglob("*")) == stores
    assert not {"engine", "data folder", "round trip"} & {one["name"] for one in seen.checks}


@pytest.mark.parametrize(
    ("variable", "change", "said"),
    [
        ("HMS_MCP_TOKEN", lambda _: "another-token-16", "HMS_MCP_TOKEN"),
        ("HMS_GATEWAY_HMS_URL", lambda url: url.replace("/mcp", "/else"), "/mcp"),
        ("HMS_GATEWAY_HMS_URL", lambda _: f"http://127.0.0.1:{free_port()}/mcp", "Does it run"),
    ],
)
def test_a_shared_engine_that_cannot_be_used_is_a_failure(
    shared: dict[str, str], variable: str, change: Callable[[str], str], said: str
) -> None:
    seen = examined_shared({**shared, variable: change(shared[variable])})
    assert (seen.code, seen.which("failure")) == (1, {"shared engine"})
    assert said in seen.said("shared engine").split("->")[1]


@pytest.mark.parametrize("token", ["ümlaut-marker-token", "a-marker-from-a-file\n", " "])
def test_a_token_of_a_shared_engine_that_no_header_can_carry_is_a_wrong_setting(
    environ: dict[str, str], token: str
) -> None:
    wrong = {"HMS_GATEWAY_HMS_URL": "http://127.0.0.1:1/mcp", "HMS_MCP_TOKEN": token}
    seen = examine({**environ, **wrong})
    assert (seen.code, seen.which("failure")) == (2, {"settings"})
    assert "HMS_MCP_TOKEN" in seen.said("settings")
    assert "marker" not in str(seen)
    ended = run({**environ, **wrong})
    assert (ended.returncode, "HMS_MCP_TOKEN" in ended.stderr.splitlines()[-1]) == (2, True)
    assert "marker" not in ended.stderr


def test_a_shared_engine_with_one_store_alone_is_a_failure(
    engine: Engine, environ: dict[str, str], tmp_path: Path
) -> None:
    arguments = ["--transport=http", "--bind=127.0.0.1:0", f"--data-dir={tmp_path / 's'}"]
    with subprocess.Popen([engine.path, *arguments], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().rsplit(" ", 1)[-1].strip()
            seen = examined(environ, hms_url=url)
        finally:
            process.terminate()
    assert seen.code == 1
    assert "--namespace-arg" in seen.said("shared engine")


def test_a_gateway_over_a_shared_engine_is_asked_too(
    shared: dict[str, str], tmp_path: Path
) -> None:
    with running(shared, tmp_path / "log") as gateway:
        seen = examined_shared(shared, port=gateway.http.base_url.port)
    assert (seen.code, seen.outcome("port")) == (0, "ok")
    assert "is ready" in seen.said("port")
