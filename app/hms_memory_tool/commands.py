"""The inputs that Claude sends, as models, and the sentence for an input that is none of them.

The fields are those of the `memory_20250818` tool; extra ones are passed over, and for an
optional field null means the same as leaving it out (the SDK fills in null).
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeAlias, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
)
from pydantic_core import ErrorDetails, PydanticCustomError

from .errors import Refused
from .paths import parse, parse_viewed
from .text import whole_number

MAX_RECALLED = 50  # the engine's own default for `k`
MAX_QUERY_BYTES = 4_096  # the engine's


def _whole(value: object) -> int:
    number = whole_number(value)
    if number is None:
        raise PydanticCustomError("whole_number", "should be a whole number")
    return number


def _text(value: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError:
        raise PydanticCustomError(
            "surrogate", "has half of a surrogate pair, which is no character: leave it out"
        ) from None
    return value


def _query(value: str) -> str:
    if not value.strip():
        raise PydanticCustomError("blank", "should not be blank: say what to look for")
    if (size := len(value.encode())) > MAX_QUERY_BYTES:
        raise PydanticCustomError(
            "too_long",
            "is {size} bytes, and a query is at most {most} bytes",
            {"size": size, "most": MAX_QUERY_BYTES},
        )
    return value


def _count(value: object) -> int:
    number = 5 if value is None else _whole(value)
    if not 1 <= number <= MAX_RECALLED:
        raise PydanticCustomError(
            "out_of_range", "should be from 1 to {most}", {"most": MAX_RECALLED}
        )
    return number


Whole = Annotated[int, BeforeValidator(_whole)]
Text = Annotated[str, AfterValidator(_text)]
# A bad path ends the validation with its own sentence: nothing else about the input matters then.
Path = Annotated[str, AfterValidator(parse), Field(description="`/memories` or a path below it")]
ViewedPath = Annotated[
    str,
    AfterValidator(parse_viewed),
    Field(description="`/memories` or a path below it, with or without a final `/`"),
]


class _Input(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)


class View(_Input):
    """Show a file with line numbers, or two levels of a directory with sizes."""

    command: Literal["view"]
    path: ViewedPath
    view_range: Any = Field(
        None,
        description="`[first, last]` lines to show, counted from 1; -1 as the last is the end",
        json_schema_extra={"type": ["array", "null"], "items": {"type": "integer"}},
    )


class Create(_Input):
    """Write a new file; an existing one is never overwritten."""

    command: Literal["create"]
    path: Path
    file_text: Text


class StrReplace(_Input):
    """Replace the only occurrence of a text in a file."""

    command: Literal["str_replace"]
    path: Path
    old_str: Text
    new_str: Text | None = None


class Insert(_Input):
    """Put lines after a line of a file; 0 is the top."""

    command: Literal["insert"]
    path: Path
    insert_line: Whole
    insert_text: Text


class Delete(_Input):
    """Delete a file, or a directory with everything under it."""

    command: Literal["delete"]
    path: Path


class Rename(_Input):
    """Move a file or a whole directory to a path where nothing is yet."""

    command: Literal["rename"]
    old_path: Path
    new_path: Path


class Recall(_Input):
    """Find the memory files most relevant to a question."""

    query: Annotated[
        Text,
        AfterValidator(_query),
        Field(
            description="What to look for, in plain words; the words that a note would contain "
            "work best",
            json_schema_extra={"minLength": 1, "maxLength": MAX_QUERY_BYTES},
        ),
    ]
    k: Annotated[
        int,
        BeforeValidator(_count),
        Field(
            description="The most files to return",
            json_schema_extra={"minimum": 1, "maximum": MAX_RECALLED},
        ),
    ] = 5


Command: TypeAlias = Annotated[
    View | Create | StrReplace | Insert | Delete | Rename, Field(discriminator="command")
]
COMMANDS: tuple[type[_Input], ...] = (View, Create, StrReplace, Insert, Delete, Rename)

MEMORY_TOOL = {"type": "memory_20250818", "name": "memory"}
RECALL_TOOL = {
    "name": "memory_recall",
    "description": (
        "Search the files under /memories by content and get the most relevant ones, best first, "
        "each with its path, a relevance score and the lines that match. Use it when you do not "
        "know which memory file holds something; then view or edit that file with the memory tool."
    ),
    "input_schema": {
        "type": "object",
        "properties": {
            name: {key: value for key, value in schema.items() if key != "title"}
            for name, schema in Recall.model_json_schema()["properties"].items()
        },
        "required": ["query"],
    },
}

_commands: TypeAdapter[Command] = TypeAdapter(Command)
COMMAND_NAMES = [get_args(model.model_fields["command"].annotation)[0] for model in COMMANDS]


def parse_command(given: object) -> Command:
    """Read the `input` of a `memory` tool_use block.

    Raises:
        Refused: it is not an object, a path is not allowed, or a field is missing or mistyped;
            the sentence names each such field and what it should be, never its value.
    """
    fields = _object(given)
    if not isinstance(fields.get("command"), str) or fields["command"] not in COMMAND_NAMES:
        raise Refused(f"`command` should be one of {', '.join(COMMAND_NAMES)}.")
    try:
        return _commands.validate_python(fields)
    except ValidationError as error:
        raise Refused(_sentences(error, fields, f" for `{fields['command']}`")) from None


def parse_recall(given: object) -> Recall:
    """Read the `input` of a `memory_recall` tool_use block.

    Raises:
        Refused: as `parse_command`; also for a blank or too long query, and for a `k` outside
            1 to 50.
    """
    fields = _object(given)
    try:
        return Recall.model_validate(fields)
    except ValidationError as error:
        raise Refused(_sentences(error, fields, "")) from None


def _object(given: object) -> Mapping[str, Any]:
    if not isinstance(given, Mapping):
        raise Refused('The input should be an object, such as {"command": "view", ...}.')
    return given


def _sentences(error: ValidationError, fields: Mapping[str, Any], whose: str) -> str:
    details = error.errors(include_url=False, include_input=False, include_context=False)
    return " ".join(_sentence(detail, fields, whose) for detail in details)


def _sentence(detail: ErrorDetails, fields: Mapping[str, Any], whose: str) -> str:
    field = str(detail["loc"][-1])
    expected = "should be a whole number" if field == "insert_line" else "should be a string"
    if fields.get(field) is None:
        return f"`{field}` is required{whose} and {expected}."
    reason = expected if detail["type"] == "string_type" else detail["msg"]
    return f"`{field}` {reason}."
