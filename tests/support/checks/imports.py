"""The rules of imports, and what breaks them (tests/law/test_imports.py). ARCHITECTURE.md explains them to people."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter

from tests.support.paths import PACKAGE

PURE = (
    *("errors", "version", "backoff", "protocol", "documents", "config", "dialects", "redaction", "transcript"),
    *("exports", "search"),
)
"""Without async, clock, randomness, environment, threads or sockets."""
ORDER = (
    "errors",
    "version",
    "backoff",
    "protocol",
    "documents",
    "config",
    "dialects",
    "redaction",
    "transcript",
    "exports",
    "search",
    "runtime",
    "store",
    "security",
    "telemetry",
    "llm",
    "sessions",
    "observer",
    "context",
    "webhooks",
    "memory",
    "gateway",
    "services",
    "server",
    "compat",
    "client",
    "mcp",
    "integrations",
    "proxy",
    "library",
    "app",
    "cli",
)
"""A package imports only from packages above it."""
CLIENT = ("errors", "version", "backoff", "protocol", "dialects", "client")
"""All that the client imports from; it runs where the server is not installed."""
INTEGRATIONS = (*CLIENT, "transcript", "integrations")
"""The same for the integrations, which run beside the client; `transcript` is how text is cut."""
PROXY = (*INTEGRATIONS, "config", "security", "redaction", "proxy")
"""The same for the proxy, which stands beside the client; `security` is how a session token is read."""
PURE_MODULES = frozenset(
    """
    __future__ array base64 binascii bisect collections datetime difflib fractions functools hashlib hmac ipaddress
    itertools json math operator re shlex struct types typing unicodedata urllib.parse zlib
    cryptography jsonschema_rs msgspec
    voicemem
""".split()  # noqa: SIM905 (a list would be a page long)
)
"""All that the pure packages may import: modules that compute, and do not wait, read a clock, draw lots or do I/O."""
IMPURE_CALLS = ("open", "print", "input", "breakpoint", "eval", "exec", "__import__")
"""Built-in functions that reach outside, or around the list of modules."""
ENGINE_IMPORTERS = {
    "store.engines": "chooses the engine",
    "cli.copy": "copies files of SQLite while no store is open on them, which no port offers",
    "cli.service_settings": "check-config checks the path of a file without opening it",
}
"""The only files outside an engine that may import one, and why."""
EDGES = ("rest", "ingest")
"""Parts of `server` that know nothing of each other."""
COMPAT_IMPORTERS = ("app", "cli.__init__")
"""The only files that import a room of `compat`, each by one line, and so does no other room."""
CLOCKS = (
    *("now", "utcnow", "today", "time", "time_ns", "monotonic", "perf_counter", "localtime", "gmtime"),
    *("fromtimestamp", "astimezone"),  # by the machine's time zone
)


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
    engines = engines_of(files)
    for name, others in graph.items():
        found += [f"{name} imports {other}" for other in sorted(others) if is_forbidden(name, other, engines)]
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as circle:
        found.append(f"a circle: {' '.join(sorted(set(circle.args[1])))}")
    return found


def is_placed(name: str) -> bool:
    return name in ("__init__", "__main__") or package_of(name) in ORDER


def engines_of(files: dict[str, str]) -> set[str]:
    """The engines, `store.sqlite`: each folder of `store` is one."""
    parts = [name.split(".") for name in files]
    return {f"store.{part[1]}" for part in parts if part[0] == "store" and len(part) > 2}


def part_of(name: str) -> str:
    """The first two parts of a dotted name: `store.sqlite`, `server.rest`."""
    return ".".join(name.split(".")[:2])


def is_forbidden(name: str, other: str, engines: set[str]) -> bool:
    """Whether one file may not import another; the package's own `__init__` and `__main__` are its edges."""
    mine, theirs = package_of(name), package_of(other)
    if theirs == "compat" and part_of(other) != part_of(name) and name not in COMPAT_IMPORTERS:
        return other != "compat.__init__"
    if mine == "compat" and name.endswith(".commands"):
        mine = "cli"  # the commands of a room stand with the others
    if mine == "__main__" or theirs not in ORDER:
        return False
    if mine == "__init__":
        return theirs != "version"
    if theirs not in {"client": CLIENT, "integrations": INTEGRATIONS, "proxy": PROXY}.get(mine, ORDER):
        return True
    if part_of(other) in engines and part_of(other) != part_of(name) and name not in ENGINE_IMPORTERS:
        return True
    if part_of(name) in engines and other == "store.engines":
        return True
    if mine == theirs == "server" and is_between_edges(name, other):
        return True
    return ORDER.index(theirs) > ORDER.index(mine)


def is_between_edges(name: str, other: str) -> bool:
    edges = {f"server.{edge}" for edge in EDGES}
    return part_of(name) != part_of(other) and {part_of(name), part_of(other)} <= edges


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
            yield from (f"import {alias.name}" for alias in names if not is_pure_module(alias.name))
        case ast.ImportFrom(module=str() as module, level=0) if not is_pure_module(module):
            yield f"import {module}"
        case ast.Call(func=ast.Name(id=name)) if name in IMPURE_CALLS:
            yield f"call of {name}"
        case ast.Call(func=ast.Attribute(attr=clock)) if clock in CLOCKS:
            yield f"call of {clock}"


def is_pure_module(module: str) -> bool:
    """Whether a module or a package that holds it is in the list."""
    parts = module.split(".")
    return any(".".join(parts[:length]) in PURE_MODULES for length in range(1, len(parts) + 1))


def stale_exceptions(files: dict[str, str]) -> list[str]:
    """Exceptions of the lists above that nothing needs any more."""
    engines = engines_of(files)
    imports = {name: set(imports_of(name, source, set(files))) for name, source in files.items()}
    return [
        name
        for name in ENGINE_IMPORTERS
        if not any(part_of(other) in engines and part_of(other) != part_of(name) for other in imports.get(name, ()))
    ]


def packages_of_the_page(page: str) -> tuple[list[str], list[str]]:
    """The packages that ARCHITECTURE.md lists in its table: all, and those of its pure block."""
    table = page.split("## Packages, in import order")[1].split("\n## ")[0]
    rows = [row.split("|")[1].strip() for row in table.splitlines() if row.startswith("| ")]
    block, listed = "", []
    for row in rows:
        if row.startswith("**"):
            block = row.strip("*")
        elif row.startswith("`"):
            listed.append((row.strip("`"), block))
    return [name for name, _ in listed], [name for name, block in listed if block == "pure"]


def modules_of_the_page(page: str) -> set[str]:
    """The modules and folders that ARCHITECTURE.md names: those of the journey of an event, and every path in ticks."""
    named = set()
    for line in page.split("## The journey of an event")[1].split("```")[1].splitlines():
        for part in line.partition("── ")[2].partition("  ")[0].split(" -> "):
            folder, colon, modules = part.rpartition(": ")
            named |= {f"{folder}/{module}" if colon else module for module in modules.split(", ") if module}
    for path in re.findall(r"`([a-z_]+/[a-z_/]+)", page):
        if path.split("/")[0] in ORDER:
            named.add(path.rstrip("/"))
    return named
