"""The same command under the same key is done once: at once, again, after a crash."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace

import anyio
import pytest

from hms_memory_gateway.idempotency import Answer, Answers, key_name
from hms_memory_gateway.problems import KeyInvalid
from hms_memory_tool.commands import parse_command
from hms_memory_tool.errors import KeyReused, OutcomeUnknown, Refused, Unavailable
from hms_memory_tool.files import MemoryFiles
from hms_memory_tool.keys import FIELD, Attempt, Key, note_of, signed
from hms_memory_tool.store import Document, HmsStore, Limits

from .conftest import Client, OpenStore

LIMITS = Limits(32_768, 200, 50)


def keyed(client: Client, key: str, **command: object) -> tuple[int, dict[str, object]]:
    headers = {"X-Memory-Namespace": client.namespace, "Idempotency-Key": key}
    answer = client.http.post("/memory/command", json=command, headers=headers)
    return answer.status_code, answer.json()


def test_a_repeated_key_gets_the_first_answer_and_nothing_is_done_twice(client: Client) -> None:
    insert = {"command": "insert", "path": "/memories/a", "insert_line": 0, "insert_text": "x"}
    create = {"command": "create", "path": "/memories/a", "file_text": ""}
    for command, key in ((create, "k1"), (insert, "k2")):
        first = keyed(client, key, **command)
        assert first[1]["is_error"] is False
        assert keyed(client, key, **command) == first
    assert client.command("view", path="/memories/a")[1].count("\tx") == 1
    # a refusal is an answer, too: the file that is there by now changes nothing about it
    missing = {"command": "view", "path": "/memories/b"}
    refused = keyed(client, "k3", **missing)
    client.command("create", path="/memories/b", file_text="")
    assert keyed(client, "k3", **missing) == refused


def test_a_key_is_of_its_namespace_alone(client: Client, gateway: object) -> None:
    other = Client(client.http, client.namespace + "-other")
    create = {"command": "create", "path": "/memories/a", "file_text": "x"}
    assert keyed(client, "k", **create)[1]["is_error"] is False
    assert keyed(other, "k", **create)[1]["is_error"] is False
    assert other.command("view", path="/memories/a")[0]


def test_a_key_with_another_body_is_refused(client: Client) -> None:
    create = {"command": "create", "path": "/memories/a", "file_text": "x"}
    keyed(client, "k", **create)
    status, body = keyed(client, "k", **{**create, "file_text": "y"})
    assert (status, body["code"]) == (422, "idempotency_key_reused")
    assert keyed(client, "k", **create)[0] == 200


def test_many_at_once_under_one_key_are_done_once(client: Client) -> None:
    client.command("create", path="/memories/a", file_text="")

    def insert(_: int) -> tuple[int, dict[str, object]]:
        return keyed(
            client, "k", command="insert", path="/memories/a", insert_line=0, insert_text="x"
        )

    with ThreadPoolExecutor(20) as threads:
        answers = list(threads.map(insert, range(20)))
    assert all(answer == answers[0] for answer in answers)
    assert client.command("view", path="/memories/a")[1].count("\tx") == 1


def test_a_message_can_be_sent_again(client: Client) -> None:
    uses = [
        {"type": "tool_use", "id": f"t{number}", "name": "memory", "input": given}
        for number, given in enumerate(
            [
                {"command": "create", "path": "/memories/a", "file_text": "one\n"},
                {"command": "insert", "path": "/memories/a", "insert_line": 1, "insert_text": "2"},
                {"command": "rename", "old_path": "/memories/a", "new_path": "/memories/b"},
            ]
        )
    ]
    first = client.post("/memory/tool-results", {"content": uses}).json()
    assert client.post("/memory/tool-results", {"content": uses}).json() == first
    assert [result["is_error"] for result in first["content"]] == [False, False, False]
    assert client.command("view", path="/memories/b")[1].endswith("\tone\n     2\t2")


@pytest.mark.parametrize(
    "values", [[b""], [b" "], [b"a", b"a"], [b"x" * 256], [b"a b"], [b"a\x00"], [b"\xe9"]]
)
def test_a_key_that_is_none_is_refused(values: list[bytes]) -> None:
    with pytest.raises(KeyInvalid):
        key_name(values)


def test_a_key_is_taken_as_it_is() -> None:
    assert key_name([]) is None
    assert key_name([b" a-b_C.1 "]) == "a-b_C.1"
    assert key_name([b"x" * 255]) == "x" * 255


def answer(text: str = "") -> Answer:
    return {"content": text, "is_error": False}


@pytest.mark.anyio
async def test_answers_are_forgotten_within_their_bounds() -> None:
    async def work() -> Answer:
        return answer("x" * 10)

    by_count, by_size = Answers(max_answers=5), Answers(max_chars=50)
    for number in range(20):
        await by_count.once("n", Key(str(number), ""), work)
        await by_size.once("n", Key(str(number), ""), work)
        assert len(by_count) <= 5
        assert len(by_size) <= 5
    now = 0.0
    by_age = Answers(keep_seconds=10, clock=lambda: now)
    await by_age.once("n", Key("a", ""), work)
    for now, left in ((9.0, 2), (10.0, 2), (25.0, 1)):
        await by_age.once("n", Key(str(now), ""), work)
        assert len(by_age) == left


@pytest.mark.anyio
async def test_a_failure_is_not_kept_and_the_next_in_line_does_the_work() -> None:
    answers, proceed, calls = Answers(), anyio.Event(), 0

    async def work() -> Answer:
        nonlocal calls
        calls += 1
        mine = calls
        await proceed.wait()
        if mine == 1:
            raise Unavailable("gone")
        return answer(str(mine))

    got: list[object] = []

    async def ask() -> None:
        try:
            got.append((await answers.once("n", Key("k", "b"), work))["content"])
        except Unavailable as fault:
            got.append(type(fault))

    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            for _ in range(5):
                tasks.start_soon(ask)
            await anyio.lowlevel.checkpoint()
            proceed.set()
    assert sorted(map(str, got)) == ["2", "2", "2", "2", str(Unavailable)]
    assert calls == 2


def test_keys_in_metadata_are_the_last_ones_and_leave_room_for_others() -> None:
    metadata: dict[str, object] = {"theirs": "x" * 13_000}
    for number in range(40):
        metadata = dict(signed(metadata, Key(f"{number:024}", "b" * 24), str(number), 16_384))
    assert note_of(metadata, Key(f"{39:024}", "b" * 24)) == "39"
    assert note_of(metadata, Key(f"{0:024}", "b" * 24)) is None
    with pytest.raises(KeyReused):
        note_of(metadata, Key(f"{39:024}", "c" * 24))
    full = {"theirs": "x" * 15_500}
    assert signed(full, Key("k", "b"), "", 15_520) is full
    assert note_of({FIELD: 5}, Key("k", "b")) is None


class Cut:
    """A real store whose connection is lost after so many calls, their answers with it."""

    def __init__(self, store: HmsStore, after: int) -> None:
        self._store = store
        self._left = after
        self.limits = store.limits
        self.recall = store.recall
        self.documents = store.documents
        self.entries = store.entries
        self.get = store.get

    def _lost(self) -> bool:
        self._left -= 1
        return self._left < 0

    async def create(self, document: Document) -> str:
        if self._lost():
            raise Unavailable("not sent")
        version = await self._store.create(document)
        if self._left == 0:
            raise OutcomeUnknown("no answer")
        return version

    async def replace(self, document: Document, text: str) -> str:
        if self._lost():
            raise Unavailable("not sent")
        version = await self._store.replace(document, text)
        if self._left == 0:
            raise OutcomeUnknown("no answer")
        return version

    async def delete(self, keys: Sequence[str]) -> int:
        if self._lost():
            raise Unavailable("not sent")
        deleted = await self._store.delete(keys)
        if self._left == 0:
            raise OutcomeUnknown("no answer")
        return deleted


COMMANDS: list[dict[str, object]] = [
    {"command": "create", "path": "/memories/new", "file_text": "n"},
    {"command": "insert", "path": "/memories/d/a", "insert_line": 1, "insert_text": "i"},
    {"command": "str_replace", "path": "/memories/d/a", "old_str": "one", "new_str": "two"},
    {"command": "delete", "path": "/memories/d/a"},
    {"command": "delete", "path": "/memories/d"},
    {"command": "rename", "old_path": "/memories/d/a", "new_path": "/memories/r"},
    {"command": "rename", "old_path": "/memories/d", "new_path": "/memories/e"},
]


async def _texts(store: HmsStore) -> dict[str, str]:
    page = await store.documents("/memories/", None, 100)
    return {document.key: document.text for document in page.items}


async def _prepare(store: HmsStore) -> None:
    for name in "abc":
        await store.create(Document(f"/memories/d/{name}", f"one {name}\n"))


IDS = [str(one["command"]) for one in COMMANDS]


@pytest.mark.anyio
@pytest.mark.parametrize("has_key", [True, False])
@pytest.mark.parametrize("given", COMMANDS, ids=IDS)
async def test_a_command_cut_short_anywhere_is_done_once_when_it_is_tried_again(
    open_store: OpenStore, given: dict[str, object], has_key: bool
) -> None:
    """With a key the store alone remembers; without one the attempt does, over connections."""
    key = Key.of("k", given) if has_key else None
    async with open_store() as (store, _):
        await _prepare(store)
        whole = await MemoryFiles(store, LIMITS).execute(parse_command(given), Attempt(key))
        expected = await _texts(store)
    for after in range(12):
        async with open_store() as (store, _):
            await _prepare(store)
            attempt = Attempt(key)
            with suppress(Unavailable):
                cut = MemoryFiles(Cut(store, after), LIMITS)
                await cut.execute(parse_command(given), attempt)
            for _ in range(2 if has_key else 1):
                attempt = Attempt(key) if has_key else attempt
                again = await MemoryFiles(store, LIMITS).execute(parse_command(given), attempt)
                assert again == whole
                assert await _texts(store) == expected


@pytest.mark.anyio
@pytest.mark.parametrize("given", COMMANDS[3:], ids=IDS[3:])
async def test_a_command_cut_short_anywhere_leaves_the_old_state_or_the_new(
    open_store: OpenStore, given: dict[str, object]
) -> None:
    """What opens the store next knows nothing of the command."""
    states = []
    async with open_store() as (store, _):
        await _prepare(store)
        states.append(await _texts(store))
        await MemoryFiles(store, LIMITS).execute(parse_command(given))
        states.append(await _texts(store))
    ends = set()
    for after in range(12):
        async with open_store() as (store, session):
            await _prepare(store)
            with suppress(Unavailable):
                await MemoryFiles(Cut(store, after), LIMITS).execute(parse_command(given))
            await MemoryFiles(store, LIMITS).recover()
            texts = await _texts(store)
            assert texts in states
            ends.add(states.index(texts))
            assert (await session("stats", {}))["memories"] == len(texts)
    assert ends == {0, 1}


@pytest.mark.anyio
async def test_without_a_key_the_same_command_is_another_one(open_store: OpenStore) -> None:
    async with open_store() as (store, _):
        await _prepare(store)
        files = MemoryFiles(store, LIMITS)
        for given in COMMANDS[:1] + COMMANDS[2:4]:
            await files.execute(parse_command(given))
            with pytest.raises(Refused):
                await files.execute(parse_command(given))


@pytest.mark.anyio
async def test_a_file_made_after_a_deletion_is_not_deleted_by_its_repetition(
    open_store: OpenStore,
) -> None:
    async with open_store() as (store, _):
        await _prepare(store)
        files = MemoryFiles(store, LIMITS)
        given = {"command": "delete", "path": "/memories/d/a"}
        key = Key.of("k", given)
        await files.execute(parse_command(given), Attempt(key))
        while True:  # until the engine's clock has moved on
            await store.create(Document("/memories/d/a", "new"))
            made = (await store.entries("/memories/d/a", None, 1)).items[0].updated_at
            recorded = (await store.entries(key.record, None, 1)).items[0].updated_at
            if made > recorded:
                break
            await store.delete(["/memories/d/a"])
        assert (
            await files.execute(parse_command(given), Attempt(key))
            == "Successfully deleted /memories/d/a"
        )
        assert (await store.get("/memories/d/a")).text == "new"
        with pytest.raises(KeyReused):
            await files.execute(
                parse_command({**given, "path": "/memories/d"}), Attempt(replace(key, body="x"))
            )


@pytest.mark.anyio
@pytest.mark.parametrize(("seconds", "kept"), [(3_600, 6), (0, 1)])
async def test_records_of_deletions_are_seen_by_nobody_and_kept_for_a_while(
    open_store: OpenStore, seconds: float, kept: int
) -> None:
    async with open_store() as (store, session):
        files = MemoryFiles(store, LIMITS, record_seconds=seconds)
        for number in range(6):
            path = f"/memories/{number}"
            await store.create(Document(path, "x"))
            given = {"command": "delete", "path": path}
            await files.execute(parse_command(given), Attempt(Key.of(str(number), given)))
        listing = await files.execute(parse_command({"command": "view", "path": "/memories"}))
        assert listing.endswith("\n0B\t/memories")
        assert (await session("list", {"tag": "memory-file"}))["count"] == 0
        # those of the same millisecond of the engine's clock as the newest are kept as well
        assert kept <= (await session("stats", {}))["memories"] <= max(kept, 3)
