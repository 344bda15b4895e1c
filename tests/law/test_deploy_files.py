"""The files of deploy/ say what the service says."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import re
from typing import Any

import pytest

from tests.support.deploy_files import COMPOSE, CONTAINER, NODES, PROXY_UNIT, UNIT, instruction
from tests.support.paths import DEPLOY
from voicemem.cli.proxy import proxy
from voicemem.cli.service import serve
from voicemem.cli.service_settings import SERVE_OPTIONS


@pytest.mark.parametrize("name", ["nginx.conf", "Caddyfile", "nodes.Caddyfile"])
def test_timeouts_outlast_keepalives(name: str) -> None:
    """A silent connection outlives the service's pings; one that is kept for reuse ends before the service ends it."""
    text = re.sub(r"#.*", "", (DEPLOY / name).read_text())
    silent = [float(value) for value in re.findall(r"read_timeout (\d+)s", text)]
    idle = [float(value) for value in re.findall(r"keepalive(?:_timeout)? (\d+)s", text)]
    assert silent
    assert idle
    assert min(silent) > 75 > max(idle)


VARIABLES = {str(option.envvar) for option in serve.params if getattr(option, "envvar", None)}


def test_the_files_set_what_there_is_to_set() -> None:
    """Every variable in them is one of the service's."""
    named = set(re.findall(r"VOICEMEM_\w+", UNIT + CONTAINER))
    assert named
    assert SERVE_OPTIONS
    assert [] == sorted(named - VARIABLES)


def test_the_unit_of_the_proxy_sets_what_there_is_to_set() -> None:
    """Every variable in it is one of the proxy's."""
    named = set(re.findall(r"VOICEMEM_\w+", PROXY_UNIT))
    assert named <= {str(option.envvar) for option in proxy.params if getattr(option, "envvar", None)}


def test_the_container_is_nobody_in_particular_and_keeps_its_store_outside() -> None:
    """Not root, a volume under the store's path, both ports, and a stop that drains."""
    assert "10001:10001" == instruction("USER")
    assert f"sqlite:{instruction('VOLUME')}/" in CONTAINER
    assert "8080 8765" == instruction("EXPOSE")
    assert "SIGTERM" == instruction("STOPSIGNAL")


def test_what_the_image_copies_is_there() -> None:
    """Every source of a COPY exists, and all that the package needs to be built is copied."""
    copied = [
        name for line in re.findall(r"^COPY (?!--from)(.*) \S+$", CONTAINER, re.MULTILINE) for name in line.split()
    ]
    assert {"pyproject.toml", "README.md", "LICENSE", "voicemem"} <= set(copied)
    assert [] == [name for name in copied if not (DEPLOY.parent / name).exists()]


SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]


def test_compose_sets_what_there_is_to_set() -> None:
    """Every variable of a node is one of the service's, and so is every one that the example of `.env` names."""
    example = (DEPLOY / "compose.env.example").read_text()
    named = set(re.findall(r"VOICEMEM_\w+", f"{[SERVICES[name]['environment'] for name in NODES]}{example}"))
    assert {"VOICEMEM_STORE", "VOICEMEM_ADMIN_KEY", "VOICEMEM_WEBHOOK_SECRET"} <= named
    assert [] == sorted(named - VARIABLES)


def test_compose_keeps_secrets_off_command_lines() -> None:
    """No command and no URL has one; each comes from the file that git ignores, and nothing starts without it."""
    commands = [service.get("command") for service in SERVICES.values()]
    assert [["migrate"]] == [command for command in commands if command is not None]
    for name in NODES:
        environment = SERVICES[name]["environment"]
        assert "postgresql://voicemem@postgres/voicemem" == environment["VOICEMEM_STORE"]
        secrets = [environment["PGPASSWORD"], environment["VOICEMEM_ADMIN_KEY"]]
        assert all(re.fullmatch(r"\$\{\w+:\?.*\}", value) for value in secrets)
        assert not environment["POSTGRES_PASSWORD"]
    assert "deploy/.env" in (DEPLOY.parent / ".gitignore").read_text().splitlines()


def test_compose_starts_things_in_their_order() -> None:
    """PostgreSQL, its schema, the nodes, and Caddy when they are ready."""
    waits = {name: service.get("depends_on", {}) for name, service in SERVICES.items()}
    assert {"condition": "service_healthy"} == waits["migrate"]["postgres"]
    for name in NODES:
        assert {"condition": "service_completed_successfully"} == waits[name]["migrate"]
        assert "/readyz" in SERVICES[name]["healthcheck"]["test"][-1]
        assert {"condition": "service_healthy"} == waits["caddy"][name]


def test_compose_gives_nodes_time_to_drain() -> None:
    """As long as systemd does."""
    (limit,) = re.findall(r"^TimeoutStopSec=(\d+)$", UNIT, re.MULTILINE)
    assert {f"{limit}s"} == {SERVICES[name]["stop_grace_period"] for name in NODES}


def test_compose_and_its_caddyfile_agree() -> None:
    """Both ports of all nodes are behind the proxy, which asks the REST port whether they are ready."""
    text = (DEPLOY / "nodes.Caddyfile").read_text()
    ports = [
        str(SERVICES[NODES[0]]["environment"][name]).split(":")[1] for name in ("VOICEMEM_REST", "VOICEMEM_INGEST")
    ]
    assert {f"{name}:{port}" for name in NODES for port in ports} == set(re.findall(r"node-\w+:\d+", text))
    assert f"health_uri /readyz\n\thealth_port {ports[0]}" in text
    (mounted,) = [one for one in SERVICES["caddy"]["volumes"] if one.endswith("/etc/caddy/Caddyfile:ro")]
    assert mounted.startswith("./nodes.Caddyfile:")


def test_the_image_can_use_postgresql() -> None:
    """It has the extra."""
    assert {"server", "postgres"} <= set(instruction("ARG").removeprefix("EXTRAS=").split(","))
