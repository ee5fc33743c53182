"""The README is true: its session is run, its tables are compared with the code."""

import argparse
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest
from prometheus_client.parser import text_string_to_metric_families

from hms_memory_gateway.engine import Engine
from hms_memory_gateway.problems import STATUS, CallerFault, retry_headers, told
from hms_memory_gateway.settings import PREFIX, Settings

from .conftest import Gateway
from .ports import free_port
from .test_cli import environment, run
from .test_doctor import OF_THE_MACHINE

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)


def session() -> Iterator[tuple[str, str]]:
    """Each command of the console blocks with what it prints."""
    for block in blocks("console"):
        for step in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, output = step.partition("\n")
            yield command, output.strip()


def curl(command: str) -> str:
    """Run the command; where there is no curl, send what it would send."""
    if shutil.which("curl"):
        return subprocess.run(
            ["bash", "-c", command], capture_output=True, text=True, check=True
        ).stdout
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("-s", action="store_true")
    parser.add_argument("-H", action="append")
    parser.add_argument("-d")
    given = parser.parse_args(shlex.split(command)[1:])
    headers = [tuple(header.split(": ", 1)) for header in given.H]
    with httpx2.Client(trust_env=False) as http:
        return http.post(f"http://{given.url}", content=given.d, headers=headers).text


def test_the_session_answers_as_printed(gateway: Gateway) -> None:
    steps = list(session())
    assert len(steps) > 5
    for command, output in steps:
        assert "localhost:8080" in command
        sent = command.replace("localhost:8080", gateway.http.base_url.netloc.decode())
        assert curl(sent) == output


def test_the_doctor_says_what_is_printed(engine: Engine, tmp_path: Path) -> None:
    """But for numbers, and for what a machine has its own answer to."""
    (example,) = [block for block in blocks("text") if " doctor " in block]
    first, *printed = example.splitlines()
    assert first == "$ hms-memory-gateway doctor --data-dir /srv/memory"
    store = tmp_path / "stores" / "alice"
    store.mkdir(parents=True)
    for path, mode in ((store, 0o755), (store.parent, 0o700), (tmp_path, 0o700)):
        path.chmod(mode)
    environ = {**environment(engine, tmp_path), "HMS_GATEWAY_TOKEN": "short"}
    ended = run(environ, "doctor", "--port", str(free_port()))
    assert ended.returncode == 1
    said = ended.stdout.replace(str(tmp_path), "/srv/memory")
    said = said.replace(str(engine.path), "/usr/local/bin/hms-mcp")
    assert steady(said.splitlines()) == steady(printed)


def steady(lines: list[str]) -> list[str]:
    """What the doctor says anywhere: not its numbers, nor what it thinks of a machine."""
    kept: list[str] = []
    own = False
    for line in lines[:-1]:  # the last one counts
        name = line[9:25].strip()
        own = name in OF_THE_MACHINE or (own and not name)
        if not own:
            kept.append(re.sub(r"\d[\d.,]*", "0", line))
        elif name:
            kept.append(name)
    return kept


def rows(heading: str) -> list[list[str]]:
    """The cells of the table under a heading."""
    section = README.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    lines = [line for line in section.split("\n") if line.startswith("|")][2:]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


def test_every_setting_is_in_the_table_as_it_is() -> None:
    spoken = {"DATA_DIR": "the user's data folder", "MAX_FILE_BYTES": "the engine's limit"}
    expected = []
    for name, field in Settings.model_fields.items():
        default = field.get_default(call_default_factory=False)
        shown = "none" if default in (None, ()) else f"`{str(default).lower()}`"
        variable = name.upper()
        expected.append([f"`{PREFIX}{variable}`", spoken.get(variable, shown), field.description])
    assert [[cell.strip() for cell in row] for row in rows("Settings")] == expected


def test_every_error_is_in_the_table_as_it_is() -> None:
    expected = {
        (
            str(status.value),
            f"`{fault.code}`",
            "yes" if retry_headers(fault()) else "no",
            told(fault()),
        )
        for fault, status in STATUS.items()
        if fault is not CallerFault
    }
    assert {tuple(row) for row in rows("Errors")} == expected


def test_every_metric_is_in_the_table_as_it_is(gateway: Gateway) -> None:
    scraped = gateway.http.get("/metrics").text
    expected = []
    for family in text_string_to_metric_families(scraped):
        if family.name.startswith("hms_gateway_"):
            name = f"{family.name}_total" if family.type == "counter" else family.name
            labels = {label for sample in family.samples for label in sample.labels} - {"le"}
            shown = ", ".join(f"`{label}`" for label in sorted(labels)) or "none"
            expected.append([f"`{name}`", family.type, shown, family.documentation])
    assert sorted(rows("Metrics, traces and logs")) == sorted(expected)


def test_every_route_is_in_the_table(gateway: Gateway) -> None:
    documented = set(re.findall(r"`(?:GET|POST) (/[a-z/.{}-]+)`", README))
    served = set(gateway.http.get("/openapi.json").json()["paths"])
    assert documented == served | {"/openapi.json", "/docs"}


@pytest.mark.parametrize("command", ["hms-memory-gateway", "pytest -n auto"])
def test_the_two_commands_get_uv_themselves(command: str) -> None:
    install = "python3 -m venv .uv && .uv/bin/pip install -q uv && .uv/bin/uv run"
    assert f"{install} {command}\n" in blocks("sh")


def test_ci_runs_the_test_command_of_the_readme() -> None:
    ci = (ROOT / ".ci" / "run").read_text()
    (command,) = [block for block in blocks("sh") if block.endswith("uv run pytest -n auto\n")]
    assert command in ci
    for line in blocks("sh")[-1].splitlines():
        assert line in ci or "coverage" in line
