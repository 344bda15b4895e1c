"""The manifests of deploy/kubernetes: accepted by Kubernetes' own schemas, and in line with the service."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import re
from typing import Any

import pytest
import yaml

from tests.support.deploy_files import CONTAINER, UNIT, instruction
from tests.support.needs import needs_module
from tests.support.paths import DEPLOY
from tests.support.routes import ROUTES
from tests.support.rows import every_row
from voicemem.cli.service import serve
from voicemem.compat import agora

needs_module("kubernetes_validate", "test")
import kubernetes_validate  # noqa: E402

FOLDER = DEPLOY / "kubernetes"
VERSIONS = ("1.29", "1.33", "1.37")
"""The oldest that is promised, one between, and the newest whose schemas are there."""
KUSTOMIZATION: dict[str, Any] = yaml.safe_load((FOLDER / "kustomization.yaml").read_text())
MANIFESTS: dict[str, dict[str, Any]] = {
    name: yaml.safe_load((FOLDER / name).read_text()) for name in KUSTOMIZATION["resources"]
}
POD: dict[str, Any] = MANIFESTS["deployment.yaml"]["spec"]["template"]["spec"]
(NODE,) = POD["containers"]
(MIGRATE,) = POD["initContainers"]
PORTS = {"rest": 8080, "ingest": 8765}
VARIABLES = {str(option.envvar) for option in serve.params if getattr(option, "envvar", None)}


@every_row("version", VERSIONS)
@every_row("name", MANIFESTS)
def test_kubernetes_takes_the_manifests(name: str, version: str) -> None:
    """Each has the fields that its kind has, and no others."""
    kubernetes_validate.validate(MANIFESTS[name], version, strict=True)


def test_a_misspelt_field_would_be_found() -> None:
    """The check does check."""
    wrong = MANIFESTS["service.yaml"] | {"spec": {"selectors": {}}}
    with pytest.raises(kubernetes_validate.ValidationError, match="selectors"):
        kubernetes_validate.validate(wrong, VERSIONS[-1], strict=True)


def test_every_manifest_is_applied() -> None:
    """`kubectl apply -k` leaves none of the folder out."""
    assert {path.name for path in FOLDER.glob("*.yaml")} == {"kustomization.yaml", *MANIFESTS}


def test_the_parts_find_each_other() -> None:
    """Labels and names agree: a selector that fits nothing is no error for Kubernetes."""
    labels = MANIFESTS["deployment.yaml"]["spec"]["template"]["metadata"]["labels"]
    selectors = [
        MANIFESTS["deployment.yaml"]["spec"]["selector"]["matchLabels"],
        MANIFESTS["service.yaml"]["spec"]["selector"],
        MANIFESTS["poddisruptionbudget.yaml"]["spec"]["selector"]["matchLabels"],
        MANIFESTS["networkpolicy.yaml"]["spec"]["podSelector"]["matchLabels"],
        POD["topologySpreadConstraints"][0]["labelSelector"]["matchLabels"],
    ]
    assert [labels] * len(selectors) == selectors
    assert [{"configMapRef": {"name": "voicemem"}}, {"secretRef": {"name": "voicemem"}}] == NODE["envFrom"]
    assert NODE["envFrom"] == MIGRATE["envFrom"]
    assert "voicemem" == MANIFESTS["configmap.yaml"]["metadata"]["name"]
    assert PORTS == {port["name"]: port["containerPort"] for port in NODE["ports"]}
    assert PORTS == {port["targetPort"]: port["port"] for port in MANIFESTS["service.yaml"]["spec"]["ports"]}
    assert {NODE["image"], MIGRATE["image"]} == {image["name"] for image in KUSTOMIZATION["images"]}


def test_settings_are_settings_and_secrets_are_elsewhere() -> None:
    """Every variable is one of the service's; the URL, the password and the key come from the secret alone."""
    settings = MANIFESTS["configmap.yaml"]["data"]
    assert [] == sorted(settings.keys() - VARIABLES)
    example = (FOLDER / "secrets.env.example").read_text()
    secret = set(re.findall(r"^#?([A-Z_]+)=", example, re.MULTILINE))
    assert {"VOICEMEM_STORE", "PGPASSWORD", "VOICEMEM_ADMIN_KEY"} <= secret
    assert [] == sorted(secret - VARIABLES - {"PGPASSWORD"})
    assert set() == secret & settings.keys()
    assert "deploy/kubernetes/secrets.env" in (DEPLOY.parent / ".gitignore").read_text().splitlines()


def test_a_node_drains_before_it_is_killed() -> None:
    """What precedes SIGTERM, and as long for the drain as systemd gives it."""
    (drain,) = re.findall(r"^TimeoutStopSec=(\d+)$", UNIT, re.MULTILINE)
    before = int(NODE["lifecycle"]["preStop"]["exec"]["command"][-1])
    assert before + int(drain) <= POD["terminationGracePeriodSeconds"]
    readiness = NODE["readinessProbe"]
    assert "/readyz" == readiness["httpGet"]["path"]
    assert {"/livez"} == {NODE[probe]["httpGet"]["path"] for probe in ("livenessProbe", "startupProbe")}


def test_updates_and_evictions_take_one_node_at_a_time() -> None:
    """There are always as many that are ready as there should be, but one."""
    spec = MANIFESTS["deployment.yaml"]["spec"]
    assert 2 <= spec["replicas"]
    assert {"maxSurge": 1, "maxUnavailable": 0} == spec["strategy"]["rollingUpdate"]
    assert 1 == MANIFESTS["poddisruptionbudget.yaml"]["spec"]["maxUnavailable"]


def test_containers_may_do_nothing_that_they_need_not() -> None:
    """The user of the image, no way to more rights, and nothing to write but /tmp."""
    user, group = instruction("USER").split(":")
    context = POD["securityContext"]
    assert (True, int(user), int(group)) == (context["runAsNonRoot"], context["runAsUser"], context["runAsGroup"])
    for container in (NODE, MIGRATE):
        assert {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        } == container["securityContext"]
    assert 'ENTRYPOINT ["/opt/voicemem/bin/voicemem"]' in CONTAINER
    assert (["migrate"], ["serve"]) == (MIGRATE["args"], NODE["args"])


def test_the_ingress_has_every_route_but_the_operators() -> None:
    """Clients reach all that is theirs; metrics, health checks and documents stay inside."""
    rules = MANIFESTS["ingress.yaml"]["spec"]["rules"][0]["http"]["paths"]
    served = {rule["path"]: rule["backend"]["service"]["port"]["name"] for rule in rules}
    assert "ingest" == served.pop("/v1/ingest")
    assert {"/v1", *agora.BASES} == set(served)
    inside = {route.path for route in ROUTES if not route.path.startswith("/v1/")}
    assert {"/livez", "/readyz", "/metrics"} <= inside
