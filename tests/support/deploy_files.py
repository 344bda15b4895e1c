"""What stands in the files of deploy/."""

from __future__ import annotations

import re

from tests.support.paths import DEPLOY

UNIT = (DEPLOY / "voicemem.service").read_text()
CONTAINER = (DEPLOY / "Containerfile").read_text()


def instruction(name: str) -> str:
    """The last instruction of this name in the Containerfile."""
    found: list[str] = re.findall(rf"^{name} (.*)$", CONTAINER, re.MULTILINE)
    return found[-1]
