"""The law of the house: packages in import order, a pure core, a client that needs no server (ARCHITECTURE.md)."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter

from tests.support.paths import PACKAGE

PURE = ("errors", "version", "backoff", "protocol", "documents", "config", "transcript")
"""Without async, clock, randomness, environment, threads or sockets."""
ORDER = (
    "errors",
    "version",
    "backoff",
    "protocol",
    "documents",
    "config",
    "transcript",
    "runtime",
    "store",
    "security",
    "telemetry",
    "llm",
    "sessions",
    "context",
    "webhooks",
    "memory",
    "gateway",
    "services",
    "server",
    "client",
    "library",
    "app",
    "cli",
)
"""A package imports only from packages above it."""
CLIENT = ("errors", "version", "backoff", "protocol", "client")
"""All that the client imports from; it runs where the server is not installed."""
ENGINES = ("sqlite", "postgres")
"""Folders of `store` that know nothing of each other."""
IMPURE = frozenset(
    """
    asyncio concurrent http logging multiprocessing os queue random secrets select selectors signal socket ssl
    subprocess tempfile threading time uuid
    aiohttp apsw asyncpg httpx openai requests uvloop websockets
""".split()  # noqa: SIM905 (a list would be a page long)
)
CLOCKS = ("now", "utcnow", "today", "time", "time_ns", "monotonic", "perf_counter", "localtime", "gmtime")


@cache
def nodes_of(source: str) -> list[ast.AST]:
    """Everything in a file, read once for all tests."""
    return [*ast.walk(ast.parse(source))]


@cache
def sources() -> dict[str, str]:
    """Each file of the package by its dotted name, `store.sqlite.journal.row_cache`."""
    paths = PACKAGE.rglob("*.py")
    return {".".join(path.relative_to(PACKAGE).with_suffix("").parts): path.read_text("utf-8") for path in paths}


def package_of(name: str) -> str:
    return name.split(".")[0]


def imports_of(name: str, source: str, files: set[str]) -> Iterator[str]:
    """The files of the package that a file imports, wherever in it the import stands."""
    for node in nodes_of(source):
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            around = ["voicemem", *name.split(".")][: -node.level] if node.level else []
            base = ".".join([*around, *([node.module] if node.module else [])])
            modules = [f"{base}.{alias.name}" for alias in node.names]
        else:
            continue
        for module in modules:
            root, *parts = module.split(".")
            if root == "voicemem":
                yield file_of(parts, files)


def file_of(parts: list[str], files: set[str]) -> str:
    """The file that a dotted name is in: the module itself, a package's `__init__`, or what either of them holds."""
    for length in range(len(parts), -1, -1):
        for name in (".".join(parts[:length]), ".".join([*parts[:length], "__init__"])):
            if name in files:
                return name
    return ".".join(parts)


def broken_laws(files: dict[str, str]) -> list[str]:
    """Files outside the order, imports that run against it, and circles."""
    found = [f"{name} is in no package of the order" for name in files if not is_placed(name)]
    graph = {name: set(imports_of(name, source, set(files))) - {name} for name, source in files.items()}
    for name, others in graph.items():
        found += [f"{name} imports {other}" for other in sorted(others) if is_forbidden(name, other)]
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as circle:
        found.append(f"a circle: {' '.join(sorted(set(circle.args[1])))}")
    return found


def is_placed(name: str) -> bool:
    return name in ("__init__", "__main__") or package_of(name) in ORDER


def is_forbidden(name: str, other: str) -> bool:
    """Whether one file may not import another; the package's own `__init__` and `__main__` are its edges."""
    mine, theirs = package_of(name), package_of(other)
    if mine == "__main__" or theirs not in ORDER:
        return False
    if mine == "__init__":
        return theirs != "version"
    if mine == "client" and theirs not in CLIENT:
        return True
    if mine == theirs == "store":
        engines = [part for part in (name.split(".")[1], other.split(".")[1]) if part in ENGINES]
        return len(set(engines)) > 1
    return ORDER.index(theirs) > ORDER.index(mine)


def impurities(files: dict[str, str]) -> list[str]:
    """What in the pure packages waits, reads a clock, or reaches outside."""
    pure = {name: nodes_of(source) for name, source in files.items() if package_of(name) in PURE}
    return [f"{name}: {what}" for name, nodes in pure.items() for node in nodes for what in impure(node)]


def impure(node: ast.AST) -> Iterator[str]:
    """What is impure in one node of a tree."""
    match node:
        case ast.AsyncFunctionDef() | ast.AsyncFor() | ast.AsyncWith() | ast.Await() | ast.comprehension(is_async=1):
            yield "async"
        case ast.Import(names=names):
            yield from (f"import {alias.name}" for alias in names if alias.name.split(".")[0] in IMPURE)
        case ast.ImportFrom(module=str() as module, level=0) if module.split(".")[0] in IMPURE:
            yield f"import {module}"
        case ast.Call(func=ast.Attribute(attr=clock)) if clock in CLOCKS:
            yield f"call of {clock}"


def test_every_package_imports_only_from_those_above_it() -> None:
    """Every file is in a package of the order, imports only from packages above its own, and there are no circles."""
    assert broken_laws(sources()) == []


def test_the_order_names_what_is_there() -> None:
    """A package that has gone does not stay in the order."""
    there = {package_of(name) for name in sources()} - {"__init__", "__main__"}
    assert set(ORDER) == there


def test_the_core_is_pure() -> None:
    """The pure packages have no async, clock, randomness, environment, threads or sockets."""
    assert impurities(sources()) == []


def test_the_checker_sees_the_package() -> None:
    """It looks at the files that there are, and finds the imports in them."""
    files = sources()
    assert {"errors", "transcript.fold", "store.port", "server.__init__", "app"} <= files.keys()
    found = set(imports_of("transcript.fold", files["transcript.fold"], set(files)))
    assert {"protocol.events", "transcript.state"} <= found


def test_imports_against_the_order_are_caught() -> None:
    """An import from a later package is found in every form, also inside a function or a condition."""
    forms = [
        "import voicemem.protocol.codec",
        "import voicemem.protocol.codec as w",
        "from voicemem.protocol import codec",
        "from voicemem.protocol.codec import decode_event",
        "from .protocol import codec",
        "from .protocol.codec import decode_event",
        "def f():\n    from voicemem.protocol.codec import decode_event",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from voicemem.protocol.codec import decode_event",
    ]
    for form in forms:
        files = {"errors": form, "protocol.codec": "", "protocol.__init__": "", "__init__": ""}
        assert broken_laws(files) == ["errors imports protocol.codec"], form


def test_circles_are_caught() -> None:
    """Two files of a package may not import each other, nor a folder's own file and a file in it."""
    files = {"transcript.fold": "import voicemem.transcript.state", "transcript.state": "from . import fold"}
    assert broken_laws(files) == ["a circle: transcript.fold transcript.state"]
    inside = {"context.formats.__init__": "from . import openai", "context.formats.openai": "from . import Format"}
    assert broken_laws(inside) == ["a circle: context.formats.__init__ context.formats.openai"]


def test_files_outside_the_order_are_caught() -> None:
    """A new file needs a place."""
    assert broken_laws({"helpers": ""}) == ["helpers is in no package of the order"]


def test_engines_that_import_each_other_are_caught() -> None:
    """An engine of the store knows nothing of another."""
    files = {"store.postgres.store": "import voicemem.store.sqlite.store", "store.sqlite.store": ""}
    assert broken_laws(files) == ["store.postgres.store imports store.sqlite.store"]


def test_a_client_that_needs_the_server_is_caught() -> None:
    """The client imports from the protocol only, although packages above it hold more."""
    files = {"client.client": "import voicemem.store.port", "store.port": ""}
    assert broken_laws(files) == ["client.client imports store.port"]


def test_impurity_is_caught() -> None:
    """Waiting, clocks and the outside are found in the pure packages, and allowed in the others."""
    forms = {
        "async def f(): ...": "async",
        "import os.path": "import os.path",
        "from time import time": "import time",
        "from asyncio import sleep": "import asyncio",
        "import datetime\nat = datetime.datetime.now()": "call of now",
        "def f(clock):\n    return clock.time()": "call of time",
    }
    for form, what in forms.items():
        assert impurities({"transcript.fold": form}) == [f"transcript.fold: {what}"], form
        assert impurities({"sessions.recorder": form}) == []


def test_the_page_lists_the_packages_of_the_law() -> None:
    """ARCHITECTURE.md names every package, in import order, and no other."""
    page = (PACKAGE.parent / "ARCHITECTURE.md").read_text("utf-8")
    table = page.split("## Packages, in import order")[1].split("\n## ")[0]
    listed = [row.split("`")[1] for row in table.splitlines() if row.startswith("| `")]
    assert [name for name in listed if name in ORDER] == list(ORDER)
    assert [name for name in listed if name not in ORDER] == []
