"""Many at once: on one file, on one namespace, on many; through HTTP, over the real engine."""

from collections import Counter
from concurrent.futures import ThreadPoolExecutor

from .conftest import Client, Serve


def test_fifty_edits_of_one_file_are_all_there(client: Client) -> None:
    keys = [f"k{number:02}" for number in range(50)]
    client.command("create", path="/memories/a", file_text="\n".join(keys) + "\n")

    def edit(key: str) -> bool:
        return client.command(
            "str_replace", path="/memories/a", old_str=key, new_str=f"{key} done"
        )[0]

    with ThreadPoolExecutor(50) as threads:
        assert all(threads.map(edit, keys))
    text = client.command("view", path="/memories/a")[1]
    assert [line[7:] for line in text.split("\n")[1:]] == [f"{key} done" for key in keys]


def test_fifty_inserts_into_one_file_are_all_there_once(client: Client) -> None:
    client.command("create", path="/memories/a", file_text="")

    def insert(number: int) -> bool:
        return client.command(
            "insert", path="/memories/a", insert_line=0, insert_text=f"line {number}"
        )[0]

    with ThreadPoolExecutor(50) as threads:
        assert all(threads.map(insert, range(50)))
    lines = [line[7:] for line in client.command("view", path="/memories/a")[1].split("\n")[1:]]
    assert Counter(lines) == Counter(f"line {number}" for number in range(50))


def test_one_of_twenty_creates_of_a_path_wins(client: Client) -> None:
    def create(number: int) -> tuple[bool, str]:
        return client.command("create", path="/memories/a", file_text=f"by {number}")

    with ThreadPoolExecutor(20) as threads:
        answers = list(threads.map(create, range(20)))
    winners = [number for number, (is_ok, _) in enumerate(answers) if is_ok]
    assert len(winners) == 1
    assert {text for is_ok, text in answers if not is_ok} == {"File /memories/a already exists"}
    assert client.command("view", path="/memories/a")[1].endswith(f"\tby {winners[0]}")


def test_a_path_is_never_file_and_directory_however_they_race(client: Client) -> None:
    def create(number: int) -> tuple[bool, str]:
        path = f"/memories/r{number // 2}" + ("/below" if number % 2 else "")
        return client.command("create", path=path, file_text="x")

    with ThreadPoolExecutor(20) as threads:
        answers = list(threads.map(create, range(40)))
    for pair in range(20):
        assert sum(is_ok for is_ok, _ in answers[2 * pair : 2 * pair + 2]) == 1


def test_one_of_ten_renames_to_a_path_wins_and_no_file_is_lost(client: Client) -> None:
    for number in range(10):
        client.command("create", path=f"/memories/s{number}", file_text=str(number))

    def rename(number: int) -> bool:
        return client.command(
            "rename", old_path=f"/memories/s{number}", new_path="/memories/target"
        )[0]

    with ThreadPoolExecutor(10) as threads:
        assert sum(threads.map(rename, range(10))) == 1
    assert len(client.command("view", path="/memories")[1].split("\n")) == 12


def test_fifty_first_requests_start_one_engine(serve: Serve) -> None:
    """A second engine on the store would be refused by its lock, and the request with it."""
    with serve() as gateway:
        client = gateway.client()
        with ThreadPoolExecutor(50) as threads:
            answers = threads.map(lambda _: client.command("view", path="/memories")[0], range(50))
            assert all(answers)


def test_many_namespaces_share_few_connections(serve: Serve) -> None:
    with serve(max_connections=2, acquire_seconds=30) as gateway:

        def live(number: int) -> bool:
            client = gateway.client(f"many-{number}")
            path, text = "/memories/a", f"text of {number}"
            created = client.command("create", path=path, file_text=text)[0]
            return created and client.command("view", path=path)[1].endswith(f"\t{text}")

        with ThreadPoolExecutor(8) as threads:
            assert all(threads.map(live, range(24)))
