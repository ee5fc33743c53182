"""The ring: who owns a namespace, and what changes hands when gateways come and go."""

import subprocess
from collections import Counter
from io import BytesIO, TextIOWrapper
from pathlib import Path
from zlib import crc32

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from hms_memory_gateway.cli import main
from hms_memory_gateway.namespaces import store_name
from hms_memory_gateway.ring import BUCKETS, Change, RingInvalid, bucket, bucket_map, owners

from .test_cli import command

pytestmark = pytest.mark.usefixtures("same_log")
GATEWAYS = [f"gateway-{number}" for number in range(8)]

names = st.from_regex(r"[a-z0-9]([a-z0-9.-]{0,20}[a-z0-9])?", fullmatch=True)
rings = st.lists(names, min_size=1, max_size=6, unique=True)


@settings(max_examples=25)
@given(rings, names)
def test_a_gateway_that_is_added_takes_its_share_and_nothing_else_moves(
    gateways: list[str], name: str
) -> None:
    assume(name not in gateways)
    before, after = owners(gateways), owners([*gateways, name])
    moved = [new for old, new in zip(before, after, strict=True) if old != new]
    assert set(moved) == {name}
    share = BUCKETS / (len(gateways) + 1)
    assert 0.8 * share < len(moved) < 1.2 * share


@settings(max_examples=25)
@given(rings, st.data())
def test_what_a_removed_gateway_had_is_all_that_moves(
    gateways: list[str], data: st.DataObject
) -> None:
    assume(len(gateways) > 1)
    name = data.draw(st.sampled_from(gateways))
    before, after = owners(gateways), owners([one for one in gateways if one != name])
    for old, new in zip(before, after, strict=True):
        assert new == old if old != name else new in gateways


@settings(max_examples=25)
@given(rings)
def test_the_order_of_the_gateways_does_not_matter(gateways: list[str]) -> None:
    assert owners(gateways) == owners(gateways[::-1])


def test_shares_are_even() -> None:
    """Of buckets and of namespaces, numbered ones and addresses alike."""
    ring = owners(GATEWAYS)
    for values in (
        [f"user-{number}" for number in range(80_000)],
        [f"{number:x}@example.com" for number in range(80_000)],
    ):
        shares = Counter(ring[bucket(value.encode())] for value in values)
        assert set(shares) == set(GATEWAYS)
        assert max(shares.values()) < 1.1 * 10_000
        assert min(shares.values()) > 0.9 * 10_000


@given(st.binary(max_size=300))
def test_white_space_around_a_value_is_not_part_of_it(value: bytes) -> None:
    assert bucket(b" \t" + value + b"\t ") == bucket(value) < BUCKETS


def test_the_map_names_the_owner_of_each_bucket() -> None:
    lines = [line.split(" ") for line in bucket_map(GATEWAYS).splitlines()]
    assert lines == [[str(number), name] for number, name in enumerate(owners(GATEWAYS))]


def test_a_ring_once_made_stays_as_it_is() -> None:
    """Another function would send users to stores that are not theirs."""
    ring = owners(["gateway-0", "gateway-1", "gateway-2"])
    values = ["alice@example.com", "auth0|42", "bob", "user-1", "a,b"]
    assert [ring[bucket(value.encode())][-1] for value in values] == ["0", "0", "0", "1", "1"]
    assert crc32("".join(ring).encode()) == 3985840906


@pytest.mark.parametrize(
    "gateways",
    [[], ["a", "a"], ["A"], ["a b"], ["a\nb"], ["_any"], ["-a"], ["a-"], ["a" * 64], [""]],
)
def test_what_can_be_no_ring_is_refused(gateways: list[str]) -> None:
    with pytest.raises(RingInvalid):
        owners(gateways)


@pytest.mark.parametrize(
    "gateway",
    [
        *("a", "a=", "a=host", "a=:80", "a=host:port", "a=h:1 backup", "a=h:1\nb", "=h:1"),
        *("a=h:0", "a=h:65536", "a=h:99999", "a=h:-1", "a=h:\u0661", "a=h\xe9:1"),
        *("a=.:80", "a=..:80", "a=.h:80", "a=h..h:80", "a=h..:80", f"a={'h' * 64}:80"),
        *("a=[]:80", "a=[:]:80", "a=[1:2]:80", "a=[fg::1]:80", "a=[1.2.3.4]:80", "a=fe80::1:80"),
    ],
)
def test_a_gateway_without_a_name_or_an_address_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], gateway: str
) -> None:
    assert main(["ring", "write", str(tmp_path / "ring"), "b=h:1", gateway]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert not (tmp_path / "ring").exists()


def test_a_folder_that_cannot_be_written_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    assert main(["ring", "write", str(tmp_path / "file"), "a=h:1"]) == 1
    assert "file" in capsys.readouterr().err


def test_moves_lists_what_changes_hands_and_where_its_store_is() -> None:
    values = [f"user {number}@example.com" for number in range(300)]
    text = "\n".join([*values, "", ""]).encode()
    arguments = command("ring", "moves", "--from", "a", "b", "--to", "a", "b", "c")
    done = subprocess.run(arguments, input=text, capture_output=True, timeout=60, check=True)
    change = Change(["a", "b"], ["a", "b", "c"])
    moved = [move for value in values if (move := change.move(value))]
    assert done.stdout.decode().splitlines() == [
        "\t".join([one.namespace, one.before, "c", store_name([one.namespace.encode()], None)])
        for one in moved
    ]
    assert 60 < len(moved) < 140
    assert done.stderr.decode() == f"{len(moved)} of 300 namespaces change owner\n"


@pytest.mark.parametrize("line", [b"\xff", b"a" * 257, b"a\x00", b"x--" + b"0" * 32])
def test_a_line_that_is_no_namespace_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], line: bytes
) -> None:
    monkeypatch.setattr("sys.stdin", TextIOWrapper(BytesIO(b"alice\n" + line + b"\n")))
    assert main(["ring", "moves", "--from", "a", "--to", "b"]) == 2
    assert capsys.readouterr().err.startswith("Line 2 ")


def test_a_ring_without_a_command_says_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["ring"])
    with pytest.raises(SystemExit, match="0"):
        main(["ring", "--help"])
    assert {"write", "moves"} <= set(capsys.readouterr().out.split())
