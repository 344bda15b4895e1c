"""The house: who may import whom, and the purity of the core (design, section 12)."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

PACKAGE = Path(__file__).parent.parent / "voicemem"
ROWS = (
    "__init__ errors forms events messages",
    "wire dialects series heard state speech playing replies fold history timing turns formats policies exports config"
    " admission settings checks limits tokens keyed places notices completions documents json_schemas"
    " document_tools",
    "store.__init__ store.base",
    "store.memory store.sqlite store.postgres",
    "batches recorder memory memories sessions access audit context usage summaries summary_writer gateway"
    " outbox sweeper targets answering reply_writer rounds retention metrics gauges tracing tail tail_of_several tails"
    " webhooks validation working_memory kept users"
    " appending forgetting adding statistics checkpoints forks carrying left_open",
    "server outbound otel llm openai_client plugins client replay",
    "app demo library library_documents library_inputs library_sync",
    "cli __main__ integrations",
)
"""What may be imported stands above; a name stands for a file, or for a folder with all that is in it."""
PURE = 2
"""So many rows, from the top, are pure."""
IMPURE = """
    asyncio concurrent http logging multiprocessing os queue random secrets select selectors signal socket ssl
    subprocess tempfile threading time uuid
    aiohttp apsw asyncpg httpx openai requests uvloop websockets
"""
CLOCKS = "now utcnow today time time_ns monotonic perf_counter localtime gmtime"
BUILDS_ON = {("memory", "sqlite")}
"""A store of the first kind may import from one of the second."""


def sources() -> dict[str, str]:
    """Each file of the package by its name, as `store.sqlite.rows`."""
    paths = PACKAGE.rglob("*.py")
    return {".".join(path.relative_to(PACKAGE).with_suffix("").parts): path.read_text("utf-8") for path in paths}


def row_of(name: str) -> int | None:
    """The row of a file, given by its own name or by that of a folder around it."""
    parts = name.split(".")
    known = {entry: row for row, line in enumerate(ROWS) for entry in line.split()}
    names = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
    return next((known[one] for one in names if one in known), None)


def imported(name: str, tree: ast.Module, files: set[str]) -> Iterator[str]:
    """The files of the package that a file imports, wherever in it the import stands."""
    for node in ast.walk(tree):
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


def misplaced(files: dict[str, str]) -> list[str]:
    """What is in no row, imports from a row below its own, or from its own in a circle."""
    found = [f"{name} is in no row" for name in files if row_of(name) is None]
    graph: dict[str, set[str]] = {}
    for name, source in files.items():
        graph[name] = set(imported(name, ast.parse(source), set(files))) - {name}
        for other in sorted(graph[name]):
            if (row_of(other) or 0) > (row_of(name) or 0):
                found.append(f"{name} imports {other} from below")
            if strangers(name, other):
                found.append(f"{name} imports its sibling {other}")
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as circle:
        found.append(f"a circle: {' '.join(sorted(set(circle.args[1])))}")
    return found


def strangers(name: str, other: str) -> bool:
    """Whether these are files of two stores that know nothing of each other."""
    if row_of(name) != 3 or row_of(other) != 3:
        return False
    kinds = name.split(".")[1], other.split(".")[1]
    return kinds[0] != kinds[1] and kinds not in BUILDS_ON


def impurities(files: dict[str, str]) -> list[str]:
    """What in the pure rows waits, reads a clock, or reaches outside."""
    pure = {name: ast.parse(source) for name, source in files.items() if (row_of(name) or 0) < PURE}
    return [f"{name}: {what}" for name, tree in pure.items() for node in ast.walk(tree) for what in impure(node)]


def impure(node: ast.AST) -> Iterator[str]:
    """What is impure in one node of a tree."""
    match node:
        case ast.AsyncFunctionDef() | ast.AsyncFor() | ast.AsyncWith() | ast.Await() | ast.comprehension(is_async=1):
            yield "async"
        case ast.Import(names=names):
            yield from (f"import {alias.name}" for alias in names if alias.name.split(".")[0] in IMPURE.split())
        case ast.ImportFrom(module=str() as module, level=0) if module.split(".")[0] in IMPURE.split():
            yield f"import {module}"
        case ast.Call(func=ast.Attribute(attr=clock)) if clock in CLOCKS.split():
            yield f"call of {clock}"


def test_every_file_imports_from_its_row_or_above() -> None:
    """Every file is in a row, imports only from rows above or its own, and there are no circles."""
    assert misplaced(sources()) == []


def test_the_core_is_pure() -> None:
    """Rows 0 and 1 have no async, clock, randomness, environment, threads or sockets."""
    assert impurities(sources()) == []


def test_the_rows_are_those_of_this_package() -> None:
    """The checker looks at the files that there are, and finds the imports in them."""
    files = sources()
    assert {"errors", "fold", "store.base", "store.sqlite.store", "recorder", "server.__init__", "app"} <= files.keys()
    assert {"events", "state"} <= set(imported("fold", ast.parse(files["fold"]), set(files)))


def test_imports_from_below_are_caught() -> None:
    """An import from a later row is found in every form, and also inside a function or a condition."""
    forms = [
        "import voicemem.wire",
        "import voicemem.wire as w",
        "from voicemem import wire",
        "from voicemem.wire import decode_frame",
        "from . import wire",
        "from .wire import decode_frame",
        "def f():\n    from voicemem.wire import decode_frame",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from voicemem.wire import Arrived",
    ]
    for form in forms:
        assert misplaced({"errors": form, "wire": "", "__init__": ""}) == ["errors imports wire from below"], form


def test_imports_of_folders_are_caught() -> None:
    """A folder's own file and the files in it are told apart."""
    files = {"store.base": "from voicemem.store import sqlite", "store.__init__": "", "store.sqlite.__init__": ""}
    assert misplaced(files) == ["store.base imports store.sqlite.__init__ from below"]
    inside = {"formats.__init__": "from voicemem.formats import openai", "formats.openai": "from . import Format"}
    assert misplaced(inside) == ["a circle: formats.__init__ formats.openai"]


def test_circles_are_caught() -> None:
    """Two files of a row may not import each other."""
    files = {"fold": "import voicemem.state", "state": "import voicemem.fold"}
    assert misplaced(files) == ["a circle: fold state"]


def test_files_without_row_are_caught() -> None:
    """A new file needs a place."""
    assert misplaced({"helpers": "", "store.files": ""}) == ["helpers is in no row", "store.files is in no row"]


def test_stores_that_import_each_other_are_caught() -> None:
    """Only the store in memory builds on another one."""
    files = {"store.memory": "import voicemem.store.sqlite.store", "store.sqlite.store": "", "store.postgres": ""}
    assert misplaced(files) == []
    files["store.postgres"] = "from voicemem.store.sqlite.store import SqliteStore"
    assert misplaced(files) == ["store.postgres imports its sibling store.sqlite.store"]


def test_impurity_is_caught() -> None:
    """Waiting, clocks and the outside are found in the pure rows, and allowed in the others."""
    forms = {
        "async def f(): ...": "async",
        "import os.path": "import os.path",
        "from time import time": "import time",
        "from asyncio import sleep": "import asyncio",
        "import datetime\nat = datetime.datetime.now()": "call of now",
        "def f(clock):\n    return clock.time()": "call of time",
    }
    for form, what in forms.items():
        assert impurities({"fold": form}) == [f"fold: {what}"], form
        assert impurities({"recorder": form}) == []
