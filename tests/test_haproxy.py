"""HAProxy as configured in `deploy/haproxy`: where requests go, and what becomes of them."""

import json
import shutil
import socket
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

import httpx2
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hms_memory_gateway.problems import problem
from hms_memory_gateway.ring import bucket, owners
from hms_memory_tool.errors import OutcomeUnknown, Unavailable

from .haproxy import CONFIGURATION, HAProxy, Peer, addresses, balancing, peers, write_ring
from .programs import program

NAMES = ["gateway-0", "gateway-1", "gateway-2"]
RING = owners(NAMES)


@contextmanager
def _balanced(folder: Path) -> Generator[tuple[HAProxy, dict[str, Peer]]]:
    with peers(*NAMES) as made, balancing(folder, addresses(made)) as proxy:
        proxy.wait_for(NAMES)
        yield proxy, made


@pytest.fixture(scope="module")
def balanced(
    tmp_path_factory: pytest.TempPathFactory,
) -> Generator[tuple[HAProxy, dict[str, Peer]]]:
    with _balanced(tmp_path_factory.mktemp("shared") / "haproxy") as both:
        yield both


def sent(port: int, *values: bytes) -> tuple[int, str]:
    """Send the headers byte for byte, as no client library would; status and body."""
    lines = [b"GET /memory/tools HTTP/1.1", b"Host: a", b"Connection: close"]
    lines += [b"X-Memory-Namespace:" + value for value in values]
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        connection.sendall(b"\r\n".join([*lines, b"", b""]))
        answer = b"".join(iter(lambda: connection.recv(65_536), b""))
    head, _, body = answer.decode().partition("\r\n\r\n")
    return int(head.split(" ")[1]), body


values = st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), min_size=1, max_size=256)
spaces = st.text(" \t", max_size=3)


@settings(max_examples=400, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(spaces, values, spaces)
def test_haproxy_and_the_ring_agree_on_the_owner_of_every_value(
    balanced: tuple[HAProxy, dict[str, Peer]], before: str, value: str, after: str
) -> None:
    """Commas, quotes, percent signs and white space included."""
    given = f"{before}{value}{after}".encode()
    assert sent(balanced[0].port, given) == (200, RING[bucket(given)])


@pytest.mark.parametrize("headers", [[], [b"a", b"b"], [b"a", b"a"], [b"", b"a"]])
def test_what_is_not_one_namespace_reaches_a_gateway_as_it_came(
    balanced: tuple[HAProxy, dict[str, Peer]], headers: list[bytes]
) -> None:
    """Which refuses it, if it is about memory: HAProxy does not choose among several values."""
    proxy, made = balanced
    status, name = sent(proxy.port, *headers)
    assert status == 200
    assert made[name].namespaces[-1] == [value.decode() for value in headers]


def test_haproxy_takes_every_address_that_a_ring_can_have(tmp_path: Path) -> None:
    addresses = [
        *("10.0.0.1:1", "[FE80::1]:80", "[::ffff:10.0.0.1]:65535"),
        *("my_host:080", "localhost.:80", f"{'h' * 63}.invalid.:80", "-:80"),
    ]
    write_ring(tmp_path, {f"gateway-{number}": one for number, one in enumerate(addresses)})
    shutil.copy(CONFIGURATION, tmp_path)
    files = ["-f", f"{tmp_path}/haproxy.cfg", "-f", f"{tmp_path}/ring/gateways.cfg"]
    checked = subprocess.run(
        [program("haproxy", "apt-get install haproxy"), "-c", *files],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert checked.returncode == 0, checked.stderr


def test_requests_about_no_namespace_are_shared(
    balanced: tuple[HAProxy, dict[str, Peer]],
) -> None:
    assert {sent(balanced[0].port)[1] for _ in range(6)} == set(NAMES)


def test_a_request_that_was_sent_is_never_sent_again(
    balanced: tuple[HAProxy, dict[str, Peer]],
) -> None:
    """Its peer dies over it, and HAProxy says what a gateway would say; to a client, too, that has
    been answered before and would keep its connection.
    """
    proxy, made = balanced
    headers = {"X-Memory-Namespace": "written@example.com", "X-Request-Id": "mine"}
    with httpx2.Client(base_url=proxy.url, headers=headers, trust_env=False) as http:
        assert http.get("/memory/tools").status_code == 200
        answer = http.post("/memory/command", json={})
    reached = [one for peer in made.values() for one in peer.namespaces]
    assert reached.count(["written@example.com"]) == 2
    assert answer.status_code == 504
    assert answer.json() == problem(OutcomeUnknown(""), "mine")
    assert "Retry-After" not in answer.headers
    assert answer.headers["X-Request-Id"] == "mine"


def test_the_namespaces_of_a_gateway_that_is_down_go_to_no_other(tmp_path: Path) -> None:
    with _balanced(tmp_path / "haproxy") as (proxy, made):
        made["gateway-1"].server.shutdown()
        made["gateway-1"].server.server_close()
        lost = [f"user-{n}" for n in range(60) if RING[bucket(b"user-%d" % n)] == "gateway-1"]
        headers = {"X-Memory-Namespace": lost[0], "X-Request-Id": "mine"}
        # At first HAProxy finds out by the request, then by its checks.
        for namespace in lost:
            headers["X-Memory-Namespace"] = namespace
            answer = httpx2.get(proxy.url, headers=headers, trust_env=False, timeout=30)
            assert answer.status_code == 503
            assert answer.headers["Retry-After"] == "1"
            assert answer.json() == problem(Unavailable(""), "mine")
        others = [one for name in ("gateway-0", "gateway-2") for one in made[name].namespaces]
        assert others == []
        assert {sent(proxy.port)[1] for _ in range(6)} == {"gateway-0", "gateway-2"}


def test_no_namespace_is_in_the_log(balanced: tuple[HAProxy, dict[str, Peer]]) -> None:
    proxy, _ = balanced
    url = f"{proxy.url}/namespaces/secret-name"
    headers = {"X-Memory-Namespace": "secret-name", "X-Request-Id": "logged"}
    assert httpx2.get(url, headers=headers, trust_env=False).status_code == 200
    proxy.wait_for_log("logged")
    assert "secret-name" not in proxy.log()


@pytest.mark.parametrize("given", [['","code":"'], ["ok", '","code":"'], ["ok", "ok"], [""]])
def test_an_id_that_a_gateway_would_not_take_is_replaced(
    balanced: tuple[HAProxy, dict[str, Peer]], given: list[str]
) -> None:
    """It becomes part of a JSON text."""
    headers = [("X-Memory-Namespace", "n"), *(("X-Request-Id", one) for one in given)]
    answer = httpx2.post(balanced[0].url, headers=headers, trust_env=False)
    assert json.loads(answer.text)["request_id"] == answer.headers["X-Request-Id"]
    assert len(answer.headers["X-Request-Id"]) == 36


# A header has no white space around its value, and clients resolve a path with dots.
in_path = values.filter(lambda value: value.strip(" ") == value and value not in (".", ".."))


@given(in_path)
def test_what_is_asked_about_a_store_goes_to_its_owner(
    balanced: tuple[HAProxy, dict[str, Peer]], value: str
) -> None:
    """The namespace is in the path then."""
    path = f"/namespaces/{quote(value, safe='')}/compact"
    answer = httpx2.post(balanced[0].url + path, trust_env=False)
    assert (answer.status_code, answer.text) == (200, RING[bucket(value.encode())])
