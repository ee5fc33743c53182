"""Three real gateways behind a real HAProxy: whose store is where, and what a death costs."""

import subprocess
import threading
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx2

from hms_memory_gateway.engine import Engine
from hms_memory_gateway.namespaces import mapped
from hms_memory_gateway.ring import bucket, owners
from hms_memory_tool import HolographicMemoryToolSync

from .conftest import until
from .haproxy import HAProxy, balancing
from .ports import free_port
from .test_cli import Process, command, environment, running

NAMES = ["gateway-0", "gateway-1", "gateway-2"]
NAMESPACES = [f"user-{number}@example.com" for number in range(150)]
NAMESPACES += [f"user_{number}" for number in range(50)]


class Fleet:
    """Gateways with a folder each, which can be killed and come back at the same address."""

    def __init__(self, engine: Engine, folder: Path, names: Sequence[str]) -> None:
        self._folder = folder
        self._engine = engine
        self.addresses = {name: f"127.0.0.1:{free_port()}" for name in names}
        self._running: dict[str, tuple[ExitStack, Process]] = {}

    def start(self, name: str) -> None:
        """Start a gateway, and wait until it listens."""
        environ = environment(
            self._engine,
            self._folder / name,
            HMS_GATEWAY_PORT=self.addresses[name].partition(":")[2],
            HMS_GATEWAY_MAX_CONNECTIONS="100",
            HMS_GATEWAY_MAX_VIEW_CHARS="1000000",
        )
        stack = ExitStack()
        process = stack.enter_context(running(environ, self._folder / f"{name}.log"))
        self._running[name] = stack, process

    def kill(self, name: str) -> None:
        """End a gateway without a warning."""
        stack, gateway = self._running.pop(name)
        gateway.process.kill()
        stack.close()

    def stores(self, name: str) -> set[str]:
        """The stores on a gateway's disk."""
        return {one.name for one in (self._folder / name / "stores").glob("*")}

    def close(self) -> None:
        """End all gateways."""
        for stack, _ in self._running.values():
            stack.close()


@contextmanager
def fleet(engine: Engine, folder: Path, names: Sequence[str]) -> Generator[Fleet]:
    """Gateways that run."""
    made = Fleet(engine, folder, names)
    try:
        with ThreadPoolExecutor() as threads:
            list(threads.map(made.start, names))
        yield made
    finally:
        made.close()


def predicted(before: Sequence[str], after: Sequence[str]) -> dict[str, str]:
    """Who will own what changes hands, as the command says."""
    arguments = command("ring", "moves", "--from", *before, "--to", *after)
    given = "\n".join(NAMESPACES)
    done = subprocess.run(arguments, input=given, capture_output=True, text=True, check=True)
    rows = [line.split("\t") for line in done.stdout.splitlines()]
    return {namespace: new for namespace, _, new, _ in rows}


def view(proxy: HAProxy) -> Callable[[str], int]:
    """A request for each namespace, over a connection of its own."""

    def send(namespace: str) -> int:
        headers = {"X-Memory-Namespace": namespace}
        body = {"command": "view", "path": "/memories"}
        url = f"{proxy.url}/memory/command"
        return httpx2.post(url, headers=headers, json=body, timeout=60, trust_env=False).status_code

    return send


def test_each_namespace_has_one_store_and_a_new_gateway_gets_what_the_command_says(
    engine: Engine, tmp_path: Path
) -> None:
    added = "gateway-3"
    with (
        fleet(engine, tmp_path, [*NAMES, added]) as gateways,
        ThreadPoolExecutor(12) as threads,
    ):
        three = {name: gateways.addresses[name] for name in NAMES}
        with balancing(tmp_path / "haproxy", three) as proxy:
            proxy.wait_for(NAMES)
            for _ in range(2):
                assert set(threads.map(view(proxy), NAMESPACES)) == {200}
            ring = owners(NAMES)
            owned = {value: ring[bucket(value.encode())] for value in NAMESPACES}
            stores = {
                name: {mapped(value) for value in NAMESPACES if owned[value] == name}
                for name in NAMES
            }
            assert {name: gateways.stores(name) for name in NAMES} == stores
            assert gateways.stores(added) == set()

            proxy.reload(gateways.addresses)
            assert set(threads.map(view(proxy), NAMESPACES)) == {200}
            moved = predicted(NAMES, [*NAMES, added])
            assert {name: gateways.stores(name) for name in NAMES} == stores
            assert gateways.stores(added) == {mapped(value) for value in moved}
            assert set(moved.values()) == {added}
            assert 0.5 / 4 < len(moved) / len(NAMESPACES) < 1.5 / 4


class Agent:
    """Writes one line after the other, and knows what was acknowledged."""

    def __init__(self, url: str, namespace: str, is_over: threading.Event) -> None:
        self._tool = HolographicMemoryToolSync.connect(gateway=url, namespace=namespace)
        self._is_over = is_over
        self.acknowledged: list[str] = []
        self._progress = threading.Condition()

    def live(self) -> None:
        """Until it is over."""
        self._tool.call({"command": "create", "path": "/memories/a", "file_text": ""})
        while not self._is_over.is_set():
            line = f"n{len(self.acknowledged)}"
            insert = {"command": "insert", "insert_line": 0, "insert_text": line}
            told = self._tool.call({**insert, "path": "/memories/a"})
            assert "has been edited" in told
            with self._progress:
                self.acknowledged.append(line)
                self._progress.notify_all()

    def wait_for(self, more: int) -> None:
        """Until it has written this many lines more."""
        with self._progress:
            goal = len(self.acknowledged) + more
            assert self._progress.wait_for(lambda: len(self.acknowledged) >= goal, 30)

    def lines(self) -> Counter[str]:
        """What the file holds."""
        text = self._tool.call({"command": "view", "path": "/memories/a"})
        self._tool.close()
        return Counter(line.partition("\t")[2] for line in text.split("\n")[1:])


def settle(proxy: HAProxy, is_over: threading.Event) -> dict[str, list[Agent]]:
    """Three agents for each gateway, each with a namespace of its own."""
    ring = owners(NAMES)
    agents: dict[str, list[Agent]] = {name: [] for name in NAMES}
    for namespace in NAMESPACES:
        mine = agents[ring[bucket(namespace.encode())]]
        if len(mine) < 3:
            mine.append(Agent(proxy.url, namespace, is_over))
    return agents


def wait_for(agents: Iterable[Agent], more: int) -> None:
    """Until each has written this many lines more."""
    for agent in agents:
        agent.wait_for(more)


def test_a_gateway_that_is_killed_loses_nothing_and_nobody_else_notices(
    engine: Engine, tmp_path: Path
) -> None:
    is_over = threading.Event()
    with (
        fleet(engine, tmp_path, NAMES) as gateways,
        balancing(tmp_path / "haproxy", gateways.addresses) as proxy,
        ThreadPoolExecutor(9) as threads,
    ):
        proxy.wait_for(NAMES)
        agents = settle(proxy, is_over)
        first, *rest = agents.values()
        others = [agent for some in rest for agent in some]
        lives = [threads.submit(agent.live) for agent in (*first, *others)]
        try:
            wait_for((*first, *others), 10)
            gateways.kill(NAMES[0])
            # The others write on while it is away: none of them waits for its return.
            wait_for(others, 20)
            # Quick others alone would have it back before the first that asks for it is refused.
            until(lambda: (NAMES[0], "503") in proxy.requests())
            gateways.start(NAMES[0])
            wait_for(first, 5)
        finally:
            is_over.set()
        for life in lives:
            life.result()
        assert all(agent.lines() == Counter(agent.acknowledged) for agent in (*first, *others))
        requests = proxy.requests()
        assert {status for backend, status in requests if backend != NAMES[0]} == {"200"}
        assert {status for backend, status in requests if backend == NAMES[0]} >= {"200", "503"}
        assert {name: len(gateways.stores(name)) for name in NAMES} == dict.fromkeys(NAMES, 3)
