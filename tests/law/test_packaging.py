"""The distribution: what it requires and why, and what of other projects' private parts it builds on."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator
from importlib.metadata import packages_distributions, requires, version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import websockets.frames
from aiohttp import http_writer, web_protocol
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from websockets.asyncio.server import Server, ServerConnection
from websockets.server import ServerProtocol

from tests.support.paths import ROOT
from voicemem.server.http.connections import ProblemHandler
from voicemem.server.ingest.websocket import EventSocket

PACKAGE = ROOT / "voicemem"
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
NAME = "voicemem-core"
CLIENT = ("__init__", "errors", "version", "backoff", "protocol", "client", "integrations")
"""The part of the package that works without the extra `server`."""
SHARED = ("google",)
"""Names below which several distributions have packages."""


def requirements(*extras: str) -> list[Requirement]:
    """What is required by the distribution with these extras."""
    return [Requirement(line) for line in sum((EXTRAS[extra] for extra in extras), PROJECT["dependencies"])]


def part_of(path: Path) -> str:
    """The package or module directly below `voicemem` that a file is in."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def bounds(name: str) -> str:
    """All bounds that the server sets for a distribution, as one."""
    return ",".join(str(one.specifier) for one in requirements("server") if one.name == name)


def names_with_all_they_need(found: Iterable[Requirement]) -> set[str]:
    """The distributions that are installed for these requirements."""
    names: set[str] = set()
    waiting = list(found)
    while waiting:
        one = waiting.pop()
        wanted = one.marker is None or one.marker.evaluate({"extra": ""})
        if wanted and (name := canonicalize_name(one.name)) not in names and name != NAME:
            names.add(name)
            waiting += map(Requirement, requires(one.name) or [])
    return names


# What is required


def test_the_client_runs_next_to_the_frameworks() -> None:
    """openai-agents and google-adk refuse newer `websockets`, and voicemem refuses only what it was not tested with."""
    (ours,) = [one.specifier for one in requirements() if one.name == "websockets"]
    assert ["15.0", "15.0.1", "16.1.1", "17.4"] == list(
        ours.filter(["14.2", "15.0", "15.0.1", "16.1.1", "17.4", "18.0"])
    )
    for framework in (">=15.0,<17", ">=15.0.1,<16"):
        assert "15.0.1" in ours & Requirement(f"websockets{framework}").specifier


def test_what_is_overridden_has_upper_bounds() -> None:
    """A version that may have changed them is not installed, and the one that is here is within the bounds."""
    for name, untested in (("websockets", "18.0"), ("aiohttp", "4.0.0")):
        specifier = Requirement(name + bounds(name)).specifier
        assert untested not in specifier
        assert version(name) in specifier


def imported(source: str) -> Iterator[str]:
    """The packages that a file imports, wherever in it: top-level names, and those below a shared one."""
    return map(package_of, modules(source))


def modules(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module


def package_of(module: str) -> str:
    first, _, rest = module.partition(".")
    return f"{first}.{rest.partition('.')[0]}" if first in SHARED else first


SIGNED_BY_TELNYX = PACKAGE / "dialects" / "call_starts.py"
ON_POSTGRESQL = (PACKAGE / "store" / "postgresql", PACKAGE / "cli" / "demo" / "nodes")


def extras_of(path: Path) -> tuple[str, ...]:
    """The extras whose packages a file may import; an integration may import its framework."""
    if part_of(path) == "integrations":
        framework = path.relative_to(PACKAGE).parts[1].removesuffix(".py").replace("_", "-")
        return (framework,) if framework in EXTRAS else ()
    engine = ("postgres",) if any(map(path.is_relative_to, ON_POSTGRESQL)) else ()
    own = ("mcp",) if part_of(path) == "mcp" else ()
    if path == SIGNED_BY_TELNYX:  # when it verifies, which only the service does
        return ("telnyx",)
    return () if part_of(path) in CLIENT else ("server", "otel", "tokens", *engine, *own)


def test_every_import_is_required() -> None:
    """The client imports what the distribution requires, and the rest of the package what its extras do.

    A package that is not installed is taken to be its distribution's namesake.
    """
    owners = packages_distributions()
    for path in sorted(PACKAGE.rglob("*.py")):
        extras = extras_of(path)
        required = {canonicalize_name(one.name) for one in requirements(*extras)}
        names = set(imported(path.read_text())) - sys.stdlib_module_names - {"voicemem"}
        unknown = {
            name for name in names if not {canonicalize_name(one) for one in owners.get(name, (name,))} & required
        }
        assert set() == unknown, path


NEED_OPENAI = {"gateway_engine": "gateway.md", "openai_realtime": "stacks.md", "phone": "stacks.md"}
"""Examples that need OpenAI's client too, and the page that says so."""
FRAMEWORKS = {"livekit_agent": "livekit", "pipecat_bot": "pipecat"}
"""The extras of examples that are not named after them."""


def imported_by(path: Path) -> set[str]:
    """The packages of others that a program imports, itself or through our own files beside the package."""
    names, seen, waiting = set[str](), {path}, [path]
    while waiting:
        for module in modules(waiting.pop().read_text()):
            own = ROOT / module.replace(".", "/")
            files = {one for one in (own.with_suffix(".py"), own / "__init__.py") if one.exists()}
            waiting += files - seen
            seen |= files
            names |= set() if files else {package_of(module)}
    return names - sys.stdlib_module_names - {"voicemem"}


def test_examples_import_what_their_pages_name() -> None:
    """An example runs with the extras `server` and its framework's; the page of one that needs `openai` says so."""
    owners = {name: {canonicalize_name(one) for one in own} for name, own in packages_distributions().items()}
    for path in sorted((ROOT / "examples").glob("*.py")):
        extra = FRAMEWORKS.get(path.stem, path.stem).replace("_", "-")
        wanted = requirements("server", *({extra} & EXTRAS.keys()))
        if page := NEED_OPENAI.get(path.stem):
            assert re.search(rf"{path.stem}\b.*\n?.*`openai`", (ROOT / "docs" / page).read_text()), path
            wanted.append(Requirement("openai"))
        if all(
            canonicalize_name(one.name) in set().union(*owners.values()) for one in wanted
        ):  # else in its own environment
            there = names_with_all_they_need(wanted)
            assert set() == {name for name in imported_by(path) if not owners.get(name, set()) & there}, path


def test_the_constraints_are_exact_versions() -> None:
    """Each line of constraints.txt is a name and one version, within the bounds, and says nothing of an index."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    assert [] == [line for line in lines if not re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.]+", line)]
    exact = dict(line.lower().replace("_", "-").split("==") for line in lines)
    own = {
        canonicalize_name(one.name): one.specifier
        for one in requirements(
            "server", "postgres", "otel", "mcp", "tokens", "livekit", "pipecat", "langgraph", "test"
        )
    }
    del own[canonicalize_name(NAME)]
    assert [] == [name for name, specifier in own.items() if name in exact and exact[name] not in specifier]
    assert own.keys() <= exact.keys()


def test_files_that_are_not_python_are_in_the_wheel() -> None:
    """Migrations, the page, the demo's call and the marker of types are package data."""
    patterns = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]["voicemem"]
    packed = {path for pattern in patterns for path in PACKAGE.glob(pattern)}
    files = {path for path in PACKAGE.rglob("*") if path.is_file() and path.suffix not in (".py", ".pyc")}
    assert files == packed


# Without the extra

COMMAND = "from voicemem.__main__ import main; main()"


def python(program: str, path: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """Run a program on voicemem; what is in the folder `path` comes first."""
    found = f"import sys; sys.path[:0] = [{str(path)!r}, {str(ROOT)!r}]\n"
    return subprocess.run([sys.executable, "-c", found + program], capture_output=True, text=True, timeout=60)


def without_server(program: str) -> subprocess.CompletedProcess[str]:
    """Run a program where only what the distribution itself requires can be imported."""
    there = names_with_all_they_need(requirements())
    owners = packages_distributions()
    absent = {name for name, own in owners.items() if not {canonicalize_name(one) for one in own} & there} - {
        "voicemem"
    }
    return python(f"sys.modules.update(dict.fromkeys({sorted(absent)!r}))\n{program}")


@pytest.mark.slow
def test_the_client_needs_nothing_of_the_server() -> None:
    """All its modules can be imported where only its own requirements are installed."""
    paths = [path for path in PACKAGE.rglob("*.py") if part_of(path) in CLIENT]
    assert {"__init__", "errors", "version", "protocol", "client"} <= set(map(part_of, paths))
    modules = sorted(".".join(path.relative_to(ROOT).with_suffix("").parts) for path in paths)
    done = without_server(f"import importlib; [importlib.import_module(name) for name in {modules!r}]")
    assert (0, "") == (done.returncode, done.stderr)


@pytest.mark.slow
@pytest.mark.parametrize(
    "program",
    [
        pytest.param(f"sys.argv = ['voicemem', 'serve']; {COMMAND}", id="command"),
        pytest.param("import voicemem\ntry: voicemem.open()\nexcept ImportError as e: sys.exit(str(e))", id="open"),
        pytest.param(
            "import voicemem\ntry: voicemem.open_sync()\nexcept ImportError as e: sys.exit(str(e))", id="sync"
        ),
    ],
)
def test_without_the_extra_one_sentence_says_what_to_install(program: str) -> None:
    """The command and the library name the extra; the client does not need it."""
    done = without_server(program)
    assert (1, 1) == (done.returncode, done.stderr.count("\n"))
    assert re.search(r"need the extra `server` \(\w+ is missing\): pip install 'voicemem-core\[server\]'$", done.stderr)


def test_a_fault_of_ours_is_not_taken_for_a_missing_extra() -> None:
    """A module of voicemem that is missing is shown as it is."""
    done = python(f"sys.modules['voicemem.cli'] = None; {COMMAND}")
    assert "Traceback" in done.stderr
    assert "pip install" not in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("record", "warned"),
    [
        ("voicemem/__init__.py,sha256=x,1\nvoicemem/core.py,sha256=x,1\n", True),
        ("__editable__.voicemem.pth,,\n", False),
    ],
    ids=["another project's files", "a link to a checkout of ours"],
)
@pytest.mark.long
def test_another_project_in_the_same_folder_is_reported(tmp_path: Path, record: str, warned: bool) -> None:
    """The command says so in one sentence, and goes on."""
    folder = tmp_path / "voicemem-0.2.3.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.4\nName: voicemem\nVersion: 0.2.3\n")
    (folder / "RECORD").write_text(record)
    done = python(f"sys.argv = ['voicemem', '--version']; {COMMAND}", tmp_path)
    assert (0, warned) == (done.returncode, "voicemem 0.2.3 belongs to another project" in done.stderr)
    assert int(warned) == done.stderr.count("\n")


# Private parts of other projects: a version without one of them needs another way, or a tighter bound

WEBSOCKETS_OVERRIDDEN = {"connection_lost", "connection_made", "data_received", "process_event", "send_data"}
WEBSOCKETS_USED = {
    *("close", "close_code", "id", "logger", "loop", "ping_interval", "protocol", "request", "transport"),
}
PROTOCOL_USED = {
    *("close_rcvd_then_sent", "close_sent", "data_to_send", "fail", "logger", "parser", "parser_exc", "reject"),
    *("send_close", "send_text", "state"),
}
AIOHTTP_OVERRIDDEN = {
    *("connection_lost", "connection_made", "data_received", "handle_error", "log_exception", "resume_writing")
}
AIOHTTP_OPTIONS = {"access_log", "auto_decompress", "keepalive_timeout", "lingering_time", "loop", "read_bufsize"}


async def test_the_parts_of_websockets_that_are_used_are_there() -> None:
    """What `EventSocket` overrides and uses; what it adds hides nothing of the library's."""
    protocol = ServerProtocol()
    theirs, ours = (kind(protocol, SimpleNamespace()) for kind in (ServerConnection, EventSocket))  # type: ignore[arg-type]
    there = {*dir(theirs), "transport"}  # set once there is a connection
    assert there >= WEBSOCKETS_OVERRIDDEN | WEBSOCKETS_USED
    assert set(dir(protocol)) >= PROTOCOL_USED
    own = {name for name in vars(EventSocket) if not name.startswith("__")}
    assert WEBSOCKETS_OVERRIDDEN == own & there
    added = set(re.findall(r"^        self\.(\w+)(?:: .*)? = ", inspect.getsource(EventSocket.__init__), re.MULTILINE))
    assert added
    assert set() == added & there
    assert all(hasattr(ours, name) for name in added)


def test_the_mask_of_websockets_is_there() -> None:
    """Without it, frames would be parsed by the library, more slowly."""
    assert b"text" == websockets.frames.apply_mask(b"text", b"\0\0\0\0")  # type: ignore[attr-defined]


def test_the_server_of_websockets_can_be_closed() -> None:
    """A drain closes it, with a code where it takes one."""
    assert {"self", "close_connections"} <= inspect.signature(Server.close).parameters.keys()


def test_the_parts_of_aiohttp_that_are_used_are_there() -> None:
    """What `ProblemHandler` overrides, none of it private; what it adds hides nothing of the library's."""
    theirs = web_protocol.RequestHandler
    there = set(dir(theirs))
    assert there >= AIOHTTP_OVERRIDDEN
    assert set(re.findall(r"\b_[a-z]\w*", inspect.getsource(ProblemHandler))) == set()
    assert inspect.signature(theirs.__init__).parameters.keys() >= AIOHTTP_OPTIONS | {"manager"}
    own = {name for name in vars(ProblemHandler) if not name.startswith("__")}
    assert AIOHTTP_OVERRIDDEN == own & there
    assert issubclass(web_protocol.RequestPayloadError, Exception)
    assert 0 == http_writer.StreamWriter.output_size
