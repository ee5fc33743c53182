"""Who may call: token, Host, Origin, and where the gateway may listen."""

import socket
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest
from pydantic import ValidationError

from hms_memory_gateway.access import Access
from hms_memory_gateway.problems import CallerFault, HostRefused, OriginRefused, Unauthorized
from hms_memory_gateway.settings import Settings

from .conftest import Serve

TOKEN = "correct-horse-battery"
VIEW = {"command": "view", "path": "/memories"}


def test_a_token_is_asked_for_everywhere_but_on_health_routes(serve: Serve) -> None:
    with serve(token=TOKEN) as gateway:
        for method, path in (
            ("POST", "/memory/command"),
            ("POST", "/memory/recall"),
            ("POST", "/memory/tool-results"),
            ("GET", "/memory/tools"),
            ("GET", "/openapi.json"),
            ("GET", "/docs"),
            ("GET", "/metrics"),
            ("GET", "/no-such-route"),
        ):
            answer = gateway.http.request(method, path)
            assert answer.status_code == 401, path
            assert answer.json()["code"] == "unauthorized"
            assert answer.headers["www-authenticate"] == "Bearer"
        for path in ("/healthz", "/readyz"):
            assert gateway.http.get(path).status_code == 200


@pytest.mark.parametrize(
    ("authorization", "status"),
    [
        (f"Bearer {TOKEN}", 200),
        (f"bearer {TOKEN}", 200),
        (f"Bearer  {TOKEN}", 200),
        (f"Bearer {TOKEN}x", 401),
        (f"Bearer {TOKEN[:-1]}", 401),
        (f"Bearer {TOKEN.upper()}", 401),
        ("Bearer", 401),
        ("Bearer,", 401),
        (f"Basic {TOKEN}", 401),
        (TOKEN, 401),
        ("", 401),
        ("Bearer \xe9\xff", 401),
    ],
)
def test_only_the_exact_token_opens(serve: Serve, authorization: str, status: int) -> None:
    with serve(token=TOKEN) as gateway:
        headers = [
            (b"X-Memory-Namespace", b"n"),
            (b"Authorization", authorization.encode("latin-1")),
        ]
        assert (
            gateway.http.post("/memory/command", json=VIEW, headers=headers).status_code == status
        )


def test_a_wrong_token_is_refused_before_the_body_is_sent(serve: Serve) -> None:
    with serve(token=TOKEN) as gateway:
        sent = 0

        def body() -> Iterator[bytes]:
            nonlocal sent
            for _ in range(10_000):
                sent += 1_000
                yield b" " * 1_000

        try:
            answer = gateway.http.post("/memory/command", content=body())
        except httpx2.WriteError:
            pass  # closed while it was sending: as good an answer
        else:
            assert answer.status_code == 401


HEADS: list[tuple[dict[bytes, bytes], type[CallerFault] | None]] = [
    ({b"host": b"localhost:8080"}, None),
    ({b"host": b"127.0.0.1"}, None),
    ({b"host": b"[::1]:8080"}, None),
    ({b"host": b"LOCALHOST"}, None),
    ({b"host": b"memory:8080"}, None),  # in allowed_hosts
    ({b"host": b"memory.:8080"}, None),
    ({b"host": b"Memory."}, None),
    ({b"host": b"localhost.:8080"}, None),
    ({b"host": b"other.example:8080"}, None),  # written as Other.Example. there
    ({b"host": b"[fd00::5]:8080"}, None),
    ({b"host": b"[fd00::6]"}, None),
    ({b"host": b"[fd00::7]:8080"}, HostRefused),
    ({b"host": b"memory..:8080"}, HostRefused),
    ({b"host": b".:8080"}, HostRefused),
    ({b"host": b"memory.:8080", b"origin": b"http://memory.:8080"}, None),
    ({b"host": b"evil.example"}, HostRefused),
    ({b"host": b"localhost.evil.example"}, HostRefused),
    ({b"host": b"127.0.0.1.evil.example:8080"}, HostRefused),
    ({b"host": b""}, HostRefused),
    ({}, HostRefused),
    ({b"host": b"\xff"}, HostRefused),
    ({b"host": b"localhost:8080", b"origin": b"http://localhost:8080"}, None),
    ({b"host": b"localhost:8080", b"origin": b"http://localhost:3000"}, OriginRefused),
    ({b"host": b"localhost:8080", b"origin": b"https://evil.example"}, OriginRefused),
    ({b"host": b"localhost:8080", b"origin": b"null"}, OriginRefused),
]


@pytest.mark.parametrize(("headers", "fault"), HEADS)
def test_host_and_origin_have_to_be_ours(
    headers: dict[bytes, bytes], fault: type[CallerFault] | None
) -> None:
    access = Access(Settings(allowed_hosts="memory, Other.Example., FD00::5, [fd00::6], ., "))
    if fault is None:
        access.check("/memory/command", headers)
    else:
        with pytest.raises(fault):
            access.check("/memory/command", headers)
    access.check("/healthz", headers)


def test_the_address_that_it_listens_on_is_a_host_of_ours() -> None:
    access = Access(Settings(host="fd00::1", allow_unauthenticated=True))
    access.check("/memory/command", {b"host": b"[fd00::1]:8080"})


@pytest.mark.parametrize("twice", ["Host: localhost", f"Authorization: Bearer {TOKEN}"])
def test_a_head_that_says_a_thing_twice_is_refused(serve: Serve, twice: str) -> None:
    with serve(token=TOKEN) as gateway:
        url = gateway.http.base_url
        with socket.create_connection((url.host, url.port or 80), timeout=10) as connection:
            connection.sendall(
                f"GET /memory/tools HTTP/1.1\r\nHost: localhost\r\n{twice}\r\n"
                f"Authorization: Bearer {TOKEN}\r\n\r\n".encode()
            )
            status = connection.recv(4_096).split()[1]
        assert status == (b"403" if twice.startswith("Host") else b"401")


def test_a_name_that_it_listens_on_may_be_written_in_full() -> None:
    access = Access(Settings(host="Memory.Example.", allow_unauthenticated=True))
    access.check("/memory/command", {b"host": b"memory.example:8080"})


def test_any_host_is_answered_where_the_operator_says_so() -> None:
    access = Access(Settings(allowed_hosts="*"))
    access.check("/memory/command", {b"host": b"anything.example"})


def test_a_token_is_checked_whatever_the_host() -> None:
    access = Access(Settings(token=TOKEN))
    with pytest.raises(Unauthorized):
        access.check("/memory/command", {b"host": b"localhost"})


@pytest.mark.parametrize("host", ["127.0.0.1", "127.5.5.5", "::1", "localhost"])
def test_loopback_needs_no_token(host: str) -> None:
    assert Settings(host=host).is_loopback


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "memory.example", ""])  # noqa: S104
def test_another_address_needs_a_token_or_the_operators_word(host: str) -> None:
    with pytest.raises(ValidationError) as raised:
        Settings(host=host)
    assert "HMS_GATEWAY_TOKEN" in str(raised.value)
    assert "HMS_GATEWAY_ALLOW_UNAUTHENTICATED" in str(raised.value)
    Settings(host=host, token=TOKEN)
    Settings(host=host, allow_unauthenticated=True)


@pytest.mark.parametrize("token", ["", " ", "with space", "umläut-token", "line\nbreak"])
def test_a_token_that_no_header_can_carry_is_refused(token: str) -> None:
    with pytest.raises(ValidationError):
        Settings(token=token)


def test_a_token_shows_in_no_representation(tmp_path: Path) -> None:
    settings = Settings(token=TOKEN, data_dir=tmp_path)
    assert TOKEN not in repr(settings)
    assert TOKEN not in str(settings.model_dump())
