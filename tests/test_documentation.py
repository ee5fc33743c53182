"""The OpenAPI document: an example for every route and error, and the examples are true."""

from collections.abc import Iterator
from typing import Any

import pytest

from hms_memory_gateway.problems import STATUS, CallerFault, MethodRefused, RouteMissing

from .conftest import Client, Gateway, Serve

ROUTES = {
    ("post", "/memory/command"),
    ("post", "/memory/recall"),
    ("post", "/memory/tool-results"),
    ("get", "/memory/tools"),
    ("post", "/namespaces/{name}/compact"),
    ("get", "/healthz"),
    ("get", "/readyz"),
    ("get", "/metrics"),
}


@pytest.fixture(scope="module")
def document(gateway: Gateway) -> dict[str, Any]:
    answer: dict[str, Any] = gateway.http.get("/openapi.json").json()
    return answer


def operations(document: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield method, path, operation


def examples(content: dict[str, Any]) -> dict[str, Any]:
    (media,) = content.values()
    return {name: example["value"] for name, example in media["examples"].items()}


def test_every_route_is_described(document: dict[str, Any]) -> None:
    assert {(method, path) for method, path, _ in operations(document)} == ROUTES
    for _, _, operation in operations(document):
        assert operation["summary"]
        assert operation["description"]


def test_every_answer_and_every_error_has_an_example(document: dict[str, Any]) -> None:
    for _, path, operation in operations(document):
        for status, response in operation["responses"].items():
            assert examples(response["content"]), (path, status)


def test_every_fault_is_an_example_of_some_route(document: dict[str, Any]) -> None:
    shown = {
        (int(status), example["code"])
        for _, _, operation in operations(document)
        for status, response in operation["responses"].items()
        if "application/problem+json" in response["content"]
        for example in examples(response["content"]).values()
    }
    # a base class, and what happens where no route is
    elsewhere = {CallerFault, RouteMissing, MethodRefused}
    assert shown == {
        (status.value, fault.code) for fault, status in STATUS.items() if fault not in elsewhere
    }


def test_the_examples_are_what_the_gateway_answers(
    document: dict[str, Any], gateway: Gateway
) -> None:
    sent = 0
    for method, path, operation in operations(document):
        if "requestBody" not in operation:
            continue
        client: Client = gateway.client()
        answers = examples(operation["responses"]["200"]["content"])
        for name, body in examples(operation["requestBody"]["content"]).items():
            assert client.post(path, body).json() == answers[name], name
            sent += 1
        assert method == "post"
    assert sent > 10


@pytest.mark.parametrize("path", ["/memory/tools", "/healthz", "/readyz"])
def test_the_examples_of_plain_routes_are_true(
    document: dict[str, Any], gateway: Gateway, path: str
) -> None:
    content = document["paths"][path]["get"]["responses"]["200"]["content"]
    assert gateway.http.get(path).json() in examples(content).values()


def test_the_document_is_a_valid_openapi_document(document: dict[str, Any]) -> None:
    assert document["openapi"].startswith("3.1")
    assert "#/$defs" not in str(document)


def test_the_documentation_page_is_served(serve: Serve) -> None:
    with serve() as gateway:
        answer = gateway.http.get("/docs")
        assert answer.status_code == 200
        assert "openapi.json" in answer.text
