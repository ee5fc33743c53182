"""All of the conformance cases, over HTTP, against the real engine: answer, text and files."""

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from .conftest import ReadStore, Serve

CASES = json.loads(Path(__file__).with_name("conformance.json").read_text())
BY_NAME = {case["name"]: case for case in CASES}


@dataclass(frozen=True)
class Outcome:
    """What a case led to."""

    is_ok: bool
    text: str
    files: dict[str, str]


def expanded(step: dict[str, Any]) -> dict[str, Any]:
    """A step as it is sent: `repeat` and `tail` stand for a long text."""
    command = {name: value for name, value in step.items() if name not in ("repeat", "tail")}
    if "repeat" in step:
        part, times = step["repeat"]
        command["file_text"] = part * times + step.get("tail", "")
    return command


@pytest.fixture(scope="module")
def outcomes(
    serve: Serve, read_store: ReadStore, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Outcome]:
    """Run every case in a namespace of its own; read the files once the gateway has gone."""
    folder = tmp_path_factory.mktemp("conformance")
    names = {case["name"]: f"case-{index}" for index, case in enumerate(CASES)}

    with serve(data_dir=folder, max_connections=8) as gateway:

        def run(case: dict[str, Any]) -> tuple[bool, str]:
            client = gateway.client(names[case["name"]])
            for step in case["setup"]:
                is_ok, text = client.execute(expanded(step))
                assert is_ok, text
            return client.execute(expanded(case["command"]))

        with ThreadPoolExecutor(4) as threads:
            answers = list(threads.map(run, CASES))
    return {
        case["name"]: Outcome(*answer, read_store(folder, names[case["name"]]))
        for case, answer in zip(CASES, answers, strict=True)
    }


@pytest.mark.parametrize("name", list(BY_NAME))
def test_command_answers_as_the_case_says(outcomes: dict[str, Outcome], name: str) -> None:
    expect, outcome = BY_NAME[name]["expect"], outcomes[name]
    if expect["ok"] is not None:
        assert outcome.is_ok is expect["ok"], outcome.text
    if expect["text"] is not None:
        assert outcome.text == expect["text"]
    assert not outcome.text.startswith("Error: ")


@pytest.mark.parametrize(
    "name", [name for name, case in BY_NAME.items() if "files" in case["expect"]]
)
def test_files_are_afterwards_as_the_case_says(outcomes: dict[str, Outcome], name: str) -> None:
    expected, files = BY_NAME[name]["expect"]["files"], outcomes[name].files
    assert files.keys() == expected.keys()
    for path, text in expected.items():
        if isinstance(text, dict):
            assert len(files[path]) == text["len"]
        else:
            assert files[path] == text
