"""What stands in the files of deploy/."""

from __future__ import annotations

import re
from typing import Any

import yaml

from tests.support.paths import DEPLOY

PROXY_UNIT = (DEPLOY / "voicemem-proxy.service").read_text()
UNIT = (DEPLOY / "voicemem.service").read_text()
CONTAINER = (DEPLOY / "Containerfile").read_text()
COMPOSE: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
NODES = ("node-a", "node-b")
"""The nodes of the Compose file, and of the Caddyfile that goes with it."""


def instruction(name: str) -> str:
    """The last instruction of this name in the Containerfile."""
    found: list[str] = re.findall(rf"^{name} (.*)$", CONTAINER, re.MULTILINE)
    return found[-1]
