"""The package as users get it: the built wheel in clean environments, and the README's examples."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import uv

from hms_memory_gateway.engine import Engine

from .conftest import Gateway
from .scripted_claude import scripted, use
from .test_readme import ROOT, blocks

HEAVY = {"mcp", "fastapi", "starlette", "uvicorn", "snowballstemmer", "rich", "filelock"}
REMEMBER = [
    [use("t1", "memory", command="view", path="/memories")],
    [use("t2", "memory", command="create", path="/memories/acme.md", file_text="Acme: email\n")],
    [use("t3", "memory_recall", query="acme")],
]


def run(*command: object, environ: dict[str, str] | None = None) -> str:
    ended = subprocess.run(
        [str(part) for part in command],
        cwd=ROOT,
        env={**os.environ, **(environ or {})},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    run(uv.find_uv_bin(), "build", "--quiet", "--wheel", "--out-dir", folder)
    (built,) = folder.glob("*.whl")
    return built


def environment(folder: Path, wheel: Path, extra: str = "") -> Path:
    """A clean environment with the wheel in it; its Python."""
    run(uv.find_uv_bin(), "venv", "--quiet", "--python", sys.executable, folder)
    python = folder / "bin" / "python"
    run(uv.find_uv_bin(), "pip", "install", "--quiet", "--python", python, f"{wheel}{extra}")
    return python


def installed(python: Path) -> set[str]:
    listing = run(uv.find_uv_bin(), "pip", "list", "--quiet", "--python", python)
    return {line.split()[0].lower() for line in listing.splitlines()[2:]}


def test_a_thin_client_installs_what_the_sdk_installs_and_runs_the_examples(
    wheel: Path, tmp_path: Path, gateway: Gateway
) -> None:
    python = environment(tmp_path / "thin", wheel)
    assert not installed(python) & HEAVY
    namespace = gateway.client().namespace
    for example in (block for block in blocks("python") if "gateway=" in block):
        program = example.replace("http://localhost:8080", str(gateway.http.base_url))
        program = program.replace("alice@example.com", namespace)
        with scripted(REMEMBER) as (url, script):
            keys = {"ANTHROPIC_BASE_URL": url, "ANTHROPIC_API_KEY": "x"}
            printed = run(python, "-c", program, environ=keys)
        assert [identity for identity, _, _ in script.told()] == ["t1", "t2", "t3"]
        assert "/memories/acme.md" in script.told()[2][2]
    assert printed.startswith("/memories/acme.md 1.0 Acme: email")


def test_a_direct_client_runs_the_example_of_the_seed(
    wheel: Path, tmp_path: Path, engine: Engine
) -> None:
    """As it stands: an hms-mcp on PATH, and the memory in the user's own data folder."""
    python = environment(tmp_path / "direct", wheel, "[direct]")
    assert not installed(python) & (HEAVY - {"mcp", "starlette", "uvicorn", "snowballstemmer"})
    (example,) = [block for block in blocks("python") if "command=" in block]
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "hms-mcp").symlink_to(engine.path)
    with scripted(REMEMBER) as (url, script):
        environ = {
            "ANTHROPIC_BASE_URL": url,
            "ANTHROPIC_API_KEY": "x",
            "HOME": str(tmp_path),
            "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}",
        }
        run(python, "-c", example, environ=environ)
    assert [is_error for _, is_error, _ in script.told()] == [False, False, False]
    assert list(tmp_path.glob(".local/share/hms-mcp/stores/default"))


def test_the_service_installs_and_starts(wheel: Path, tmp_path: Path) -> None:
    python = environment(tmp_path / "service", wheel, "[gateway]")
    said = run(python.parent / "hms-memory-gateway", "--version")
    version = re.search(r"-(\d+\.\d+\.\d+)-", wheel.name)
    assert version
    assert said == f"hms-memory-gateway {version[1]}\n"


def test_the_wheel_has_both_packages_and_their_types(wheel: Path) -> None:
    names = run(sys.executable, "-m", "zipfile", "-l", wheel)
    for package in ("hms_memory_tool", "hms_memory_gateway"):
        assert f"{package}/__init__.py" in names
        assert f"{package}/py.typed" in names
    assert "tests/" not in names
    assert "licenses/LICENSE" in names
