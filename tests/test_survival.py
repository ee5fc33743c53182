"""What has to survive: whole directories that move while something is killed, years of opening and
closing, more namespaces than connections, an engine that two gateways share and that dies.
"""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, ExitStack, suppress
from pathlib import Path
from typing import TypeVar

import anyio
import anyio.to_thread
import httpx2
import pytest

from hms_memory_gateway.embedded import embedded
from hms_memory_gateway.engine import Engine
from hms_memory_gateway.pool import Pool
from hms_memory_gateway.settings import Settings
from hms_memory_tool import HolographicMemoryToolSync
from hms_memory_tool.commands import parse_command
from hms_memory_tool.errors import Unavailable
from hms_memory_tool.files import MemoryFiles
from hms_memory_tool.session import EngineSession, open_stdio
from hms_memory_tool.store import Document, HmsStore

from .conftest import Client, Serve, processes_with, shared_engine, stored
from .ports import free_port
from .test_cli import command, environment, running
from .test_shared import TOKEN, over

T = TypeVar("T")
FILES = 1_000
RENAME = {"command": "rename", "old_path": "/memories/d", "new_path": "/memories/e"}
DELETE = {"command": "delete", "path": "/memories/d"}


@pytest.fixture(scope="module")
def large(serve: Serve, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder whose user `u1` has a directory of a thousand files."""
    folder = tmp_path_factory.mktemp("large")
    with serve(data_dir=folder) as gateway:
        client = gateway.client("u1")
        for number in range(FILES):
            path = f"/memories/d/{number:04}"
            assert client.command("create", path=path, file_text=f"{number}\n")[0]
    return folder


def names(client: Client, directory: str) -> set[str]:
    is_ok, text = client.command("view", path=f"/memories/{directory}")
    return {line.rpartition("/")[2] for line in text.split("\n")[2:]} if is_ok else set()


@pytest.mark.parametrize("victim", ["engine", "gateway"])
@pytest.mark.parametrize(
    ("given", "within_seconds"),
    [(RENAME, 0.5), (RENAME, 1.0), (RENAME, 2.0), (DELETE, 0.1)],
    ids=["rename-early", "rename-halfway", "rename-late", "delete"],
)
def test_a_directory_is_the_old_one_or_the_new_one_whatever_is_killed(
    engine: Engine,
    large: Path,
    tmp_path: Path,
    given: dict[str, str],
    within_seconds: float,
    victim: str,
) -> None:
    """At a random moment of the move; nothing but the store knows of it afterwards."""
    subprocess.run(["cp", "-r", "--sparse=always", large, tmp_path / "data"], check=True)
    environ = environment(engine, tmp_path / "data", HMS_GATEWAY_MAX_VIEW_CHARS="1000000")
    with running(environ, tmp_path / "log") as gateway:
        client = gateway.client()
        assert len(names(client, "d")) == FILES
        (child,) = gateway.children()
        pid = child if victim == "engine" else gateway.process.pid
        seconds = random.uniform(0, within_seconds)
        killer = threading.Timer(seconds, os.kill, (pid, signal.SIGKILL))
        killer.start()
        # A gateway that is killed gives no answer; an engine's death is not to be noticed at all.
        with suppress(*([httpx2.TransportError] if victim == "gateway" else [])):
            assert client.post("/memory/command", given).json()["is_error"] is False
        killer.join()
    with running(environ, tmp_path / "log") as gateway:
        client = gateway.client()
        whole = {f"{number:04}" for number in range(FILES)}
        new = whole if given is RENAME else set()
        assert (names(client, "d"), names(client, "e")) in ((whole, set()), (set(), new))
        listing = client.command("view", path="/memories")[1]
        assert len(listing.split("\n")) in (2, FILES + 3)


class Killing:
    """A real store whose engine is killed with its n-th write under way."""

    def __init__(self, store: HmsStore, pid: int, number: int) -> None:
        self._store = store
        self._pid = pid
        self._left = number
        self.limits = store.limits
        self.get = store.get
        self.entries = store.entries
        self.documents = store.documents
        self.recall = store.recall

    async def _write(self, work: Callable[[], Awaitable[T]]) -> T:
        self._left -= 1
        if self._left:
            return await work()
        moment = random.uniform(0, 0.001)  # before, in, or after it
        killer = threading.Timer(moment, os.kill, (self._pid, signal.SIGKILL))
        killer.start()
        try:
            return await work()
        finally:
            await anyio.to_thread.run_sync(killer.join)

    async def create(self, document: Document) -> str:
        return await self._write(lambda: self._store.create(document))

    async def replace(self, document: Document, text: str) -> str:
        return await self._write(lambda: self._store.replace(document, text))

    async def delete(self, keys: Sequence[str]) -> int:
        return await self._write(lambda: self._store.delete(keys))


def open_files(engine: Engine, data: Path) -> AbstractAsyncContextManager[EngineSession]:
    arguments = [f"--data-dir={data}", "--namespace=u1", "--max-page=1000"]
    return open_stdio(
        str(engine.path), arguments, {}, open_seconds=30, call_seconds=30, on_stderr=print
    )


@pytest.mark.anyio
@pytest.mark.parametrize("given", [RENAME, DELETE], ids=["rename", "delete"])
async def test_a_thousand_files_move_or_stay_at_whichever_write_the_engine_is_killed(
    engine: Engine,
    large: Path,
    tmp_path: Path,
    pytestconfig: pytest.Config,
    given: dict[str, str],
) -> None:
    """Every n-th write and all those around the first and the last; `--move-stride 1` is each."""
    stride = pytestconfig.getoption("move_stride")
    last = FILES + 4 if given is RENAME else 3  # intent, copies, commit, sources, intent
    steps = {*range(1, last + 1, stride), 1, 2, 3, *range(max(last - 4, 1), last + 1)}
    ends: Counter[str] = Counter()
    for step in sorted(steps):
        data = tmp_path / "data"
        await anyio.run_process(["cp", "-r", "--sparse=always", str(large), str(data)])
        async with open_files(engine, data) as session:
            (pid,) = processes_with(f"--data-dir={data}")
            store = HmsStore(session, "u1")
            files = MemoryFiles(Killing(store, pid, step), await store.limits())
            with suppress(Unavailable):
                await files.execute(parse_command(given))
        async with open_files(engine, data) as session:
            store = HmsStore(session, "u1")
            await MemoryFiles(store, await store.limits()).recover()
            page = await store.entries("", None, 1_000)
            assert page.cursor is None
            names = {entry.key.rpartition("/")[0] for entry in page.items}
            assert len(page.items) in ((FILES,) if given is RENAME or names else (0,))
            assert len(names) <= 1
            ends[", ".join(names)] += 1
        shutil.rmtree(data)
    if given is RENAME:  # of a deletion, the first write says already that it is to be finished
        assert set(ends) == {"/memories/d", "/memories/e"}


ALONE = ("unshare", "--user", "--map-root-user", "--mount", "sh", "-c")


def can_mount() -> bool:
    """Whether this machine lets us have a small disk of our own."""
    try:
        return subprocess.run([*ALONE, "true"], capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


@pytest.mark.skipif(not can_mount(), reason="no mount namespace of our own on this machine")
def test_a_full_disk_loses_nothing_that_was_acknowledged(engine: Engine, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    environ = environment(engine, data)
    small = f'mount -t tmpfs -o size=140m tmpfs {data} && exec "$0" "$@"'
    with running(environ, tmp_path / "log", under=[*ALONE, small]) as gateway:
        client, other = gateway.client(), Client(gateway.http, "other")
        for one in (client, other):
            assert one.command("create", path="/memories/before", file_text="x" * 5_000)[0]
        fill = Path(f"/proc/{gateway.process.pid}/root{data}/fill")
        with suppress(OSError), fill.open("wb", buffering=0) as file:
            while True:
                file.write(b"x" * 4_096)
        create = {"command": "create", "file_text": "y" * 20_000}
        statuses = {
            client.post("/memory/command", {**create, "path": f"/memories/{number}"}).status_code
            for number in range(5)
        }
        assert statuses <= {503, 504}
        third = Client(gateway.http, "third")
        assert third.post("/memory/command", {**create, "path": "/memories/a"}).status_code == 503
        assert other.command("view", path="/memories/before")[0]
        for child in gateway.children():
            with suppress(ProcessLookupError):  # a full disk may have ended it
                os.kill(child, signal.SIGKILL)
        fill.unlink()
        for one in (client, other):
            assert until_answered(one, {"command": "view", "path": "/memories/before"})
            assert one.command("create", path="/memories/after", file_text="z")[0]


@pytest.mark.skipif(not can_mount(), reason="no mount namespace of our own on this machine")
def test_a_data_folder_that_is_read_only_is_refused_at_start(
    engine: Engine, tmp_path: Path
) -> None:
    mount = f'mount -t tmpfs -o ro tmpfs {tmp_path} && exec "$0" "$@"'
    ended = subprocess.run(
        [*ALONE, mount, *command()],
        env=environment(engine, tmp_path),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 1
    assert "cannot be written to" in ended.stderr.splitlines()[-1]


def until_answered(client: Client, given: dict[str, str]) -> bool:
    """Send until the gateway is over its back-off; whether the answer was no error."""
    deadline = time.monotonic() + 30
    while (answer := client.post("/memory/command", given)).status_code != 200:
        assert time.monotonic() < deadline, answer.text
    return not answer.json()["is_error"]


def test_a_store_that_is_slow_to_open_is_waited_for_and_not_given_up(
    engine: Engine, tmp_path: Path
) -> None:
    gate, slow = tmp_path / "gate", tmp_path / "slow-hms-mcp"
    os.mkfifo(gate)
    slow.write_text(
        f'#!/bin/sh\n[ "$1" = --version ] || read -r _ < {gate}\nexec {engine.path} "$@"\n'
    )
    slow.chmod(0o700)
    environ = environment(engine, tmp_path / "data", HMS_GATEWAY_ACQUIRE_SECONDS="0.3")
    with running({**environ, "HMS_MCP_BIN": str(slow)}, tmp_path / "log") as gateway:
        client = gateway.client()
        for _ in range(3):
            answer = client.post("/memory/command", {"command": "view", "path": "/memories"})
            assert (answer.status_code, answer.json()["code"]) == (503, "still_opening")
        assert len(gateway.children()) == 1
        gate.write_text("go\n")
        assert until_answered(client, {"command": "view", "path": "/memories"})


@pytest.mark.parametrize(("kind", "times"), [("stores", 500), ("sessions", 50)])
def test_openings_and_failures_leave_nothing(
    engine: Engine, tmp_path: Path, kind: str, times: int
) -> None:
    script = Path(__file__).with_name("reopening.py")
    arguments = [kind, str(engine.path), str(tmp_path), str(times)]
    done = subprocess.run([sys.executable, script, *arguments], stdout=subprocess.PIPE, check=True)
    figures = json.loads(done.stdout.splitlines()[-1])
    before, after = Counter(figures["before"]), Counter(figures["after"])
    grown_kib = after.pop("kib") - before.pop("kib")
    assert after <= before
    assert grown_kib < 20_000


@pytest.mark.anyio
async def test_a_store_that_a_dying_engine_still_holds_is_waited_for(
    engine: Engine, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pool = Pool(embedded(engine.path, Settings(data_dir=tmp_path), {}), acquire_seconds=30)
    opened: list[MemoryFiles] = []

    async def use() -> None:
        async with pool.lease("n") as files:
            opened.append(files)

    async with pool, anyio.create_task_group() as tasks, stored(engine, tmp_path, "n"):
        tasks.start_soon(use)
        with anyio.fail_after(30):
            while "store_locked" not in caplog.text:  # noqa: ASYNC110
                await anyio.sleep(0.01)
        assert not opened
    assert len(opened) == 1
    assert pool.stats()["failed"] == 0


@pytest.mark.anyio
async def test_fifty_first_requests_start_one_engine_while_it_is_evicted_too(
    engine: Engine, tmp_path: Path
) -> None:
    settings = Settings(data_dir=tmp_path)
    async with Pool(embedded(engine.path, settings, {}), max_connections=1) as pool:

        async def use(name: str) -> None:
            async with pool.lease(name):
                pass

        for _ in range(10):
            async with anyio.create_task_group() as tasks:
                for _ in range(50):
                    tasks.start_soon(use, "a")
                tasks.start_soon(use, "b")
        opened = pool.stats()["opened"]
    # each round: `a` while `b` has the room, then `b`
    assert opened <= 21


def test_two_hundred_namespaces_share_eight_connections(serve: Serve) -> None:
    with serve(max_connections=8, acquire_seconds=30) as gateway:

        def live(number: int) -> bool:
            client = gateway.client(f"user-{number}@example")
            token = f"token{number}word"
            return (
                client.command("create", path="/memories/a", file_text=token)[0]
                and client.command("view", path="/memories/a")[1].endswith(f"\t{token}")
                and [result["excerpt"] for result in client.recall("token", 50)] in ([], [token])
                and [result["excerpt"] for result in client.recall(token, 50)] == [token]
            )

        with ThreadPoolExecutor(16) as threads:
            assert all(threads.map(live, range(200)))


@pytest.fixture
def restarting(engine: Engine, tmp_path: Path) -> Iterator[str]:
    """A shared engine that is killed and started again, again and again, until the test ends."""
    port, is_over = free_port(), threading.Event()
    chance, started = random.Random(), threading.Event()

    def run() -> None:
        while not is_over.is_set():
            with shared_engine(engine, tmp_path / "stores", TOKEN, port=port) as (_, process):
                started.set()
                is_over.wait(chance.uniform(0.3, 1.5))
                process.kill()

    with ThreadPoolExecutor(1) as thread:
        running_engine = thread.submit(run)
        try:
            assert started.wait(30)
            yield f"http://127.0.0.1:{port}/mcp"
        finally:
            is_over.set()
        running_engine.result()


def test_two_gateways_lose_nothing_on_an_engine_that_keeps_dying(
    restarting: str, tmp_path: Path
) -> None:
    """Both edit the same file; their agents send again, under the same key, until it is done.

    They go in step: a file knows its last eight keys, so no more may write before one is repeated.
    """
    in_step = threading.Barrier(4)
    with ExitStack() as stack:
        gateways = [stack.enter_context(over(restarting, tmp_path)) for _ in range(2)]
        tools = [
            stack.enter_context(
                HolographicMemoryToolSync.connect(
                    gateway=str(gateway.http.base_url), namespace="n", total_seconds=120
                )
            )
            for gateway in gateways
        ]
        tools[0].call({"command": "create", "path": "/memories/a", "file_text": ""})

        def insert(first: int) -> None:
            edit = {"command": "insert", "path": "/memories/a", "insert_line": 0}
            for number in range(first, 200, in_step.parties):
                in_step.wait(150)
                tools[first % 2].call({**edit, "insert_text": f"n{number}"})

        with ThreadPoolExecutor(in_step.parties) as threads:
            list(threads.map(insert, range(in_step.parties)))
        text = tools[1].call({"command": "view", "path": "/memories/a"})
    lines = [line.partition("\t")[2] for line in text.split("\n")[1:]]
    assert Counter(lines) == Counter(f"n{number}" for number in range(200))
