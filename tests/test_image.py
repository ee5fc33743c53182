"""The image and compose.yaml as far as they can be told without a build; deploy/image builds."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from hms_memory_gateway.engine import Engine
from hms_memory_gateway.engine_install import CRATE, RUST_MINIMUM

from .conftest import Gateway, Serve
from .ports import free_port
from .scripted_claude import scripted, use
from .test_cli import environment, running
from .test_readme import ROOT

DOCKERFILE = (ROOT / "Dockerfile").read_text()
AGENT = ROOT / "examples" / "agent.py"
HEALTHCHECK = ROOT / "deploy" / "image" / "healthcheck.py"
REMEMBERED = "What was remembered:\n/memories/customers/acme.md\n# Acme Corp\nPrefers email"


def run(
    *command: str | Path, environ: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        cwd=ROOT,
        env={"PATH": os.environ["PATH"], "NO_PROXY": "127.0.0.1", **(environ or {})},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def base(name: str) -> tuple[tuple[int, ...], str]:
    """The version and the Debian release of a base image."""
    (found,) = re.findall(rf"^ARG {name}=\w+:([\d.]+)-slim-(\w+)$", DOCKERFILE, re.MULTILINE)
    version, release = found
    return tuple(map(int, version.split("."))), release


def test_the_image_has_the_engine_that_the_gateway_installs() -> None:
    assert f"\nRUN cargo install {' '.join(CRATE)} --root /engine\n" in DOCKERFILE
    assert base("RUST")[0] >= RUST_MINIMUM


def test_the_engine_is_built_for_the_c_library_that_it_runs_on() -> None:
    assert base("RUST")[1] == base("PYTHON")[1]


def test_the_image_is_built_with_the_uv_of_the_lock() -> None:
    lock = tomllib.loads((ROOT / "uv.lock").read_text())
    (version,) = [one["version"] for one in lock["package"] if one["name"] == "uv"]
    assert re.findall(r"\buv==(\S+)", DOCKERFILE) == [version]


def test_what_the_image_copies_is_what_its_context_has() -> None:
    copies = re.findall(r"^COPY (?!--from)(.+) \S+$", DOCKERFILE, re.MULTILINE)
    copied = {path for sources in copies for path in sources.split()}
    allowed = re.findall("^!(.+)$", (ROOT / ".dockerignore").read_text(), re.MULTILINE)
    assert copied == set(allowed)
    assert all((ROOT / path).exists() for path in copied)


@pytest.fixture(scope="module")
def services() -> dict[str, str]:
    """Each service of compose.yaml, as compose itself has read it."""
    if not shutil.which("docker-compose"):
        pytest.skip("there is no docker-compose")
    profiles = ("--profile=shared", "--profile=monitoring")
    told = run("docker-compose", *profiles, "config")
    assert told.returncode == 0, told.stderr
    (block,) = re.findall(r"^services:\n(.+?)^\S", told.stdout, re.DOTALL | re.MULTILINE)
    parts = re.split(r"^  (\S+):\n", block, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def test_compose_has_the_sidecar_and_two_profiles(services: dict[str, str]) -> None:
    profiles = {
        name: "".join(re.findall(r"profiles:\n +- (\w+)", service))
        for name, service in services.items()
    }
    assert profiles == {
        "gateway": "",
        "agent": "",
        "engine": "shared",
        "shared-gateway": "shared",
        "shared-agent": "shared",
        "prometheus": "monitoring",
        "grafana": "monitoring",
    }


def test_no_service_can_do_more_than_it_needs(services: dict[str, str]) -> None:
    for name, service in services.items():
        assert "    read_only: true\n" in service, name
        assert re.search(r"    cap_drop:\n +- ALL\n", service), name
        assert re.search(r"    security_opt:\n +- no-new-privileges:true\n", service), name
        assert not re.search("privileged:|cap_add:|init:|user:", service), name


def test_nothing_but_a_screen_for_this_machine_is_published(services: dict[str, str]) -> None:
    assert [name for name, service in services.items() if "    ports:\n" in service] == ["grafana"]
    assert "127.0.0.1" in services["grafana"].split("    ports:\n")[1].split("volumes:")[0]


def test_compose_holds_no_secret(services: dict[str, str]) -> None:
    values = [
        value
        for service in services.values()
        for value in re.findall(r"(?:TOKEN|KEY): (.*)", service)
    ]
    assert values == ["null"] * 4


def test_the_health_check_tells_a_ready_gateway_from_another_answer(gateway: Gateway) -> None:
    port = str(gateway.http.base_url.port)
    environ = {"HMS_GATEWAY_PORT": port, "http_proxy": "http://127.0.0.1:1", "NO_PROXY": ""}
    assert run(sys.executable, "-I", HEALTHCHECK, environ=environ).returncode == 0
    assert run(sys.executable, "-I", HEALTHCHECK, port, "/healthz").returncode == 0
    other = run(sys.executable, "-I", HEALTHCHECK, port, "/memory")
    assert other.returncode == 1
    assert other.stderr.startswith("404 ")


def test_the_health_check_finds_a_gateway_that_listens_on_ipv6_alone(
    engine: Engine, tmp_path: Path
) -> None:
    environ = environment(engine, tmp_path / "data", HMS_GATEWAY_HOST="::1")
    with running(environ, tmp_path / "log") as gateway:
        port = str(gateway.http.base_url.port)
        checked = run(sys.executable, "-I", HEALTHCHECK, port, "/readyz")
    assert checked.returncode == 0, checked.stderr


def test_the_health_check_fails_where_nothing_listens() -> None:
    assert run(sys.executable, "-I", HEALTHCHECK, str(free_port()), "/readyz").returncode


def test_the_example_agent_remembers_and_can_be_run_again(serve: Serve) -> None:
    with serve(token="a-token") as gateway:
        environ = {"HMS_GATEWAY_URL": str(gateway.http.base_url), "HMS_GATEWAY_TOKEN": "a-token"}
        for _ in range(2):
            ended = run(sys.executable, AGENT, environ=environ)
            assert REMEMBERED in ended.stdout, ended.stderr


def test_the_example_agent_asks_claude_if_it_has_a_key(serve: Serve) -> None:
    turns = [[use("t1", "memory", command="create", path="/memories/acme.md", file_text="Acme\n")]]
    with serve() as gateway, scripted(turns) as (url, script):
        environ = {
            "HMS_GATEWAY_URL": str(gateway.http.base_url),
            "ANTHROPIC_BASE_URL": url,
            "ANTHROPIC_API_KEY": "x",
        }
        ended = run(sys.executable, AGENT, environ=environ)
    assert len(script.requests) == 2
    assert ended.stdout.endswith("Claude: Done.\nWhat was remembered:\n/memories/acme.md\nAcme\n")
