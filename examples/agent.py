"""An example agent: it holds one conversation and prints what was remembered.

Claude's part is a script, so that it runs anywhere; with ANTHROPIC_API_KEY set it is Claude's own.
HMS_GATEWAY_URL says where the gateway is, HMS_GATEWAY_TOKEN is its token if it has one.
"""

# ruff: noqa: T201 - it is a program that prints

import os
from collections.abc import Iterable
from typing import Any

import anthropic
import httpx2

from hms_memory_tool import HolographicMemoryToolSync

MODEL = "claude-sonnet-5-5"
ASK = "Acme Corp prefers email follow-ups. Remember it, and tell me how to reach them."
SCRIPT: list[dict[str, Any]] = [
    {"name": "memory", "input": {"command": "view", "path": "/memories"}},
    {
        "name": "memory",
        "input": {
            "command": "create",
            "path": "/memories/customers/acme.md",
            "file_text": "# Acme Corp\nPrefers email follow-ups.\n",
        },
    },
    {"name": "memory_recall", "input": {"query": "How do I reach Acme?"}},
]


def scripted(uses: Iterable[dict[str, Any]]) -> anthropic.Anthropic:
    """A client whose Claude uses one tool after the other, whatever it is told."""
    turns = enumerate(uses)

    def answer(_: httpx2.Request) -> httpx2.Response:
        number, use = next(turns, (None, None))
        block = {"type": "tool_use", "id": f"toolu_{number}", **use} if use else None
        message = {
            "id": f"msg_{number}",
            "type": "message",
            "role": "assistant",
            "model": MODEL,
            "content": [block or {"type": "text", "text": "By email."}],
            "stop_reason": "tool_use" if block else "end_turn",
            "stop_sequence": None,
            "usage": {"input_tokens": 1, "output_tokens": 1},
        }
        return httpx2.Response(200, json=message)

    transport = httpx2.MockTransport(answer)
    return anthropic.Anthropic(api_key="none", http_client=httpx2.Client(transport=transport))


def main() -> None:
    """Hold the conversation, then look at the memory without Claude."""
    has_key = bool(os.environ.get("ANTHROPIC_API_KEY"))
    gateway = os.environ.get("HMS_GATEWAY_URL", "http://localhost:8080")
    with (
        anthropic.Anthropic() if has_key else scripted(SCRIPT) as client,
        HolographicMemoryToolSync.connect(gateway=gateway, namespace="example") as memory,
    ):
        print(f"User: {ASK}")
        for message in client.beta.messages.tool_runner(
            model=MODEL,
            max_tokens=1024,
            messages=[{"role": "user", "content": ASK}],
            tools=[memory, memory.recall_tool()],
        ):
            for block in message.content:
                if block.type == "tool_use":
                    print(f"Claude uses {block.name}: {block.input}")
                elif block.type == "text":
                    print(f"Claude: {block.text}")
        print("What was remembered:")
        for found in memory.recall("Acme"):
            print(f"{found.path}\n{found.excerpt}")


if __name__ == "__main__":
    main()
