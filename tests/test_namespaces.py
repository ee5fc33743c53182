"""Namespaces: header rules, the mapping to stores, and users who never meet."""

import re
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hms_memory_gateway.namespaces import mapped, store_name
from hms_memory_gateway.problems import NamespaceInvalid, NamespaceMissing

from .conftest import Gateway, Serve

VIEW = {"command": "view", "path": "/memories"}
PRINTABLE = st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), min_size=1, max_size=256)
RESERVED = f"alice--{'0123456789abcdef' * 2}"


@pytest.mark.parametrize("value", ["u1", "a", "_", "-", "--help", "0", "x" * 64, "default", "a--b"])
def test_a_name_of_the_engine_is_used_as_it_is(value: str) -> None:
    assert mapped(value) == value


@pytest.mark.parametrize(
    ("value", "slug"),
    [
        ("alice@corp.example", "alice-corp-example"),
        ("Alice@corp.example", "alice-corp-example"),
        ("auth0|42", "auth0-42"),
        ("U024BE7LH", "u024be7lh"),
        ("..", ""),
        ("@@@", ""),
        ("x" * 65, "x" * 30),
        ("a/b", "a-b"),
        ("a b", "a-b"),
    ],
)
def test_any_other_name_gets_a_slug_and_a_hash(value: str, slug: str) -> None:
    assert re.fullmatch(rf"{re.escape(slug)}--[0-9a-f]{{32}}", mapped(value))


def test_the_hash_is_of_the_exact_bytes() -> None:
    """Fixed for ever: another hash would lose every such user's memory."""
    assert mapped("auth0|42") == "auth0-42--141ba0724f1ecd25c94cb22fc05a2013"
    assert mapped("..") == "--5ec1f7e700f37c3d0b2981d04855fc34"


@pytest.mark.parametrize("value", [RESERVED, f"--{'0' * 32}", f"{'x' * 30}--{'f' * 32}"])
def test_a_name_of_the_reserved_form_is_refused(value: str) -> None:
    with pytest.raises(NamespaceInvalid):
        mapped(value)


@given(PRINTABLE, PRINTABLE)
def test_no_two_names_share_a_store(one: str, two: str) -> None:
    try:
        stores = mapped(one), mapped(two)
    except NamespaceInvalid:
        return
    assert (stores[0] == stores[1]) == (one == two)
    assert all(re.fullmatch("[a-z0-9_-]{1,64}", store) for store in stores)


@given(PRINTABLE)
def test_the_store_of_a_name_can_be_named_by_that_name_alone(name: str) -> None:
    try:
        store = mapped(name)
    except NamespaceInvalid:
        return
    if store != name:
        with pytest.raises(NamespaceInvalid):
            mapped(store)


@pytest.mark.parametrize(
    "values",
    [
        [b""],
        [b" "],
        [b"\t "],
        [b"u1", b"u2"],
        [b"u1", b"u1"],
        [b"", b"u1"],
        [b"x" * 257],
        [b"u\x001"],
        [b"u\n1"],
        [b"u\x7f"],
        [b"u\xe9"],
        ["ü".encode()],
        [RESERVED.encode()],
    ],
)
def test_a_header_that_names_no_single_store_is_refused(values: list[bytes]) -> None:
    with pytest.raises(NamespaceInvalid):
        store_name(values, None)
    with pytest.raises(NamespaceInvalid):
        store_name(values, "me")


def test_a_missing_header_has_a_store_only_if_the_operator_says_so() -> None:
    with pytest.raises(NamespaceMissing):
        store_name([], None)
    assert store_name([], "me") == "me"
    assert store_name([b"u1"], "me") == "u1"


def test_white_space_around_a_value_is_not_part_of_it() -> None:
    assert store_name([b"  u1\t"], None) == "u1"
    assert store_name([b"x" * 256], None) != store_name([b"x" * 255], None)


@pytest.mark.parametrize("route", ["command", "recall", "tool-results"])
def test_every_memory_route_asks_for_a_namespace(gateway: Gateway, route: str) -> None:
    """Before the body is read: none is sent here."""
    for headers, code in (
        ([], "namespace_missing"),
        ([("X-Memory-Namespace", "")], "namespace_invalid"),
        ([("X-Memory-Namespace", "a"), ("x-memory-namespace", "b")], "namespace_invalid"),
        ([("X-MEMORY-NAMESPACE", RESERVED)], "namespace_invalid"),
    ):
        answer = gateway.http.post(f"/memory/{route}", headers=headers)
        assert (answer.status_code, answer.json()["code"]) == (400, code)


def test_the_header_alone_decides(gateway: Gateway) -> None:
    """Whatever its case; a namespace in the body or the query is passed over."""
    one, two = gateway.client(), gateway.client()
    one.command("create", path="/memories/a", file_text="x")
    body = {"command": "view", "path": "/memories/a", "namespace": one.namespace}
    assert not two.execute(body)[0]
    headers = {"x-MEMORY-namespace": one.namespace}
    answer = gateway.http.post(
        f"/memory/command?namespace={two.namespace}", json=body, headers=headers
    )
    assert answer.json()["is_error"] is False


def test_a_single_users_sidecar_may_have_a_default(serve: Serve) -> None:
    with serve(default_namespace="me@home") as gateway:
        assert gateway.http.post("/memory/command", json=VIEW).status_code == 200
        gateway.client("me@home").command("create", path="/memories/a", file_text="x")
        answer = gateway.http.post("/memory/command", json={**VIEW, "path": "/memories/a"})
        assert answer.json()["is_error"] is False
        headers = {"X-Memory-Namespace": ""}
        answer = gateway.http.post("/memory/command", json=VIEW, headers=headers)
        assert answer.status_code == 400


ALIKE = [
    "alice@corp.example",
    "alice_corp_example",
    "Alice@corp.example",
    "alice-corp.example",
    "alice-corp-example",
    "A" * 65,
    "a" * 65,
    "a" * 64,
    "default",
    "..",
    ".",
    "-x",
    "--namespace-arg",
    "stores/u1",
]


def test_names_that_look_alike_never_see_each_other(serve: Serve) -> None:
    """In `view` and in `recall`, while stores are closed and reopened for each other."""
    with serve(max_connections=3, acquire_seconds=30) as gateway:
        clients = {name: gateway.client(name) for name in ALIKE}
        words = {name: f"token{number}word" for number, name in enumerate(ALIKE)}
        for name, client in clients.items():
            assert client.command("create", path="/memories/a", file_text=words[name])[0]

        def look(name: str) -> tuple[str, list[str]]:
            found = [
                word
                for word in words.values()
                for result in clients[name].recall(word, 50)
                if word in result["excerpt"]
            ]
            return clients[name].command("view", path="/memories/a")[1], found

        with ThreadPoolExecutor(6) as threads:
            seen = dict(zip(ALIKE, threads.map(look, ALIKE), strict=True))
        for name, (text, found) in seen.items():
            assert text.endswith(f"\t{words[name]}")
            assert found == [words[name]]
