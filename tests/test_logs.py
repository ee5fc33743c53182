"""The log: its two forms, a line for each request, and what is never in it."""

import io
import json
import logging
from typing import Any

import pytest

from hms_memory_gateway import logs
from hms_memory_gateway.logs import Format

from .conftest import Gateway, Serve

pytestmark = pytest.mark.usefixtures("same_log")
logger = logging.getLogger("hms_memory_gateway.tests")


class Terminal(io.StringIO):
    """A stream that says that a person reads it."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("form", "stream", "is_json"),
    [
        ("auto", Terminal(), False),
        ("auto", io.StringIO(), True),
        ("json", Terminal(), True),
        ("text", io.StringIO(), False),
    ],
)
def test_it_is_text_for_people_and_json_for_machines(
    form: Format, stream: io.StringIO, is_json: bool
) -> None:
    logs.configure(form, "info", stream)
    with logs.about(request_id="r1"):
        logger.info("said %d", 1)
    logger.debug("not said")
    # A gateway of other tests may end a request meanwhile.
    (line,) = [line for line in stream.getvalue().splitlines() if "said" in line]
    if is_json:
        entry = json.loads(line)
        assert entry.pop("time").endswith("+00:00")
        assert entry == {
            "level": "INFO",
            "logger": "hms_memory_gateway.tests",
            "message": "said 1",
            "request_id": "r1",
        }
    else:
        assert line.endswith("INFO hms_memory_gateway.tests: said 1 [r1]")


def test_a_level_is_for_our_own_lines_and_the_last_call_counts() -> None:
    first, stream = io.StringIO(), io.StringIO()
    logs.configure("text", "error", first)
    logs.configure("text", "debug", stream)
    logger.debug("ours")
    logging.getLogger("mcp").debug("what the SDK sends")
    assert first.getvalue() == ""
    assert [line.rsplit(" ", 1)[-1] for line in stream.getvalue().splitlines()] == ["ours"]


def entries(gateway: Gateway, stream: io.StringIO) -> list[dict[str, Any]]:
    """The lines about requests."""
    assert gateway.http.get("/healthz").status_code == 200  # what came before has been written
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    return [line for line in lines if line["logger"] == "hms_memory_gateway.telemetry"]


def test_each_request_is_a_line_with_its_id(serve: Serve) -> None:
    stream = io.StringIO()
    logs.configure("json", "info", stream)
    with serve() as gateway:
        answer = gateway.client("zebra").post("/memory/command", {"command": "view"})
        gateway.http.get("/zebra/path?zebra=1")
        gateway.http.post("/memory/command", content=b"{}")
        gateway.http.get("/readyz")
        done, missing, nameless = entries(gateway, stream)
    assert done["request_id"] == answer.headers["x-request-id"]
    assert done["ms"] >= 0
    assert (done["method"], done["route"], done["status"]) == ("POST", "/memory/command", 200)
    assert done["bytes_out"] == len(answer.content)
    assert (missing["method"], missing["route"], missing["status"]) == ("other", "other", 404)
    assert (nameless["status"], nameless["code"]) == (400, "namespace_missing")
    assert "zebra" not in stream.getvalue()


def test_what_outlives_a_request_does_not_carry_its_id(serve: Serve) -> None:
    stream = io.StringIO()
    logs.configure("json", "info", stream)
    with serve() as gateway:
        gateway.client().command("view", path="/memories")
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    store = [line for line in lines if line["message"].startswith("store ")]
    assert len(store) >= 2
    assert all("request_id" not in line for line in store)
