"""Runs the tests of the integrations with the oldest and the newest versions of their frameworks that are supported.

    python -m tests.process.packaging.frameworks [WORDS OF THE CHECKS TO RUN]

The oldest are the lower bounds of the extras in pyproject.toml. It needs a package index and some minutes, so it is not
one of the tests. It prints a table, and exits with 1 when anything in it failed.
"""

from __future__ import annotations

import re
import sys
import tempfile
import tomllib
from functools import partial
from pathlib import Path

from tests.process.packaging.matrix import ROOT, TEST_TOOLS, Built, build, chosen, pythons, timed

TESTS = {
    "livekit-agents": ("tests/process/sdks/test_livekit.py", "tests/process/sdks/test_livekit_edges.py"),
    "pipecat-ai": (
        "tests/process/sdks/test_pipecat.py",
        "tests/process/sdks/test_pipecat_edges.py",
        "tests/unit/integrations/pipecat",
    ),
    "openai-agents": (
        "tests/process/sdks/test_openai_agents.py",
        "tests/process/sdks/test_gateway_frameworks.py",
    ),
    "google-adk": ("tests/process/sdks/test_google_adk.py", "tests/process/sdks/test_google_adk_memory.py"),
    "langchain": (
        "tests/process/sdks/test_langgraph.py",
        "tests/process/sdks/test_langgraph_store.py",
        "tests/unit/integrations/test_runs.py",
    ),
}


UNDECLARED = {"livekit-agents==1.5": ("httpx",)}
"""What a version imports and leaves to others to bring, which their newest versions no longer do."""


def oldest(framework: str) -> str:
    """The lower bound of a framework in the extras."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    found = (re.match(rf"{framework}>=([\d.]+)", line) for lines in extras.values() for line in lines)
    return next(match[1] for match in found if match)


def check(built: Built, python: str, framework: str, requirement: str) -> str:
    """The client goes with this version, and so do the tests.

    The tests' own service is installed afterwards, and may then have a newer `openai` than the framework asks for.
    """
    environment = built.environment(
        requirement, python, str(built.wheel), requirement, *UNDECLARED.get(requirement, ())
    )
    server = (f"voicemem-core[server] @ file://{built.wheel}", *TEST_TOOLS, "pytest-xdist")
    environment.run("-m", "pip", "install", "--quiet", "--no-compile", "--disable-pip-version-check", *server)
    shown = environment.run("-m", "pytest", "-p", "no:cacheprovider", "-n", "2", *TESTS[framework], cwd=ROOT)
    return f"{framework} {environment.version(framework)}: {shown.strip().splitlines()[-1].strip('= ')}"


def main(words: list[str]) -> int:
    python, _ = pythons()
    requirements = {f"oldest {one}": f"{one}=={oldest(one)}" for one in TESTS} | {f"newest {one}": one for one in TESTS}
    requirements, right = chosen(requirements, words), True
    with tempfile.TemporaryDirectory(prefix="voicemem-frameworks-") as folder:
        built = build(Path(folder), python)
        for name, requirement in requirements.items():
            passed, result, seconds = timed(partial(check, built, python, name.split()[1], requirement))
            right &= passed
            sys.stdout.write(f"| {name} | {'passed' if passed else 'FAILED'} | {result} | {seconds:.0f} s |\n")
            sys.stdout.flush()
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
