"""The real HAProxy with the configuration of `deploy/haproxy`, and peers that record for it."""

import os
import re
import shutil
import signal
import subprocess
import threading
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx2

from .conftest import until
from .ports import free_port
from .programs import program
from .test_cli import command

CONFIGURATION = Path(__file__).parents[1] / "deploy" / "haproxy" / "haproxy.cfg"


class HAProxy:
    """A running HAProxy, and the folder of its configuration."""

    def __init__(self, folder: Path, process: subprocess.Popen[bytes], ports: list[int]) -> None:
        self._folder = folder
        self._process = process
        self.port, self._operations_port = ports
        self.url = f"http://127.0.0.1:{self.port}"

    def up(self) -> set[str]:
        """The gateways that it takes for ready."""
        try:
            text = httpx2.get(
                f"http://127.0.0.1:{self._operations_port}/metrics", trust_env=False
            ).text
        except httpx2.TransportError:
            return set()
        found = re.findall(r'haproxy_server_status{proxy="(.+)",server="(.+)",state="UP"} 1', text)
        return {server for proxy, server in found if proxy == server}

    def reload(self, addresses: Mapping[str, str]) -> None:
        """Serve with other gateways, and with nothing of before."""
        before = self._workers()
        write_ring(self._folder, addresses)
        self._process.send_signal(signal.SIGUSR2)
        until(lambda: bool(self._workers()) and not before & self._workers())
        self.wait_for(addresses)

    def wait_for(self, names: Iterable[str]) -> None:
        """Until these are the gateways that are ready."""
        until(lambda: self.up() == set(names))

    def log(self) -> str:
        """All that it has logged."""
        return (self._folder / "log").read_text()

    def requests(self) -> list[tuple[str, str]]:
        """Backend and status of each request that it has logged."""
        return re.findall(r"^\S+ [A-Z]+ (\S+?)/\S+ (\d+) ", self.log(), re.MULTILINE)

    def wait_for_log(self, request_id: str) -> None:
        """Until a request is in the log."""
        until(lambda: f"{request_id} " in self.log())

    def _workers(self) -> set[str]:
        pid = self._process.pid
        return set(Path(f"/proc/{pid}/task/{pid}/children").read_text().split())


def write_ring(folder: Path, addresses: Mapping[str, str]) -> None:
    """What an operator does, by the same command."""
    gateways = [f"{name}={address}" for name, address in addresses.items()]
    subprocess.run(command("ring", "write", str(folder / "ring"), *gateways), check=True)


@contextmanager
def balancing(folder: Path, addresses: Mapping[str, str]) -> Generator[HAProxy]:
    """An HAProxy in front of these gateways, which it has looked at."""
    binary = program("haproxy", "apt-get install haproxy")
    folder.mkdir()
    shutil.copy(CONFIGURATION, folder)
    write_ring(folder, addresses)
    ports = [free_port(), free_port()]
    binds = [f"127.0.0.1:{port}" for port in ports]
    environ = {**os.environ, "BIND": binds[0], "OPERATIONS_BIND": binds[1]}
    files = ["-f", f"{folder}/haproxy.cfg", "-f", f"{folder}/ring/gateways.cfg"]
    with (
        (folder / "log").open("wb") as log,
        subprocess.Popen([binary, "-W", *files], env=environ, stdout=log, stderr=log) as process,
    ):
        try:
            proxy = HAProxy(folder, process, ports)
            until(lambda: process.poll() is not None or bool(proxy.up()))
            assert process.poll() is None, (folder / "log").read_text()
            yield proxy
        finally:
            process.terminate()


class Peer:
    """Stands for a gateway: says its name, and keeps what has reached it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.namespaces: list[list[str]] = []
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.address = f"127.0.0.1:{self.server.server_port}"

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        peer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(200)
                self.end_headers()
                if self.path != "/readyz":  # whoever checks does not read on
                    peer.namespaces.append(self.headers.get_all("X-Memory-Namespace") or [])
                    self.wfile.write(peer.name.encode())

            def do_POST(self) -> None:
                """Take all of the request, and hang up; unless it is about the store itself."""
                self.rfile.read(int(self.headers["Content-Length"]))
                peer.namespaces.append(self.headers.get_all("X-Memory-Namespace") or [])
                if self.path.endswith("/compact"):
                    self.send_response(200)
                    self.end_headers()
                    self.wfile.write(peer.name.encode())

            def log_message(self, *arguments: object) -> None:
                """Say nothing."""

        return Handler


@contextmanager
def peers(*names: str) -> Generator[dict[str, Peer]]:
    """Peers that serve."""
    made = {name: Peer(name) for name in names}
    threads = [threading.Thread(target=one.server.serve_forever) for one in made.values()]
    for thread in threads:
        thread.start()
    try:
        yield made
    finally:
        for peer in made.values():
            peer.server.shutdown()
            peer.server.server_close()
        for thread in threads:
            thread.join()


def addresses(made: Mapping[str, Peer]) -> dict[str, str]:
    """The addresses of peers."""
    return {name: peer.address for name, peer in made.items()}
