"""Builds the distribution and tries it in clean environments: two Pythons, each `websockets`, next to frameworks.

    python tests/process/packaging/matrix.py [WORDS OF THE CHECKS TO RUN]

It needs a package index and three minutes, so it is not one of the tests. Without words it runs every check. It prints
a table, and exits with 1 when anything in it failed.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeVar
from urllib.request import urlopen

Check = TypeVar("Check")
ROOT = Path(__file__).resolve().parents[3]
RECORD_CALL = Path(__file__).with_name("record_call.py")
WEBSOCKET_TESTS = (
    "tests/unit/server/ingest",
    *(f"tests/service/ingest/test_{name}.py" for name in ("websocket", "connection", "handshake", "opening", "seqs")),
    "tests/law/test_packaging.py::test_the_parts_of_websockets_that_are_used_are_there",
)
TEST_TOOLS = ("pytest", "pytest-asyncio", "hypothesis")
"""What these tests and their helpers import."""
WEBSOCKETS = ("15.*", "16.*", "17.*")
FRAMEWORKS = {
    "openai-agents": "agents",
    "google-adk": "google.adk",
    "livekit-agents": "livekit.agents",
    "pipecat-ai": "pipecat",
    "langchain": "langchain.agents",
}
"""Distributions whose agents the client serves, and what they are imported as."""
FRAMEWORK_TESTS = {
    "openai-agents": (
        "tests/process/sdks/test_openai_agents.py",
        "tests/process/sdks/test_gateway_frameworks.py",
        "tests/process/docs/test_openai_agents_example.py",
    ),
    "google-adk": (
        "tests/process/sdks/test_google_adk.py",
        "tests/process/sdks/test_google_adk_memory.py",
        "tests/process/docs/test_google_adk_example.py",
    ),
}
"""Tests of integrations whose frameworks cannot be installed with what the other tests need."""
MINORS = range(11, 21)
SERVER = "voicemem-core[server]"
LIMIT_S = 900.0
UV = Path(sys.executable).with_name("uv")
"""Installs in a tenth of pip's time; `make` puts it there where there is a wheel of it."""


class FailedCheck(Exception):
    """A check that did not hold; its text goes into the table."""


class Environment:
    """A virtual environment, empty at first."""

    def __init__(self, folder: Path, python: str) -> None:
        self.folder = folder
        self.python = folder / "bin" / "python"
        self.settings = {
            name: value for name, value in os.environ.items() if not name.startswith(("VOICEMEM_", "PYTHON"))
        }
        run([python, "-m", "venv", str(folder)], self.settings, folder.parent)

    def run(self, *arguments: str, cwd: Path | None = None) -> str:
        """The output of this Python with these arguments. Raises `FailedCheck`."""
        return run([str(self.python), *arguments], self.settings, cwd or self.folder)

    def install(self, *requirements: str) -> None:
        """Install them together, and see that nothing that is installed contradicts anything else."""
        if UV.exists():
            uv = [str(UV), "pip", "install", "--quiet", "--python", str(self.python)]
            run([*uv, *requirements], self.settings, self.folder)
        else:
            self.run("-m", "pip", "install", "--quiet", "--no-compile", "--disable-pip-version-check", *requirements)
        self.run("-m", "pip", "check")

    def version(self, distribution: str) -> str:
        return self.run("-c", f"from importlib.metadata import version; print(version({distribution!r}))").strip()

    def versions(self) -> str:
        return ", ".join(f"{name} {self.version(name)}" for name in ("websockets", "aiohttp"))

    def newest(self, distribution: str) -> str:
        """The version that pip takes when nothing else is asked for; what it needs itself may hold it back."""
        options = ("--dry-run", "--ignore-installed", "--quiet", "--report", "-")
        report = self.run("-m", "pip", "install", *options, distribution)
        taken = {
            one["metadata"]["name"]: one["metadata"]["version"]
            for one in json.loads(report[report.index("{") :])["install"]
        }
        return str(taken[distribution])


def run(command: list[str], settings: dict[str, str], cwd: Path) -> str:
    done = subprocess.run(command, env=settings, cwd=cwd, capture_output=True, text=True, timeout=LIMIT_S)
    if done.returncode != 0:
        raise FailedCheck(
            f"{' '.join(command[1:4])} … exits with {done.returncode}: {(done.stdout + done.stderr)[-2000:]}"
        )
    return done.stdout


class Built(NamedTuple):
    """What was built, and where environments can be made."""

    wheel: Path
    folder: Path

    def environment(self, name: str, python: str, *requirements: str) -> Environment:
        made = Environment(self.folder / re.sub(r"\W+", "-", name), python)
        made.install(*requirements)
        return made

    @property
    def server(self) -> str:
        return f"{self.wheel}[server]"


def build(folder: Path, python: str) -> Built:
    """Make the source distribution from a copy of the checkout, and the wheel from that."""
    source = folder / "source"
    shutil.copytree(ROOT, source, ignore=shutil.ignore_patterns(".*", "build", "dist", "*.egg-info", "__pycache__"))
    builder = Environment(folder / "builder", python)
    builder.install("build")
    builder.run("-m", "build", "--outdir", str(folder / "dist"), str(source))
    (archive,) = (folder / "dist").glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        names = [name.partition("/")[2] for name in opened.getnames()]
    if any(name.startswith("tests") for name in names):
        raise FailedCheck("the source distribution holds tests, and not what they need")
    (wheel,) = (folder / "dist").glob("*.whl")
    check_files(wheel, source)
    return Built(wheel, folder)


def check_files(wheel: Path, source: Path) -> None:
    """Everything of the package is in the wheel, above all what nothing imports: migrations, and the page."""
    package = source / "voicemem"
    files = {path.relative_to(source).as_posix() for path in package.rglob("*") if path.is_file()}
    with zipfile.ZipFile(wheel) as opened:
        missing = sorted(files - set(opened.namelist()))
    if missing:
        raise FailedCheck(f"the wheel lacks {', '.join(missing)}")


@contextmanager
def serving(environment: Environment) -> Iterator[tuple[str, str]]:
    """A service that keeps nothing; the addresses of its ingest and its REST API."""
    addresses = ("--store", "memory:", "--rest", "127.0.0.1:0", "--ingest", "127.0.0.1:0")
    command = [str(environment.python.with_name("voicemem")), "serve", *addresses]
    with subprocess.Popen(command, env=environment.settings, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            shown = ""
            while not (found := re.search(r"(ws://[\d.:]+)[^ ]*\n.*(http://[\d.:]+)", shown)):
                line = process.stdout.readline()
                if not line:
                    raise FailedCheck(f"the service has not started: {shown}")
                shown += line
            yield found[1], found[2]
        finally:
            process.terminate()


def check_page(service: tuple[str, str]) -> str:
    """The installed service shows the page, with everything that its document names."""
    with urlopen(f"{service[1]}/ui/") as answer:
        document = answer.read().decode()
    named = re.findall(r'(?:src|href)="(/ui/[^"]+)"', document)
    for path in named:
        urlopen(service[1] + path).close()  # raises what is not there
    if not named:
        raise FailedCheck("its document names nothing")
    return f"a document that names {len(named)} files"


def check_python(built: Built, python: str, service: tuple[str, str]) -> str:
    """The wheel by itself: the client works, and the command says how it is made to work."""
    environment = built.environment(Path(python).name, python, str(built.wheel))
    environment.run(str(RECORD_CALL), *service, Path(python).name)
    check_without_server(environment)
    environment.install(SERVER)
    demo = environment.run("-m", "voicemem", "demo", "--fast")
    if demo.count("✓ verified") != 3:
        raise FailedCheck(f"the demo shows {demo[-1000:]}")
    return f"client, then the demo; {environment.versions()}"


def check_without_server(environment: Environment) -> None:
    """The command and the library each say in one sentence what to install."""
    command = [str(environment.python.with_name("voicemem")), "serve"]
    done = subprocess.run(command, env=environment.settings, capture_output=True, text=True, timeout=LIMIT_S)
    opened = "import voicemem\ntry:\n    voicemem.open()\nexcept ImportError as error:\n    print(error)"
    for said in (done.stdout + done.stderr, environment.run("-c", opened)):
        if said.count("\n") != 1 or f"pip install '{SERVER}'" not in said:
            raise FailedCheck(f"without the extra it says {said[-1000:]}")


def check_websockets(built: Built, python: str) -> str:
    """The tests of the ingest server with each `websockets`."""
    environment = built.environment("websockets", python, built.server, *TEST_TOOLS)
    results = []
    for wanted in WEBSOCKETS:
        environment.install(f"websockets=={wanted}")
        shown = environment.run("-m", "pytest", "-p", "no:cacheprovider", *WEBSOCKET_TESTS, cwd=ROOT)
        results.append(f"websockets {environment.version('websockets')}: {shown.strip().splitlines()[-1].strip('= ')}")
    return "; ".join(results)


def check_framework(built: Built, python: str, framework: str, service: tuple[str, str]) -> str:
    """A client next to a framework: neither holds the other back, and a call is recorded."""
    environment = built.environment(framework, python, str(built.wheel), framework)
    version, newest = environment.version(framework), environment.newest(framework)
    if version != newest:
        raise FailedCheck(f"pip takes {framework} {version}, and not {newest}")
    environment.run(str(RECORD_CALL), *service, framework, FRAMEWORKS[framework])
    tested = ""
    if tests := FRAMEWORK_TESTS.get(framework):
        environment.install(built.server, *TEST_TOOLS)
        shown = environment.run("-m", "pytest", "-p", "no:cacheprovider", *tests, cwd=ROOT)
        tested = f"; {shown.strip().splitlines()[-1].strip('= ')}"
    return f"{framework} {version}, {environment.versions()}{tested}"


def pythons() -> tuple[str, str]:
    """The oldest and the newest Python on the PATH that voicemem runs on."""
    found = [path for minor in MINORS if (path := shutil.which(f"python3.{minor}")) and works(path)] or [sys.executable]
    return found[0], found[-1]


def works(python: str) -> bool:
    """Whether it runs; a name on the PATH may lead to nothing."""
    return subprocess.run([python, "-c", ""], capture_output=True).returncode == 0


def main(words: list[str]) -> int:
    oldest, newest = pythons()
    with tempfile.TemporaryDirectory(prefix="voicemem-packaging-") as folder:
        built = build(Path(folder), oldest)
        service = built.environment("service", oldest, built.server)
        with serving(service) as addresses:
            checks: dict[str, Callable[[], str]] = {"each websockets": partial(check_websockets, built, oldest)}
            checks["the page"] = partial(check_page, addresses)
            for framework in FRAMEWORKS:
                checks[f"next to {framework}"] = partial(check_framework, built, oldest, framework, addresses)
            for python in {oldest, newest}:
                checks[f"wheel on {Path(python).name}"] = partial(check_python, built, python, addresses)
            checks = chosen(checks, words)
            with ThreadPoolExecutor(os.cpu_count()) as pool:
                results = list(pool.map(timed, checks.values()))
        for name, (right, result, seconds) in zip(checks, results, strict=True):
            sys.stdout.write(f"| {name} | {'passed' if right else 'FAILED'} | {result} | {seconds:.0f} s |\n")
        sys.stdout.flush()  # to remove the environments may take long
    return 0 if all(right for right, _, _ in results) else 1


def chosen(checks: dict[str, Check], words: list[str]) -> dict[str, Check]:
    """The checks with all of these words in their names."""
    found = {name: check for name, check in checks.items() if all(word in name for word in words)}
    return found or sys.exit(f"No check has these words in its name. There are: {', '.join(checks)}.")


def timed(check: Callable[[], str]) -> tuple[bool, str, float]:
    begun = time.monotonic()
    try:
        return True, check(), time.monotonic() - begun
    except FailedCheck as failed:
        return False, str(failed), time.monotonic() - begun


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
