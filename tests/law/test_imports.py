"""The rules of imports: packages in order, a pure core, engines and edges apart, a client that needs no server."""

from __future__ import annotations

from tests.support.checks.imports import (
    COMPAT_IMPORTERS,
    ENGINE_IMPORTERS,
    ORDER,
    PURE,
    broken_laws,
    imports_of,
    impurities,
    modules_of_the_page,
    package_of,
    packages_of_the_page,
    sources,
    stale_exceptions,
)
from tests.support.paths import PACKAGE


def test_every_package_imports_only_from_those_above_it() -> None:
    """Every file is in a package of the order, imports only from packages above its own, and there are no circles."""
    assert broken_laws(sources()) == []


def test_the_order_names_what_is_there() -> None:
    """A package that has gone does not stay in the order."""
    there = {package_of(name) for name in sources()} - {"__init__", "__main__"}
    assert set(ORDER) == there


def test_the_core_is_pure() -> None:
    """The pure packages import what computes, and have no async, clock, randomness, environment, I/O or sockets."""
    assert impurities(sources()) == []


def test_exceptions_are_needed() -> None:
    """A file that no longer imports an engine or another edge leaves the list of exceptions."""
    assert stale_exceptions(sources()) == []


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
    """An engine of the store, which is any folder in it but `ports`, knows nothing of another."""
    for new in ("postgres", "redis"):
        files = {f"store.{new}.store": "import voicemem.store.sqlite.store", "store.sqlite.store": ""}
        assert broken_laws(files) == [f"store.{new}.store imports store.sqlite.store"]
    files = {"store.redis.store": "import voicemem.store.engines", "store.engines": ""}
    assert broken_laws(files) == ["store.redis.store imports store.engines"]


def test_imports_of_an_engine_are_caught() -> None:
    """The port and all other files know the port only: `store.engines` and the exceptions alone import an engine."""
    for name in ("store.port", "store.streams", "sessions.recording.recorder", "cli.stores"):
        files = {name: "from voicemem.store.sqlite.store import SqliteStore", "store.sqlite.store": ""}
        assert broken_laws(files) == [f"{name} imports store.sqlite.store"]
    for name in ENGINE_IMPORTERS:
        files = {name: "from voicemem.store.sqlite.store import SqliteStore", "store.sqlite.store": ""}
        assert broken_laws(files) == []


def test_edges_that_import_each_other_are_caught() -> None:
    """REST and ingest know nothing of each other; both may use `server.http`."""
    for mine, other in (("rest", "ingest"), ("ingest", "rest")):
        files = {f"server.{mine}.a": f"from voicemem.server.{other} import b", f"server.{other}.b": ""}
        assert broken_laws(files) == [f"server.{mine}.a imports server.{other}.b"]
        files = {f"server.{mine}.a": "from voicemem.server.http import b", "server.http.b": ""}
        assert broken_laws(files) == []


def test_imports_of_a_foreign_api_are_caught() -> None:
    """Only `app` and the list of commands import a room of `compat`; rooms do not import each other."""
    for name in ("server.rest.keys", "services", "cli.service", "compat.other.routes", "library"):
        files = {name: "from voicemem.compat.agora import apps", "compat.agora.apps": ""}
        assert broken_laws(files) == [f"{name} imports compat.agora.apps"]
    for name in (*COMPAT_IMPORTERS, "compat.agora.commands"):
        assert broken_laws({name: "from voicemem.compat.agora import apps", "compat.agora.apps": ""}) == []


def test_only_the_commands_of_a_foreign_api_know_the_command_line() -> None:
    """The routes of a room stand below the commands, and do not import them."""
    files = {"compat.agora.commands": "import voicemem.cli.common", "cli.common": ""}
    assert broken_laws(files) == []
    files = {"compat.agora.agents": "import voicemem.cli.common", "cli.common": ""}
    assert broken_laws(files) == ["compat.agora.agents imports cli.common"]


def test_exceptions_that_nothing_needs_are_caught() -> None:
    """A file in the list that imports no engine, or is gone, is found."""
    assert stale_exceptions({}) == [*ENGINE_IMPORTERS]


def test_a_client_that_needs_the_server_is_caught() -> None:
    """The client imports from the protocol only, although packages above it hold more."""
    files = {"client.client": "import voicemem.store.port", "store.port": ""}
    assert broken_laws(files) == ["client.client imports store.port"]


def test_impurity_is_caught() -> None:
    """Waiting, clocks and the outside are found in the pure packages, and allowed in the others."""
    forms = {
        "async def f(): ...": "async",
        "import os.path": "import os.path",
        "from pathlib import Path": "import pathlib",
        "import urllib.request": "import urllib.request",
        "from secrets import token_hex": "import secrets",
        "import sqlite3": "import sqlite3",
        "print(1)": "call of print",
        "with open('a') as file: ...": "call of open",
        "from time import time": "import time",
        "from asyncio import sleep": "import asyncio",
        "def f(datetime):\n    return datetime.now()": "call of now",
        "def f(clock):\n    return clock.time()": "call of time",
    }
    for form, what in forms.items():
        assert impurities({"transcript.fold": form}) == [f"transcript.fold: {what}"], form
        assert impurities({"sessions.recording.recorder": form}) == []


def test_the_page_lists_the_packages_of_the_law() -> None:
    """ARCHITECTURE.md names every package, in import order, and no other; its pure block is the law's."""
    listed, pure = packages_of_the_page((PACKAGE.parent / "ARCHITECTURE.md").read_text("utf-8"))
    assert listed == list(ORDER)
    assert pure == list(PURE)


def test_a_page_with_another_pure_block_is_caught() -> None:
    """A package that the page moves out of its pure block, or into it, is seen."""
    page = (
        "## Packages, in import order\n| a | b |\n| **pure** | |\n| `errors` | x |\n| **state** | |\n| `store` | y |\n"
    )
    assert packages_of_the_page(page) == (["errors", "store"], ["errors"])


def test_the_modules_of_the_page_exist() -> None:
    """ARCHITECTURE.md names no module that has gone."""
    named = modules_of_the_page((PACKAGE.parent / "ARCHITECTURE.md").read_text("utf-8"))
    assert {"protocol/codec", "store/sqlite/driver", "webhooks/outbox"} <= named
    assert [
        name for name in sorted(named) if not ((PACKAGE / name).is_dir() or (PACKAGE / f"{name}.py").exists())
    ] == []
