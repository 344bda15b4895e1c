"""APIs of other products can be taken out: each is one folder, one line of `app`, and one of the command line."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import PACKAGE

ROOMS = sorted(path.parent.name for path in (PACKAGE / "compat").glob("*/__init__.py"))


@pytest.mark.parametrize("room", ROOMS)
def test_the_service_starts_without_a_foreign_api(room: str, tmp_path: Path) -> None:
    """Without its folder and the lines that import and register it, the demo runs a whole call."""
    package = tmp_path / "voicemem"
    shutil.copytree(PACKAGE, package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.rmtree(package / "compat" / room)
    for name in ("app.py", "cli/__init__.py"):
        text = (package / name).read_text("utf-8")
        for registered in re.findall(rf"^from voicemem\.compat\.{room}\b.* import (\w+)$", text, re.MULTILINE):
            text = re.sub(rf"^.*\b{registered}\b.*\n", "", text, flags=re.MULTILINE)
        (package / name).write_text(text, "utf-8")
    ran = subprocess.run(
        [sys.executable, "-m", "voicemem", "demo", "--fast"],
        check=False,
        cwd=tmp_path,
        env={"PYTHONPATH": str(tmp_path), "PATH": ""},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ran.returncode == 0, ran.stderr
