"""The command line, as its user meets it: processes, signals, exit codes, files."""

import os
import re
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest

from hms_memory_gateway.engine import Engine

from .conftest import Client, stop

TOKEN = "correct-horse-battery"


class Process:
    """A running gateway."""

    def __init__(self, process: subprocess.Popen[bytes], http: httpx2.Client) -> None:
        self.process = process
        self.http = http

    def client(self) -> Client:
        return Client(self.http, "u1")

    def children(self) -> list[int]:
        """The engines that it has started."""
        listing = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        return [int(child) for child in listing.read_text().split()]


def environment(engine: Engine, folder: Path, **more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HMS_")}
    ours = {"HMS_MCP_BIN": str(engine.path), "HMS_GATEWAY_DATA_DIR": str(folder)}
    return {**kept, **ours, "HMS_GATEWAY_PORT": "0", **more}


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "hms_memory_gateway", *arguments]


@contextmanager
def running(
    environ: Mapping[str, str], log: Path, *arguments: str, under: Sequence[str] = ()
) -> Generator[Process]:
    """A gateway that has said where it listens; ended at the end if it still runs."""
    with log.open("w") as written:  # a pipe that nobody reads would stop it, once full
        process = subprocess.Popen([*under, *command(*arguments)], env=environ, stderr=written)
    try:
        address = _address(process, log)
        with httpx2.Client(base_url=address, trust_env=False, timeout=30) as http:
            yield Process(process, http)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=30)


def _address(process: subprocess.Popen[bytes], log: Path) -> str:
    while not (found := re.search(r"listening on (http://[^\s\"]+)", log.read_text())):
        assert process.poll() is None, log.read_text()
        time.sleep(0.02)
    return found[1]


def run(environ: Mapping[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*arguments), env=environ, capture_output=True, text=True, timeout=60, check=False
    )


def test_everything_is_still_there_after_a_restart(engine: Engine, tmp_path: Path) -> None:
    environ = environment(engine, tmp_path / "data")
    text = "blue\r\nand \u2028 odd\n\n"
    with running(environ, tmp_path / "log") as first:
        assert first.client().command("create", path="/memories/d/a", file_text=text)[0]
        seen = first.client().command("view", path="/memories/d/a")
        first.process.send_signal(signal.SIGTERM)
        assert first.process.wait(timeout=30) == 0
    with running(environ, tmp_path / "log") as second:
        assert second.client().command("view", path="/memories/d/a") == seen
        assert [result["path"] for result in second.client().recall("blue")] == ["/memories/d/a"]


def test_what_was_acknowledged_survives_kill_9_of_gateway_and_engine(
    engine: Engine, tmp_path: Path
) -> None:
    environ = environment(engine, tmp_path / "data")
    with running(environ, tmp_path / "log") as first:
        for number in range(10):
            assert first.client().command(
                "create", path=f"/memories/{number}", file_text=str(number)
            )[0]
        (child,) = first.children()
        os.kill(child, signal.SIGKILL)
        # the next request finds a new engine and everything in it
        assert first.client().command("create", path="/memories/after", file_text="x")[0]
        first.process.kill()
        assert first.process.wait(timeout=30) == -signal.SIGKILL
    with running(environ, tmp_path / "log") as second:
        listing = second.client().command("view", path="/memories")[1]
        assert len(listing.split("\n")) == 13


def test_a_signal_ends_it_in_order_and_leaves_no_engine_behind(
    engine: Engine, tmp_path: Path
) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        with running(environment(engine, tmp_path / "data"), tmp_path / "log") as gateway:
            assert gateway.client().command("view", path="/memories")[0]
            children = gateway.children()
            assert len(children) == 1
            gateway.process.send_signal(number)
            assert gateway.process.wait(timeout=30) == 0
            assert not any(Path(f"/proc/{child}").exists() for child in children)
        assert "Traceback" not in (tmp_path / "log").read_text()


def test_files_are_readable_by_their_owner_alone(engine: Engine, tmp_path: Path) -> None:
    folder = tmp_path / "new" / "data"
    with running(environment(engine, folder), tmp_path / "log") as gateway:
        gateway.client().command("create", path="/memories/a", file_text="x")
    kept = [folder, *folder.rglob("*")]
    assert len(kept) > 3
    assert [path for path in kept if stat.S_IMODE(path.stat().st_mode) & 0o077] == []


def test_no_marker_of_a_user_is_in_the_log_or_in_a_file_name(
    engine: Engine, tmp_path: Path
) -> None:
    """Text, paths, queries, tokens and namespaces, in what goes well and in what does not."""
    environ = environment(engine, tmp_path / "data", HMS_GATEWAY_TOKEN=TOKEN, HMS_MCP_LOG="debug")
    with running(environ, tmp_path / "log") as gateway:
        client = Client(gateway.http, "Zebra-Namespace@x")
        gateway.http.headers["Authorization"] = f"Bearer {TOKEN}"
        client.command("create", path="/memories/zebra-path", file_text="zebra-text")
        client.command("create", path="/memories/../zebra-path", file_text="zebra-text")
        client.command("str_replace", path="/memories/zebra-path", old_str="zebra-old")
        client.recall("zebra-query")
        client.post("/zebra-route", {"x": "zebra-body"})
        for child in gateway.children():
            os.kill(child, signal.SIGKILL)
        gateway.http.headers["Authorization"] = "Bearer zebra-token"
        client.post("/memory/command", {"command": "view", "path": "/memories"})
    log = (tmp_path / "log").read_text()
    assert "store " in log
    assert "zebra" not in log.lower()
    assert TOKEN not in log


def test_engine_says_which_one_is_used_and_why(engine: Engine, tmp_path: Path) -> None:
    ended = run(environment(engine, tmp_path), "engine")
    assert ended.returncode == 0
    path, about = ended.stdout.splitlines()
    assert path == str(engine.path)
    assert about == f"hms-mcp {engine.version} (HMS_MCP_BIN names it)"


@pytest.mark.parametrize(
    "arguments",
    [
        ["engine"],
        ["doctor"],
        ["doctor", "--json"],
        ["namespaces", "compact", "--all"],
        ["ring", "moves", "--from", "a", "--to", "b"],
    ],
)
def test_a_command_that_nobody_listens_to_any_more_ends_without_a_word(
    engine: Engine, tmp_path: Path, arguments: list[str]
) -> None:
    environ = environment(engine, tmp_path / "data")
    with running(environ, tmp_path / "log") as gateway:
        assert gateway.client().command("create", path="/memories/a", file_text="x")[0]
    unread, written = os.pipe()
    os.close(unread)
    with os.fdopen(written, "wb") as broken:
        ended = subprocess.run(
            command(*arguments),
            env=environ,
            input=b"user-1\n",
            stdout=broken,
            stderr=subprocess.PIPE,
            timeout=60,
            check=False,
        )
    assert ended.returncode == 1
    assert b"BrokenPipe" not in ended.stderr


def test_a_command_without_an_output_ends_well(engine: Engine, tmp_path: Path) -> None:
    closed = ["sh", "-c", '"$0" "$@" >&-', *command("engine")]
    ended = subprocess.run(closed, env=environment(engine, tmp_path), timeout=60, check=False)
    assert ended.returncode == 0


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("PORT", "http", "HMS_GATEWAY_PORT: "),
        ("PORT", "70000", "HMS_GATEWAY_PORT: "),
        ("HOST", "0.0.0.0", "HMS_GATEWAY_TOKEN"),  # noqa: S104
        ("IDLE_SECONDS", "nan", "HMS_GATEWAY_IDLE_SECONDS: "),
        ("MAX_CONNECTIONS", "0", "HMS_GATEWAY_MAX_CONNECTIONS: "),
        ("HMS_ARGS", "--namespace-arg", "--namespace-arg is the gateway's own"),
        ("HMS_ARGS", "'unclosed", "HMS_GATEWAY_HMS_ARGS: "),
        ("TOKEN", "not a secret-marker", "HMS_GATEWAY_TOKEN: "),
        ("DEFAULT_NAMESPACE", "ü", "HMS_GATEWAY_DEFAULT_NAMESPACE: "),
    ],
)
def test_a_wrong_setting_is_named_and_its_value_is_not(
    engine: Engine, tmp_path: Path, variable: str, value: str, said: str
) -> None:
    environ = {**environment(engine, tmp_path), f"HMS_GATEWAY_{variable}": value}
    ended = run(environ)
    assert ended.returncode == 2
    assert said in ended.stderr
    assert "Traceback" not in ended.stderr
    assert "secret-marker" not in ended.stderr


def test_the_command_line_has_the_same_settings_and_wins(engine: Engine, tmp_path: Path) -> None:
    environ = {**environment(engine, tmp_path / "other"), "HMS_GATEWAY_PORT": "1"}
    options = ["--data-dir", str(tmp_path / "data"), "--port", "0", "--max-file-bytes", "5"]
    with running(environ, tmp_path / "log", *options) as gateway:
        text = gateway.client().command("create", path="/memories/a", file_text="123456")[1]
        assert "5 bytes" in text
        assert (tmp_path / "data").is_dir()
        assert not (tmp_path / "other").exists()


def test_a_port_in_use_is_said_in_a_sentence(engine: Engine, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        ended = run(environment(engine, tmp_path), "--port", port)
    assert ended.returncode == 1
    assert f"port {port}" in ended.stderr.splitlines()[-1]
    assert "--port" in ended.stderr.splitlines()[-1]
    assert "Traceback" not in ended.stderr


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="no IPv6 on this machine")
def test_on_all_addresses_of_ipv6_it_listens_on_those_of_ipv4_too(
    engine: Engine, tmp_path: Path
) -> None:
    environ = environment(engine, tmp_path, HMS_GATEWAY_TOKEN=TOKEN, HMS_GATEWAY_HOST="::")
    with running(environ, tmp_path / "log") as gateway:
        port = gateway.http.base_url.port
        for host in ("127.0.0.1", "[::1]"):
            url = f"http://{host}:{port}/readyz"
            assert httpx2.get(url, trust_env=False).status_code == 200


def test_a_data_folder_that_cannot_be_made_is_said_in_a_sentence(
    engine: Engine, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    ended = run(environment(engine, tmp_path / "file" / "data"))
    assert ended.returncode == 1
    assert "HMS_GATEWAY_DATA_DIR" in ended.stderr.splitlines()[-1]


def test_a_second_gateway_on_a_data_folder_is_refused(engine: Engine, tmp_path: Path) -> None:
    environ = environment(engine, tmp_path / "data")
    with running(environ, tmp_path / "log") as gateway:
        ended = run(environ)
        assert ended.returncode == 1
        assert "Another gateway uses the data folder" in ended.stderr.splitlines()[-1]
        assert gateway.client().command("view", path="/memories")[0]
        gateway.process.kill()
        gateway.process.wait()
    with running(environ, tmp_path / "log") as gateway:  # a lock does not outlive its process
        assert gateway.client().command("view", path="/memories")[0]


def test_what_is_cut_short_at_the_end_is_said_to_be_unknown(engine: Engine, tmp_path: Path) -> None:
    environ = environment(engine, tmp_path / "data", HMS_GATEWAY_DRAIN_SECONDS="1")
    create = {"command": "create", "path": "/memories/a", "file_text": "x"}
    with running(environ, tmp_path / "log") as gateway, ThreadPoolExecutor(1) as thread:
        client = gateway.client()
        assert client.command("view", path="/memories")[0]
        (child,) = gateway.children()
        stop(child)
        under_way = thread.submit(client.post, "/memory/command", create)
        while "hms_gateway_pool_leases 1.0" not in gateway.http.get("/metrics").text:
            pass
        gateway.process.send_signal(signal.SIGTERM)
        answer = under_way.result(30)
        assert gateway.process.wait(timeout=30) == 0
    assert (answer.status_code, answer.json()["code"]) == (504, "outcome_unknown")
    assert answer.headers["X-Request-Id"] == answer.json()["request_id"]
    assert "Traceback" not in (tmp_path / "log").read_text()


def test_a_setting_of_no_version_is_reported(engine: Engine, tmp_path: Path) -> None:
    environ = environment(engine, tmp_path / "data", HMS_GATEWAY_PROT="1")
    with running(environ, tmp_path / "log"):
        pass
    assert "HMS_GATEWAY_PROT" in (tmp_path / "log").read_text()


def test_readiness_follows_the_engine_and_the_data_folder(engine: Engine, tmp_path: Path) -> None:
    binary = tmp_path / "hms-mcp"
    binary.symlink_to(engine.path)
    environ = {**environment(engine, tmp_path / "data"), "HMS_MCP_BIN": str(binary)}
    with running(environ, tmp_path / "log") as gateway:
        assert gateway.http.get("/readyz").json() == {"status": "ready"}
        binary.unlink()
        answer = until(gateway.http, 503)
        assert answer.json() == {"status": "not_ready", "reason": "engine_missing"}
        assert gateway.http.get("/healthz").status_code == 200
        binary.symlink_to(engine.path)
        assert until(gateway.http, 200).json() == {"status": "ready"}
        assert gateway.children() == []


def until(http: httpx2.Client, status: int) -> httpx2.Response:
    """Ask for readiness until it changes; each question costs time, and there is a bound."""
    for _ in range(20_000):
        answer = http.get("/readyz")
        if answer.status_code == status:
            return answer
    raise AssertionError(f"readiness never became {status}")
