"""Compaction as an operator meets it: over HTTP, by command, on a full disk, or a shared engine."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hms_memory_gateway.engine import Engine
from hms_memory_gateway.settings import Settings
from hms_memory_gateway.shared import shared

from .conftest import Gateway, Serve, serving, shared_engine
from .test_cli import environment, run, running
from .test_compaction import found


def test_a_store_is_compacted_on_demand_by_the_value_of_the_header(serve: Serve) -> None:
    with serve() as gateway:
        client = gateway.client("auth0|4/2 é".replace("é", "e"))
        client.command("create", path="/memories/f", file_text="a\n")
        answer = gateway.http.post("/namespaces/auth0%7C4%2F2%20e/compact")
        assert answer.status_code == 200, answer.text
        assert answer.json()["memories"] == 1
        assert answer.json()["wait_seconds"] < answer.json()["seconds"]
        (store,) = (gateway.settings.data_dir / "stores").iterdir()
        assert gateway.http.post(f"/namespaces/{store.name}/compact").status_code == 200
        assert client.command("view", path="/memories/f")[0]
        figures = gateway.http.get("/metrics").text
        assert 'hms_gateway_compactions_total{outcome="ok"} 2.0' in figures
        assert "hms_gateway_compaction_wait_duration_seconds_count 2.0" in figures


@pytest.mark.parametrize(
    ("name", "status", "code"),
    [
        ("nobody", 404, "namespace_not_found"),
        ("..%2F..%2Fetc", 404, "namespace_not_found"),
        ("..", 404, "route_not_found"),  # a client of HTTP makes that another path
        ("%C3%A9", 400, "namespace_invalid"),
        ("a" * 257, 400, "namespace_invalid"),
        ("%20", 400, "namespace_invalid"),
    ],
)
def test_what_is_no_store_is_not_made(gateway: Gateway, name: str, status: int, code: str) -> None:
    gateway.client().command("create", path="/memories/f", file_text="a")
    before = set((gateway.settings.data_dir / "stores").iterdir())
    answer = gateway.http.post(f"/namespaces/{name}/compact")
    assert (answer.status_code, answer.json()["code"]) == (status, code)
    assert set((gateway.settings.data_dir / "stores").iterdir()) == before


def test_it_asks_for_the_token(serve: Serve) -> None:
    with serve(token="t" * 20) as gateway:
        assert gateway.http.post("/namespaces/a/compact").status_code == 401


def test_the_stores_of_a_shared_engine_are_not_ours_to_compact(
    engine: Engine, tmp_path: Path
) -> None:
    with shared_engine(engine, tmp_path, "t" * 16) as (url, _):
        settings = Settings(hms_url=url, data_dir=tmp_path)
        connect = shared(url, settings, {"HMS_MCP_TOKEN": "t" * 16})
        with serving(settings, connect) as gateway:
            answer = gateway.http.post("/namespaces/a/compact")
            assert (answer.status_code, answer.json()["code"]) == (501, "compaction_unsupported")


def test_the_command_compacts_with_a_gateway_and_without(
    serve: Serve, engine: Engine, tmp_path: Path
) -> None:
    with serve() as gateway:
        folder = gateway.settings.data_dir
        for name in ("a", "B b"):
            gateway.client(name).command("create", path="/memories/f", file_text="a\n")
    environ = environment(engine, folder)

    def compact(*arguments: str) -> subprocess.CompletedProcess[str]:
        return run(environ, "namespaces", "compact", *arguments)

    done = compact("--all")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("1 memories") == 2
    done = compact("nobody")
    assert done.returncode == 1
    assert "There is no memory of this namespace." in done.stdout
    done = compact("a", "--data-dir", f"{folder}/nothing")
    assert done.returncode == 1
    assert "There is no data folder" in done.stderr
    assert compact().returncode == 2

    with running(environ, tmp_path / "log"):
        done = compact("B b")
        assert (done.returncode, "1 memories" in done.stdout) == (0, True), done
        done = compact("--all")
        assert (done.returncode, done.stdout.count("1 memories")) == (0, 2), done
        done = compact("nobody")
        assert done.returncode == 1
        assert "There is no memory of this namespace." in done.stdout


def test_all_are_the_stores_and_nothing_else_that_lies_there(serve: Serve, engine: Engine) -> None:
    with serve() as gateway:
        gateway.client("a").command("create", path="/memories/f", file_text="a\n")
    stores = gateway.settings.data_dir / "stores"
    for other in ("lost+found", "Alice"):
        (stores / other).mkdir()
    (stores / ".DS_Store").touch()
    done = run(environment(engine, stores.parent), "namespaces", "compact", "--all")
    assert (done.returncode, len(done.stdout.splitlines())) == (0, 1), done


def test_a_store_that_was_moved_to_another_disk_is_compacted_and_forgets(serve: Serve) -> None:
    with serve() as gateway:
        gateway.client("a").command("create", path="/memories/f", file_text="MARK\n")
    data = gateway.settings.data_dir
    elsewhere = data.with_name(f"{data.name}-elsewhere")
    (data / "stores" / "a").rename(elsewhere)
    (data / "stores" / "a").symlink_to(elsewhere)
    for _ in range(2):
        with serve(data_dir=data) as gateway:
            client = gateway.client("a")
            assert client.command("view", path="/memories/f")[0]
            assert gateway.http.post("/namespaces/a/compact").status_code == 200
            assert not elsewhere.exists()


_FULL = """
mount -t tmpfs -o size={size}m tmpfs {folder} || exit 77
exec "$@"
"""
_TRY = """
import os, sys, anyio
from pathlib import Path
from hms_memory_gateway.blocks import Blocks
from hms_memory_gateway.embedded import embedded
from hms_memory_gateway.folders import Folders
from hms_memory_gateway.idempotency import Answers
from hms_memory_gateway.metrics import Metrics
from hms_memory_gateway.pool import Pool
from hms_memory_gateway.settings import Settings
from hms_memory_gateway.telemetry import Telemetry
from hms_memory_tool.errors import MemoryFault

async def main(folder, engine, fill):
    settings = Settings(data_dir=folder, forget_seconds=1e9, compact_min_bytes=1 << 40)
    ballast = folder / "ballast"

    def fill_up(done, total):
        # The room is there when it begins, and gone while it copies.
        if fill and not ballast.exists():
            ballast.write_bytes(b"x" * (Folders(folder).free_bytes() - fill))

    async with Pool(embedded(engine, settings, os.environ)) as pool:
        blocks = Blocks(pool, Answers(), Telemetry(Metrics()))
        for number in range(40):
            text = f"{number} " + "word " * 4000
            path = f"/memories/{number}"
            answer = await blocks.execute(
                "n", {"command": "create", "path": path, "file_text": text}
            )
            assert not answer["is_error"]
        try:
            await pool.compact("n", fill_up)
            print("compacted")
        except MemoryFault as fault:
            print(fault.code)
        ballast.unlink(missing_ok=True)
        for number in range(40):
            answer = await blocks.execute("n", {"command": "view", "path": f"/memories/{number}"})
            assert f"{number} word" in answer["content"], answer
        left = [*folder.glob("compaction/fresh/*"), *folder.glob("compaction/replaced/*")]
        assert not left, left
        await pool.compact("n") if fill else None
        print("whole")

anyio.run(main, Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
"""


def on_small_disk(folder: Path, engine: Engine, size: int, fill: int) -> list[str]:
    script = _FULL.format(size=size, folder=folder)
    alone = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script, "sh"]
    done = subprocess.run(
        [*alone, sys.executable, "-c", _TRY, str(folder), str(engine.path), str(fill)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_without_room_a_store_is_not_compacted(engine: Engine, tmp_path: Path) -> None:
    assert on_small_disk(tmp_path, engine, 100, 0) == ["no_room", "whole"]


def test_a_disk_that_fills_up_meanwhile_leaves_the_store_as_it_was(
    engine: Engine, tmp_path: Path
) -> None:
    assert on_small_disk(tmp_path, engine, 400, 64 << 10) == ["compaction_failed", "whole"]


def test_a_command_at_zero_seconds_says_when_what_it_replaced_is_still_there(
    serve: Serve, tmp_path: Path
) -> None:
    with serve(data_dir=tmp_path, forget_seconds=0) as gateway:
        client = gateway.client("n")
        client.command("create", path="/memories/f", file_text="MARK-1\n")
        obstacle = tmp_path / "compaction" / "fresh"
        shutil.rmtree(obstacle, ignore_errors=True)
        obstacle.parent.mkdir(exist_ok=True)
        obstacle.touch()  # nothing can be filled there
        edit = {
            "command": "str_replace",
            "path": "/memories/f",
            "old_str": "MARK-1",
            "new_str": "MARK-2",
        }
        headers = {"X-Memory-Namespace": "n", "Idempotency-Key": "k"}
        answer = gateway.http.post("/memory/command", json=edit, headers=headers)
        assert (answer.status_code, answer.json()["code"]) == (500, "not_forgotten")
        assert "Retry-After" not in answer.headers
        assert "MARK-2" in client.command("view", path="/memories/f")[1]
        obstacle.unlink()
        assert gateway.http.post("/memory/command", json=edit, headers=headers).status_code == 200
        assert found(tmp_path, "MARK-1") == []
        assert "MARK-2" in client.command("view", path="/memories/f")[1]


def test_a_shared_engine_cannot_be_promised_to_forget_at_once() -> None:
    with pytest.raises(ValueError, match="FORGET_SECONDS"):
        Settings(hms_url="http://127.0.0.1:1/mcp", forget_seconds=0)
