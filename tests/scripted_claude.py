"""A Messages endpoint on loopback that answers from a script, for the SDK's real tool runners."""

import json
import threading
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Use = dict[str, Any]


def use(identity: str, name: str, **given: object) -> Use:
    """A tool_use block."""
    return {"type": "tool_use", "id": identity, "name": name, "input": given}


class Script:
    """What Claude says in each turn, and what it was sent."""

    def __init__(self, turns: Sequence[Sequence[Use]]) -> None:
        self._turns = list(turns)
        self.requests: list[dict[str, Any]] = []

    def reply(self, request: dict[str, Any]) -> dict[str, Any]:
        """The next message of the script; a text when it is over."""
        number = len(self.requests)
        self.requests.append(request)
        is_over = number >= len(self._turns)
        return {
            "id": f"msg_{number}",
            "type": "message",
            "role": "assistant",
            "model": "claude-sonnet-5-5",
            "content": [{"type": "text", "text": "Done."}] if is_over else self._turns[number],
            "stop_reason": "end_turn" if is_over else "tool_use",
            "stop_sequence": None,
            "usage": {"input_tokens": 1, "output_tokens": 1},
        }

    @property
    def results(self) -> list[dict[str, Any]]:
        """All tool_result blocks that Claude was sent, in order."""
        return [
            block
            for request in self.requests[1:]
            for block in request["messages"][-1]["content"]
            if block["type"] == "tool_result"
        ]

    def told(self) -> list[tuple[str, bool, str]]:
        """Of each result the id, whether it is an error, and the text."""
        return [
            (result["tool_use_id"], result.get("is_error", False), _text(result["content"]))
            for result in self.results
        ]


def _text(content: str | list[dict[str, Any]]) -> str:
    return content if isinstance(content, str) else "".join(part["text"] for part in content)


@contextmanager
def scripted(turns: Sequence[Sequence[Use]]) -> Generator[tuple[str, Script]]:
    """Serve a script; yields the base URL for a client, and the script."""
    script = Script(turns)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            length = int(self.headers["content-length"])
            body = json.dumps(script.reply(json.loads(self.rfile.read(length)))).encode()
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            """Keep the test's output to itself."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", script
        finally:
            server.shutdown()
            thread.join()
