"""Reading the inputs of Claude's tool calls, and the sentences for those that are malformed."""

import math
from typing import Any

import pytest
from anthropic.types.beta import BetaMemoryTool20250818Param, BetaToolParam
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]  # comes with mcp
from pydantic import TypeAdapter

from hms_memory_tool.commands import (
    MEMORY_TOOL,
    RECALL_TOOL,
    Create,
    Delete,
    Insert,
    Rename,
    StrReplace,
    View,
    parse_command,
    parse_recall,
)
from hms_memory_tool.errors import Refused

PATH = "/memories/a.md"
COMPLETE: dict[str, dict[str, Any]] = {
    "view": {"path": PATH, "view_range": [1, 2]},
    "create": {"path": PATH, "file_text": "x"},
    "str_replace": {"path": PATH, "old_str": "a", "new_str": "b"},
    "insert": {"path": PATH, "insert_line": 1, "insert_text": "x"},
    "delete": {"path": PATH},
    "rename": {"old_path": PATH, "new_path": "/memories/b.md"},
}
OPTIONAL = {"view_range", "new_str"}
REQUIRED = [
    (command, field)
    for command, fields in COMPLETE.items()
    for field in fields
    if field not in OPTIONAL
]
TEXTS = [
    ("create", "file_text"),
    ("str_replace", "old_str"),
    ("str_replace", "new_str"),
    ("insert", "insert_text"),
]
STRINGS = [*(pair for pair in REQUIRED if pair[1] != "insert_line"), ("str_replace", "new_str")]
MARKER = "hunter2"  # no answer may have it in it
NUMBER = 987654321
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


def command_with(command: str, **changed: object) -> dict[str, object]:
    return {"command": command, **COMPLETE[command], **changed}


def refusal(given_input: object) -> str:
    with pytest.raises(Refused) as refused:
        parse_command(given_input)
    return str(refused.value)


def recall_refusal(given_input: object) -> str:
    with pytest.raises(Refused) as refused:
        parse_recall(given_input)
    return str(refused.value)


def should_be(field: str) -> str:
    return "should be a whole number" if field == "insert_line" else "should be a string"


def test_a_complete_input_becomes_its_command() -> None:
    assert [parse_command(command_with(command)) for command in COMPLETE] == [
        View(command="view", path=PATH, view_range=[1, 2]),
        Create(command="create", path=PATH, file_text="x"),
        StrReplace(command="str_replace", path=PATH, old_str="a", new_str="b"),
        Insert(command="insert", path=PATH, insert_line=1, insert_text="x"),
        Delete(command="delete", path=PATH),
        Rename(command="rename", old_path=PATH, new_path="/memories/b.md"),
    ]


@pytest.mark.parametrize(("command", "field"), REQUIRED)
def test_a_missing_or_null_field_is_named_with_what_it_should_be(command: str, field: str) -> None:
    without = command_with(command)
    del without[field]
    sentence = f"`{field}` is required for `{command}` and {should_be(field)}."
    assert refusal(without) == sentence
    assert refusal(command_with(command, **{field: None})) == sentence


@pytest.mark.parametrize(("command", "field"), STRINGS)
@pytest.mark.parametrize("value", [NUMBER, 0.5, True, [MARKER], {MARKER: MARKER}, MARKER.encode()])
def test_what_is_no_string_is_named_and_never_repeated(
    command: str, field: str, value: object
) -> None:
    assert refusal(command_with(command, **{field: value})) == f"`{field}` should be a string."


@pytest.mark.parametrize(
    "value",
    [
        # Other types, a boolean among them, which Python counts as an int
        *(MARKER, str(NUMBER), "1", "", True, False, [1], {MARKER: 1}),
        # Numbers that are not whole, or that no line could have
        *(1.5, math.inf, -math.inf, math.nan, 1e300, 2**63, -(2**63), 10**400),
    ],
)
def test_what_is_no_whole_number_is_named_and_never_repeated(value: object) -> None:
    told = refusal(command_with("insert", insert_line=value))
    assert told == "`insert_line` should be a whole number."


@pytest.mark.parametrize(
    ("value", "read"),
    [(0, 0), (7, 7), (-1, -1), (2.0, 2), (-0.0, 0), (2**63 - 1, 2**63 - 1)],
)
def test_a_whole_number_is_taken_with_or_without_a_point(value: float, read: int) -> None:
    command = parse_command(command_with("insert", insert_line=value))
    assert isinstance(command, Insert)
    assert command.insert_line == read
    assert type(command.insert_line) is int


@pytest.mark.parametrize(("command", "field"), TEXTS)
@pytest.mark.parametrize("text", ["\ud83d", "hi \ud83d", "\ude00\ud83d", f"{MARKER}\udfff"])
def test_half_of_a_surrogate_pair_is_refused_in_every_text(
    command: str, field: str, text: str
) -> None:
    told = refusal(command_with(command, **{field: text}))
    assert told.startswith(f"`{field}` has half of a surrogate pair")
    assert MARKER not in told
    told.encode()


@pytest.mark.parametrize(("command", "field"), TEXTS)
@pytest.mark.parametrize("text", ["", "\x00", "\r\n", "😀", " \u2028\x85", "a" * 100_000])
def test_any_other_text_is_kept_as_it_is(command: str, field: str, text: str) -> None:
    assert getattr(parse_command(command_with(command, **{field: text})), field) == text


def test_every_wrong_field_is_named_at_once() -> None:
    assert refusal({"command": "insert", "path": 1, "insert_line": "5"}) == (
        "`path` should be a string. `insert_line` should be a whole number. "
        "`insert_text` is required for `insert` and should be a string."
    )


@pytest.mark.parametrize("command", COMPLETE)
def test_unknown_fields_are_passed_over(command: str) -> None:
    extra = {"insert_lines": MARKER, "": None, "\ud83d": "\ud83d", "model_config": 1}
    assert parse_command(command_with(command) | extra) == parse_command(command_with(command))


@pytest.mark.parametrize(("command", "field"), [("view", "view_range"), ("str_replace", "new_str")])
def test_null_for_an_optional_field_is_the_same_as_leaving_it_out(command: str, field: str) -> None:
    without = command_with(command)
    del without[field]
    read = parse_command(without)
    assert read == parse_command(command_with(command, **{field: None}))
    assert getattr(read, field) is None


@pytest.mark.parametrize(
    "command",
    ["undo_edit", "View", " view", "", "\ud83d", MARKER, None, 1, True, ["view"], {"view": 1}],
)
def test_an_unknown_command_is_answered_with_the_six_that_there_are(command: object) -> None:
    expected = "`command` should be one of view, create, str_replace, insert, delete, rename."
    assert refusal({"command": command, "path": PATH}) == expected
    assert refusal({}) == expected


@pytest.mark.parametrize("given_input", [None, [], "view", 1, [("command", "view")]])
def test_an_input_that_is_no_object_is_refused(given_input: object) -> None:
    assert refusal(given_input).startswith("The input should be an object")
    assert recall_refusal(given_input).startswith("The input should be an object")


@given(st.sampled_from(REQUIRED), JSON)
def test_whatever_a_field_holds_is_read_as_it_is_or_refused_by_its_name(
    place: tuple[str, str], value: object
) -> None:
    command, field = place
    try:
        read = parse_command(command_with(command, **{field: value}))
    except Refused as refused:
        told = str(refused)
        assert told.startswith(f"`{field}` ") or "path" in field
        told.encode()
    else:
        assert getattr(read, field) == value


@given(st.dictionaries(st.sampled_from(["query", "k", "other"]), JSON))
def test_a_recall_is_read_within_its_bounds_or_refused_by_the_name_of_a_field(
    fields: dict[str, object],
) -> None:
    try:
        request = parse_recall(fields)
    except Refused as refused:
        assert str(refused).startswith(("`query` ", "`k` "))  # noqa: PT017 - both may happen
    else:
        assert request.query == fields["query"]
        assert 1 <= request.k <= 50


@pytest.mark.parametrize(("value", "read"), [(1, 1), (50, 50), (7.0, 7), (None, 5)])
def test_k_is_a_whole_number_from_1_to_50(value: object, read: int) -> None:
    assert parse_recall({"query": "x", "k": value}).k == read


def test_k_is_5_if_it_is_left_out() -> None:
    assert parse_recall({"query": "x"}).k == 5


@pytest.mark.parametrize("value", [0, 51, -1, NUMBER, -0.0])
def test_k_out_of_range_is_told_the_range(value: object) -> None:
    assert recall_refusal({"query": "x", "k": value}) == "`k` should be from 1 to 50."


@pytest.mark.parametrize("value", ["5", True, False, 2.5, math.inf, math.nan, 10**30, [5], {}])
def test_k_that_is_no_whole_number_is_refused(value: object) -> None:
    assert recall_refusal({"query": "x", "k": value}) == "`k` should be a whole number."


@pytest.mark.parametrize(
    "query",
    [
        # Nothing in it is syntax
        *("x", "DO NOT USE FIND /", '"unbalanced', "C++ (x", "don't", "a/b", "@tag #x 50%", "中文"),
        # As long as the engine allows, in bytes
        *("a" * 4_096, "é" * 2_048, "中" * 1_365 + "a"),
    ],
)
def test_a_query_is_taken_as_it_is(query: str) -> None:
    assert parse_recall({"query": query}).query == query


@pytest.mark.parametrize("query", ["", " ", "\n\t ", "\u3000\u2028"])
def test_a_blank_query_is_refused(query: str) -> None:
    assert recall_refusal({"query": query}).startswith("`query` should not be blank")


@pytest.mark.parametrize(("query", "size"), [("a" * 4_097, 4_097), ("é" * 2_049, 4_098)])
def test_a_query_over_the_limit_is_told_the_limit_and_its_own_size(query: str, size: int) -> None:
    told = recall_refusal({"query": query})
    assert told == f"`query` is {size} bytes, and a query is at most 4096 bytes."


@pytest.mark.parametrize("query", [None, NUMBER, True, [MARKER], {MARKER: 1}])
def test_a_query_that_is_no_string_is_named_and_never_repeated(query: object) -> None:
    required = "is required and " if query is None else ""
    assert recall_refusal({"query": query}) == f"`query` {required}should be a string."


def test_half_of_a_surrogate_pair_is_refused_in_a_query() -> None:
    assert recall_refusal({"query": "hi \ud83d"}).startswith("`query` has half of a surrogate pair")


def test_the_tools_have_the_shape_that_the_messages_api_takes() -> None:
    TypeAdapter(BetaMemoryTool20250818Param).validate_python(MEMORY_TOOL, strict=True)
    TypeAdapter(BetaToolParam).validate_python(RECALL_TOOL, strict=True)
    assert MEMORY_TOOL == {"type": "memory_20250818", "name": "memory"}
    Draft202012Validator.check_schema(RECALL_TOOL["input_schema"])


@pytest.mark.parametrize(
    ("request_input", "fits"),
    [
        ({"query": "x"}, True),
        ({"query": "x", "k": 1}, True),
        ({"query": "x", "k": 50, "more": None}, True),
        ({}, False),
        ({"query": ""}, False),
        ({"query": 5}, False),
        ({"query": "a" * 4_097}, False),
        ({"query": "x", "k": 0}, False),
        ({"query": "x", "k": 51}, False),
        ({"query": "x", "k": "5"}, False),
        ({"query": "x", "k": True}, False),
    ],
)
def test_the_schema_of_recall_allows_what_is_read(
    request_input: dict[str, object], fits: bool
) -> None:
    assert Draft202012Validator(RECALL_TOOL["input_schema"]).is_valid(request_input) is fits
    if fits:
        assert parse_recall(request_input).query == "x"
    else:
        assert recall_refusal(request_input).startswith(("`query` ", "`k` "))
