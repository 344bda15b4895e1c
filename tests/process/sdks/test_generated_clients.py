"""Clients that generators make from the OpenAPI document: what they make compiles, and is of use."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support.callers.rest import RestClient
from tests.support.checks.openapi import openapi_document
from tests.support.events import dialogue
from tests.support.needs import missing, needs
from tests.support.services import Serve

NPM_PACKAGES = ("openapi-typescript@7.13.0", "typescript@5.9.3")
PYTHON_GENERATOR = "openapi-python-client==0.29.1"
STRICT = ("--noEmit", "--strict", "--target", "es2022", "--module", "nodenext", "--moduleResolution", "nodenext")
INSTALL_S, RUN_S = 300, 180

USES = """
import type { components, operations } from "./schema";
type Schemas = components["schemas"];

export function textOf(event: Schemas["JournaledEvent"]): string {
  switch (event.type) {
    case "asr": return event.text;
    case "message": return event.role === "user" ? event.text : event.source;
    case "session.closed": return event.reason;
    case "refused": return event.code;
    default: return "";
  }
}
export const produced: Schemas["ProducedEvent"][] = [
  { type: "asr", turn_id: 1, text: "Hello.", final: true },
  { type: "tts", turn_id: 1, done: true },
  { type: "session.end" },
];
export const session: Schemas["NewSessionPatch"] = { session_id: "s", llm: { model: "m" }, labels: { tier: "vip" } };
export const added: Schemas["Added"] = { role: "user", content: "Hello." };

type Answer<Operation extends keyof operations> =
  operations[Operation]["responses"] extends { 200: { content: { "application/json": infer Body } } } ? Body : never;
export const turns = (list: Answer<"list_sessions">): (number | undefined)[] =>
  list.sessions.map((row) => ("figures" in row ? row.figures?.turns : row.position));
export const cut = (history: Answer<"read_history">) =>
  history.contents.map((one) => "metadata" in one && one.role === "assistant" && one.metadata.interrupted);

type Problem = operations["read_session"]["responses"][404]["content"]["application/problem+json"];
export function isGone(problem: Problem): boolean {
  switch (problem.reason) {
    case "unknown_session": return true;
    case "not_found": return false;
  }
}
"""
WRONG_USES = {
    'import type { components } from "./schema"; export const e: components["schemas"]["ProducedEvent"] = '
    '{ type: "asr", text: "x", is_final: true };': "is_final",
    'import type { components } from "./schema"; export const f = (e: components["schemas"]["JournaledEvent"]) => '
    'e.type === "session.closed" ? e.words : 0;': "words",
}
PYTHON_USES = """
import sys
from generated.client import Client
from generated.api.sessions import list_sessions, read_session
from generated.api.history import read_history
from generated.models import Asr, AsrType, ListSessionsFields, OverviewPage, SessionInfo

assert Asr(type_=AsrType.ASR, text="Hello.").to_dict() == {"type": "asr", "text": "Hello."}
client = Client(sys.argv[1])
session = read_session.sync(id="s", client=client)
assert isinstance(session, SessionInfo), session
assert read_history.sync(id="s", client=client).contents[0].content == "Q1"
assert isinstance(list_sessions.sync(client=client, fields=ListSessionsFields.OVERVIEW), OverviewPage)
print(read_session.sync(id="none", client=client).reason.value)
"""


def run(command: Sequence[str | Path], folder: Path, timeout_s: int = RUN_S) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=timeout_s
    )


def install(command: Sequence[str | Path], folder: Path, what: str) -> None:
    """Install what a generator needs; without the package index its test is skipped, or fails in CI."""
    try:
        installed = run(command, folder, INSTALL_S)
    except subprocess.TimeoutExpired:
        missing(f"{what} cannot be installed in time: is the package index away?")
    if installed.returncode:
        missing(f"{what} cannot be installed: {installed.stdout[-300:]}")


@pytest.fixture
def document(tmp_path: Path) -> Path:
    """The OpenAPI document, as a file."""
    path = tmp_path / "openapi.json"
    path.write_text(json.dumps(openapi_document()))
    return path


def test_generated_typescript_compiles(tmp_path: Path, document: Path) -> None:
    """Strictly: unions narrow by `type`, `role` and `reason`; defaults may be left out, and wrong fields are errors."""
    npm = needs("npm")
    install([npm, "install", "--silent", "--no-fund", "--no-audit", *NPM_PACKAGES], tmp_path, "openapi-typescript")
    programs = tmp_path / "node_modules" / ".bin"
    made = run([programs / "openapi-typescript", document, "--output", "schema.d.ts"], tmp_path)
    assert 0 == made.returncode, made.stdout
    (tmp_path / "uses.ts").write_text(USES)
    compiled = run([programs / "tsc", *STRICT, "schema.d.ts", "uses.ts"], tmp_path)
    assert "" == compiled.stdout
    for program, reason in WRONG_USES.items():
        (tmp_path / "wrong.ts").write_text(program)
        refused = run([programs / "tsc", *STRICT, "wrong.ts"], tmp_path)
        assert (False, True) == (refused.returncode == 0, reason in refused.stdout)


async def test_a_generated_python_client_calls_the_service(serve: Serve, tmp_path: Path, document: Path) -> None:
    """Every route is generated, without a warning, and answers come as the types that the document names."""
    python = tmp_path / "venv" / "bin" / "python"
    install([sys.executable, "-m", "venv", tmp_path / "venv"], tmp_path, "A virtual environment")
    install([python, "-m", "pip", "install", "--quiet", PYTHON_GENERATOR], tmp_path, PYTHON_GENERATOR)
    settings = tmp_path / "settings.json"
    settings.write_text(
        json.dumps({"content_type_overrides": {"application/x-ndjson": "application/json"}, "post_hooks": []})
    )
    generator: list[str | Path] = [tmp_path / "venv" / "bin" / "openapi-python-client", "generate", "--meta", "none"]
    made = run([*generator, "--path", document, "--config", settings, "--output-path", "generated"], tmp_path)
    assert (0, "Generating generated") == (made.returncode, made.stdout.strip())
    app = await serve()
    api = RestClient(app)
    await api.create()
    await api.send(*dialogue(1))
    (tmp_path / "uses.py").write_text(PYTHON_USES)
    used = await asyncio.to_thread(run, [python, "uses.py", api.base], tmp_path)
    assert (0, "unknown_session") == (used.returncode, used.stdout.strip()), used.stdout
