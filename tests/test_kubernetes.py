"""The manifests of `deploy/kubernetes`, as kustomize builds them: valid, contained, consistent."""

import json
import re
import subprocess
from collections.abc import Iterator
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import kubernetes_validate  # type: ignore[import-untyped]
import pytest
import yaml
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]

from hms_memory_gateway.access import Access
from hms_memory_gateway.ring import backends, owners
from hms_memory_gateway.settings import PREFIX, Settings

from .programs import program

FOLDER = Path(__file__).parents[1] / "deploy" / "kubernetes"
KUSTOMIZE = "go install sigs.k8s.io/kustomize/kustomize/v5@v5.7.1"
# Their custom resources, from the module that defines them.
OPERATOR = "github.com/prometheus-operator/prometheus-operator@v0.85.0"
VERSIONS = ["1.35", "1.36", "1.37"]
FLEETS = ["statefulset", "overlays/small", "overlays/production"]
ALL = ["sidecar", *FLEETS]
# What Kubernetes puts in the place of $(NAME).
POD = {"POD_NAMESPACE": "memory", "POD_IP": "10.1.2.3"}

MONITORING = (
    ("ServiceMonitor", "gateway"),
    ("PodMonitor", "haproxy"),
    ("PrometheusRule", "gateway"),
)

Manifest = dict[str, Any]


@cache
def built(overlay: str) -> tuple[Manifest, ...]:
    """The objects of an overlay."""
    kustomize = program("kustomize", KUSTOMIZE)
    done = subprocess.run([kustomize, "build", FOLDER / overlay], capture_output=True, check=True)
    return tuple(yaml.safe_load_all(done.stdout))


def the(overlay: str, kind: str, name: str) -> Manifest:
    """One object of an overlay."""
    (found,) = (
        one for one in built(overlay) if (one["kind"], one["metadata"]["name"]) == (kind, name)
    )
    return found


def pods(overlay: str) -> Iterator[Manifest]:
    """The specification of each kind of pod."""
    found = [one["spec"]["template"]["spec"] for one in built(overlay) if "template" in _spec(one)]
    assert found
    yield from found


def _spec(manifest: Manifest) -> Manifest:
    spec: Manifest = manifest.get("spec", {})
    return spec


def containers(pod: Manifest) -> list[Manifest]:
    """All containers of a pod."""
    return [*pod.get("initContainers", []), *pod["containers"]]


def environment(container: Manifest) -> dict[str, str]:
    """What a container finds in its environment; of a secret, a made-up value."""
    found: dict[str, str] = {}
    for one in container.get("env", []):
        value = one.get("value", POD.get(one["name"], "a-secret"))
        for name, known in POD.items():
            value = value.replace(f"$({name})", known)
        found[one["name"]] = value
    return found


def settings(container: Manifest) -> Settings:
    """The gateway's settings in a container; one that is none is refused."""
    given = {
        name.removeprefix(PREFIX).lower(): value
        for name, value in environment(container).items()
        if name.startswith(PREFIX)
    }
    return Settings(**given)  # type: ignore[arg-type]


def gateways(overlay: str) -> Iterator[tuple[Manifest, Settings]]:
    """Each pod that holds a gateway, and its settings."""
    for pod in pods(overlay):
        for container in containers(pod):
            if f"{PREFIX}HOST" in environment(container):
                yield pod, settings(container)


def address(argument: str) -> tuple[str, str]:
    """Name and address of a gateway, as the ring's command is given it."""
    name, _, found = argument.partition("=")
    return name, found.replace("$(POD_NAMESPACE)", POD["POD_NAMESPACE"])


@pytest.mark.parametrize("kubernetes", VERSIONS)
@pytest.mark.parametrize("overlay", ALL)
def test_every_object_is_valid(overlay: str, kubernetes: str) -> None:
    """Strictly: no field that this version does not have."""
    for manifest in built(overlay):
        if "monitoring.coreos.com" not in manifest["apiVersion"]:
            assert kubernetes_validate.validate(manifest, kubernetes, strict=True) == kubernetes


def test_the_validator_refuses_an_unknown_field() -> None:
    manifest = json.loads(json.dumps(the("statefulset", "StatefulSet", "gateway")))
    manifest["spec"]["template"]["spec"]["containers"][0]["readynessProbe"] = {}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(manifest, VERSIONS[-1], strict=True)


def test_what_monitors_is_as_the_operator_wants_it() -> None:
    go = program("go", "see the Go toolchain's own page")
    done = subprocess.run([go, "mod", "download", "-json", OPERATOR], capture_output=True)
    assert done.returncode == 0, done.stdout
    folder = Path(json.loads(done.stdout)["Dir"]) / "example" / "prometheus-operator-crd"
    for kind, name in MONITORING:
        definition = yaml.safe_load(
            (folder / f"monitoring.coreos.com_{kind.lower()}s.yaml").read_text()
        )
        schema = _closed(definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"])
        monitor = the("overlays/production", kind, name)
        validator = Draft202012Validator(schema)
        validator.validate(monitor)
        assert not validator.is_valid({**monitor, "spec": {**monitor["spec"], "selektor": {}}})


def test_the_rules_are_those_of_prometheus_and_find_their_targets() -> None:
    rules = (FOLDER.parent / "prometheus" / "rules.yml").read_text()
    assert the("overlays/production", "PrometheusRule", "gateway")["spec"] == yaml.safe_load(rules)
    (endpoint,) = the("overlays/production", "ServiceMonitor", "gateway")["spec"]["endpoints"]
    (job,) = [one["replacement"] for one in endpoint["relabelings"] if one["targetLabel"] == "job"]
    dashboards = FOLDER.parent / "grafana" / "dashboards"
    texts = [rules, *(one.read_text() for one in dashboards.glob("*.json"))]
    asked = re.findall(r'job=\\?"([^"\\]+)', "".join(texts))
    assert set(asked) == {job}


def _closed(schema: Any) -> Any:
    """The schema without room for fields that it does not name."""
    if isinstance(schema, list):
        return [_closed(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {name: _closed(value) for name, value in schema.items()}
    if schema.get("type") == "object" and "properties" in schema:
        closed.setdefault("additionalProperties", False)
    return closed


@pytest.mark.parametrize("overlay", ALL)
def test_pods_keep_to_the_restricted_standard_and_more(overlay: str) -> None:
    for pod in pods(overlay):
        assert pod["automountServiceAccountToken"] is False
        context = pod["securityContext"]
        assert context["runAsNonRoot"] is True
        assert context["runAsUser"] == context["fsGroup"] == 10001
        assert context["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not pod.keys() & {"hostNetwork", "hostPID", "hostIPC"}
        assert not any("hostPath" in volume for volume in pod.get("volumes", []))
        for container in containers(pod):
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            assert {"cpu", "memory"} <= container["resources"]["requests"].keys()
            assert "memory" in container["resources"]["limits"]


@pytest.mark.parametrize("overlay", ALL)
def test_gateways_have_valid_settings_and_the_time_to_stop(overlay: str) -> None:
    found = list(gateways(overlay))
    assert len(found) == 1
    for pod, given in found:
        assert pod["terminationGracePeriodSeconds"] > 2 * given.drain_seconds
        assert given.data_dir == Path("/data")
        images = {container["image"] for container in containers(pod)}
        assert f"hms-memory-gateway:{version('hms-memory-gateway')}" in images


@pytest.mark.parametrize("overlay", FLEETS)
def test_the_gateway_answers_for_the_names_that_reach_it(overlay: str) -> None:
    service = the(overlay, "Service", "memory")["metadata"]["name"]
    ((_, given),) = gateways(overlay)
    for host in (service, f"{service}.memory.svc", f"{service}.memory.svc.cluster.local:8080"):
        headers = {b"host": host.encode(), b"authorization": b"Bearer a-secret"}
        Access(given).check("/memory/command", headers)
    Access(given).check(
        "/metrics", {b"host": b"10.1.2.3:8080", b"authorization": b"Bearer a-secret"}
    )


@pytest.mark.parametrize("overlay", FLEETS)
def test_the_ring_has_one_gateway_for_each_replica(overlay: str) -> None:
    stateful = the(overlay, "StatefulSet", "gateway")["spec"]
    (ring,) = the(overlay, "Deployment", "haproxy")["spec"]["template"]["spec"]["initContainers"]
    assert ring["args"][:4] == ["hms-memory-gateway", "ring", "write", "/ring"]
    addresses = dict(address(one) for one in ring["args"][4:])
    assert addresses == {
        f"gateway-{number}": f"gateway-{number}.gateway.memory.svc.cluster.local:8080"
        for number in range(stateful["replicas"])
    }
    assert set(owners(addresses)) == set(addresses)
    assert backends(addresses)


@pytest.mark.parametrize("overlay", FLEETS)
def test_two_rings_are_never_used_at_once(overlay: str) -> None:
    assert the(overlay, "Deployment", "haproxy")["spec"]["strategy"] == {"type": "Recreate"}


@pytest.mark.parametrize("overlay", FLEETS)
def test_the_token_comes_from_a_secret_alone(overlay: str) -> None:
    assert not any(one["kind"] == "Secret" for one in built(overlay))
    (gateway,) = the(overlay, "StatefulSet", "gateway")["spec"]["template"]["spec"]["containers"]
    (token,) = (one for one in gateway["env"] if one["name"] == f"{PREFIX}TOKEN")
    assert token.keys() == {"name", "valueFrom"}
    assert token["valueFrom"].keys() == {"secretKeyRef"}


@pytest.mark.parametrize("overlay", FLEETS)
def test_each_gateway_has_a_volume_that_outlives_it(overlay: str) -> None:
    spec = the(overlay, "StatefulSet", "gateway")["spec"]
    assert [one["metadata"]["name"] for one in spec["volumeClaimTemplates"]] == ["data"]
    retention = spec["persistentVolumeClaimRetentionPolicy"]
    assert retention == {"whenDeleted": "Retain", "whenScaled": "Retain"}


@pytest.mark.parametrize("overlay", FLEETS)
def test_only_haproxy_reaches_gateways_and_only_agents_reach_haproxy(overlay: str) -> None:
    deny = the(overlay, "NetworkPolicy", "memory-deny")["spec"]
    assert deny["policyTypes"] == ["Ingress", "Egress"]
    assert not deny.keys() & {"ingress", "egress"}
    for kind, name in (("StatefulSet", "gateway"), ("Deployment", "haproxy")):
        labels = the(overlay, kind, name)["spec"]["template"]["metadata"]["labels"]
        assert deny["podSelector"]["matchLabels"].items() <= labels.items()
        assert the(overlay, "PodDisruptionBudget", name)["spec"]["maxUnavailable"] == 1
    callers = {
        name: the(overlay, "NetworkPolicy", name)["spec"]["ingress"]
        for name in ("gateway", "haproxy")
    }
    (to_gateway,), (to_haproxy,) = callers.values()
    assert to_gateway["from"] == [
        {"podSelector": {"matchLabels": {"app.kubernetes.io/name": "haproxy"}}}
    ]
    assert to_haproxy["from"] == [{"podSelector": {"matchLabels": {"hms-memory/agent": "true"}}}]


def test_the_sidecar_is_a_native_one_on_loopback_that_is_probed_by_command() -> None:
    (pod,) = pods("sidecar")
    (gateway,) = pod["initContainers"]
    assert gateway["restartPolicy"] == "Always"
    assert settings(gateway).is_loopback
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert gateway[probe].keys() & {"exec", "httpGet"} == {"exec"}
    assert the("sidecar", "Deployment", "agent")["spec"]["strategy"] == {"type": "Recreate"}
