"""The files of deploy/ say what the service says."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import re

import pytest

from tests.support.deploy_files import CONTAINER, UNIT, instruction
from tests.support.paths import DEPLOY
from voicemem.cli.service import SERVE_OPTIONS, serve


@pytest.mark.parametrize("name", ["nginx.conf", "Caddyfile"])
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
