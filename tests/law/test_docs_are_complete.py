"""Everything that a user can touch is documented."""

from __future__ import annotations

import json
import re
from inspect import iscoroutinefunction
from pathlib import Path
from typing import Any, get_args

import click
import msgspec
import pytest

from tests.support.documentation import PAGES, TEXTS, code_blocks
from tests.support.paths import DOCS, PACKAGE, ROOT
from tests.support.processes.doc_programs import printed_programs, save_programs
from tests.support.routes import ROUTES
from tests.support.rows import every_row
from voicemem import client
from voicemem.cli import main
from voicemem.cli.service_settings import FormerFlag
from voicemem.client import ClientError, Options
from voicemem.client.metrics import exposition
from voicemem.client.session import SessionFacts
from voicemem.compat import agora
from voicemem.compat.agent_memory_server.routes import ROUTES as AGENT_MEMORY_ROUTES
from voicemem.compat.agora.agents import AgentsQuery, TurnsQuery
from voicemem.compat.agora.requests import agora_error, status_of
from voicemem.config.context import PARAMETERS, ContextConfig
from voicemem.config.session import LlmConfig, SessionConfig, WebhookConfig
from voicemem.context.builder import LeftOut, Usage
from voicemem.context.formats import ENRICHERS
from voicemem.documents.document import WorkingMemoryConfig
from voicemem.errors import CODES
from voicemem.llm.client import OWN_WORDS
from voicemem.protocol.codec import METADATA_ORDER
from voicemem.protocol.events import Event, IncomingEvent, ProducedEvent
from voicemem.protocol.frames import Frame
from voicemem.security.address_guard import ERROR_WORDS
from voicemem.security.audit import Act
from voicemem.server.rest.context import ContextQuery
from voicemem.server.rest.deliveries import DeliveryQuery, Since
from voicemem.server.rest.events import AppendQuery, JournalQuery
from voicemem.server.rest.history import HistoryQuery
from voicemem.server.rest.keys import NewKey, NewToken
from voicemem.server.rest.sessions import Ending, SessionsQuery
from voicemem.server.rest.tails import MessageChanges, MessageUpsert, SessionTailsQuery, TailCut
from voicemem.server.rest.webhooks import NewSecret, NewWebhook, WebhookChange
from voicemem.server.rest.working_memory import ROUTES as WORKING_MEMORY_ROUTES
from voicemem.server.rest.working_memory import VersionQuery, VersionsQuery, WorkingMemoryDocument
from voicemem.sessions.tails.tail import SessionOver
from voicemem.store.database import BEGUN, OVER
from voicemem.telemetry.metrics import Metrics

INDEX = (ROOT / "docs" / "README.md").read_text()
EVENTS = ProducedEvent.__args__


@every_row("route", ROUTES, ids=lambda route: f"{route.method} {route.path}")
def test_every_route_is_documented_with_its_scope(route: Any) -> None:
    """Each route stands in the table of docs/rest.md, or docs/working-memory.md, with the scope it needs."""
    scope = f" [{route.scope}]" if route.scope else ""
    path = re.sub(r"^/v1/(sessions/\{id\}|users/\{user_id\})(?=/working-memory)", "…", route.path)
    page = "working-memory.md" if path.startswith("…") else "rest.md"
    assert f"| `{route.method} {path}`{scope} |" in TEXTS[page]


@every_row("route", AGENT_MEMORY_ROUTES, ids=lambda route: f"{route.method} {route.path}")
def test_every_route_of_agent_memory_server_is_documented(route: Any) -> None:
    """Each route stands in the table of docs/from-agent-memory-server.md, with its scope and query parameters."""
    scope = f" [{route.scope}]" if route.scope else ""
    text = TEXTS["from-agent-memory-server.md"]
    row = next(line for line in text.splitlines() if line.startswith(f"| `{route.method} {route.path}`{scope} |"))
    assert [name for name in route.query.__struct_fields__ if f"`{name}`" not in row] == []


@every_row("route", agora.ROUTES, ids=lambda route: f"{route.method} {route.path}")
def test_every_route_of_agoras_is_documented_with_its_scope(route: Any) -> None:
    """Each route stands in the table of docs/agora.md, with the scope it needs; the page names both bases."""
    assert f"| `{route.method} {route.path}` [{route.scope}] |" in TEXTS["agora.md"]
    assert [base for base in agora.BASES if f"`{base}`" not in TEXTS["agora.md"]] == []


@pytest.mark.parametrize("query", [AgentsQuery, TurnsQuery])
def test_every_query_parameter_of_agoras_is_documented(query: type[msgspec.Struct]) -> None:
    """Each query parameter is named in docs/agora.md."""
    assert [name for name in query.__struct_fields__ if f"`{name}`" not in TEXTS["agora.md"]] == []


def test_every_reason_of_agoras_is_documented() -> None:
    """Each reason that an error may have stands in docs/agora.md, with its status."""
    answered = {
        (agora_error(code, "").reason, status_of(code))
        for code in CODES
        if CODES[code].status not in (405, 406, 412, 422, 502, 504)
    }
    rows = re.findall(r"^\| (\d+) \| `(\w+)` \|", TEXTS["agora.md"], re.MULTILINE)
    assert {(reason, int(status)) for status, reason in rows} == answered


@every_row(
    "query", [SessionsQuery, HistoryQuery, ContextQuery, AppendQuery, JournalQuery, SessionTailsQuery, DeliveryQuery]
)
def test_every_query_parameter_is_documented(query: type[msgspec.Struct]) -> None:
    """Each query parameter is named in docs/rest.md."""
    missing = [name for name in query.__struct_fields__ if not re.search(rf"`{name}[`=]", TEXTS["rest.md"])]
    assert missing == []


@every_row("kind", EVENTS, ids=lambda kind: str(kind.__struct_config__.tag))
def test_every_event_and_its_fields_are_documented(kind: type[Event]) -> None:
    """Each event has a row in docs/ingest.md that names its fields; a session.update's are the configuration."""
    tag = kind.__struct_config__.tag
    row = next(line for line in TEXTS["ingest.md"].splitlines() if line.startswith(f"| `{tag}` |"))
    own = [field for field in kind.__struct_encode_fields__ if field not in Event.__struct_fields__]
    missing = [field for field in own if f"`{field}`" not in row]
    assert missing == [] or tag == "session.update"


def test_every_common_field_is_documented() -> None:
    """What every event may carry stands in docs/ingest.md."""
    assert [name for name in Event.__struct_fields__ if f"`{name}`" not in TEXTS["ingest.md"]] == []


def test_every_error_code_is_documented_with_its_numbers() -> None:
    """Each code stands in docs/errors.md with HTTP status, close code and sentence, and no others do."""
    rows = [line for line in TEXTS["errors.md"].splitlines() if re.match(r"\| `[a-z_]+` \| \d", line)]
    closes = {code: f", {c.close}" if c.close else "" for code, c in CODES.items()}
    expected = [f"| `{code}` | {c.status}{closes[code]} | {c.sentence} |" for code, c in CODES.items()]
    assert expected == rows


def test_every_act_of_the_audit_is_documented() -> None:
    """Each stands in a table of docs/access.md."""
    rows = " ".join(line.split("|")[1] for line in TEXTS["access.md"].splitlines() if line.startswith("| `"))
    assert [act for act in get_args(Act) if f"`{act}`" not in rows] == []


def test_the_lines_about_the_store_are_documented() -> None:
    """What the log says when trouble begins, and when it is over, stands word for word in docs/monitoring.md."""
    lines = BEGUN % "REASON", OVER % 12.3
    assert [line for line in lines if f"| `{line}` | `warning` |" not in TEXTS["monitoring.md"]] == []


def test_every_frame_of_the_ingest_is_documented_with_its_fields() -> None:
    """What may be sent besides events, and everything that the server sends, stands in docs/ingest.md."""
    frames = [*set(IncomingEvent.__args__) - set(EVENTS), *Frame.__args__]
    names = {field for frame in frames for field in frame.__struct_fields__}
    names |= {str(frame.__struct_config__.tag) for frame in frames}
    text = TEXTS["ingest.md"]
    assert [name for name in sorted(names) if f"`{name}`" not in text and f'"{name}"' not in text] == []


def test_every_event_of_a_tail_is_documented_with_its_fields() -> None:
    """What a tail tells stands in docs/tail.md."""
    text = TEXTS["tail.md"]
    assert [name for name in ("entry", "messages", "end", "goaway", "error") if f"| `{name}` |" not in text] == []
    kinds = MessageChanges, MessageUpsert, SessionOver, TailCut
    names = {field for kind in kinds for field in kind.__struct_fields__}
    assert [name for name in sorted(names) if f"`{name}`" not in text] == []


@every_row("body", [NewKey, NewToken, NewWebhook, WebhookChange, NewSecret, Since, Ending])
def test_every_field_of_a_body_is_documented(body: type[msgspec.Struct]) -> None:
    """What keys, tokens and webhooks are made of stands in docs/rest.md."""
    text = TEXTS["rest.md"]
    assert [name for name in body.__struct_fields__ if f"`{name}`" not in text and f'"{name}"' not in text] == []


@pytest.mark.parametrize("config", [SessionConfig, LlmConfig, WebhookConfig, ContextConfig])
def test_every_session_setting_is_documented(config: type[msgspec.Struct]) -> None:
    """Each field of a session's configuration is named in docs/rest.md."""
    prefix = {LlmConfig: "llm.", WebhookConfig: "webhook.", ContextConfig: "memory."}.get(config, "")
    names = [f"`{prefix}{name}`" for name in config.__struct_fields__ if name not in ("llm", "webhook", "memory")]
    assert [name for name in names if name not in TEXTS["rest.md"]] == []


def commands() -> list[tuple[str, click.Command]]:
    """Every command and sub-command with its full name."""
    found: list[tuple[str, click.Command]] = []
    for name, command in main.commands.items():
        found.append((name, command))
        if isinstance(command, click.Group):
            found += [(f"{name} {sub}", child) for sub, child in command.commands.items()]
    return found


@every_row(("name", "command"), commands(), ids=[name for name, _ in commands()])
def test_every_command_flag_and_variable_is_documented(name: str, command: click.Command) -> None:
    """Each command stands in docs/operations.md, its flags and variables there or on its own page; it has a help."""
    text = TEXTS["operations.md"] + TEXTS.get(f"{name}.md", "")
    assert f"voicemem {name.split()[0]}" in text
    assert command.help
    for option in command.params:
        if isinstance(option, FormerFlag) and not option.expose_value:  # one that has another name
            continue
        if isinstance(option, click.Option):
            flag = option.opts[0].removeprefix("--" if isinstance(option, FormerFlag) else "")
            assert f"`{flag}`" in text or f"{flag}]" in text, flag
            assert option.envvar is None or f"`{option.envvar}`" in text, option.envvar


def test_enrichers_and_metadata_keys_are_documented() -> None:
    """The names of enrichers and of voicemem's own metadata keys stand in the docs."""
    assert [name for name in ENRICHERS if f"`{name}`" not in TEXTS["rest.md"]] == []
    assert [key for key in METADATA_ORDER if f"`metadata.{key}`" not in TEXTS["memory.md"]] == []


def test_every_metric_is_documented_with_its_labels_and_type() -> None:
    """Each metric stands in the table of docs/monitoring.md with its labels and type, and no others do."""
    rows = re.findall(r"^\| `(voicemem_\w+)` \| (.*?) ?\| (\w+) \| .+ \|$", TEXTS["monitoring.md"], re.MULTILINE)
    documented = {name: (set(re.findall(r"`(\w+)`(?= \(|, `|$)", labels)), kind) for name, labels, kind in rows}
    expected = {name: (set(labels), kind) for name, labels, kind in Metrics().describe()}
    assert {name: kind for name, (_, kind) in expected.items()} == {n: kind for n, (_, kind) in documented.items()}
    assert [n for n, (labels, _) in expected.items() if not labels <= documented[n][0]] == []


LINKED = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
LINK = re.compile(r"\]\((?!http)([^)#\s]*)(?:#([^)\s]*))?\)")


def without_code(path: Path) -> str:
    return re.sub(r"^```.*?^```", "", path.read_text(), flags=re.DOTALL | re.MULTILINE)


def anchors(path: Path) -> set[str]:
    """What a link can name in this page: its headings, as GitHub spells them."""
    headings = re.findall(r"^#+ (.+)$", without_code(path), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@every_row("page", LINKED, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_between_documents_lead_somewhere(page: Path) -> None:
    """Relative links in README and docs name files and headings that exist."""
    links = [((page.parent / file) if file else page, anchor) for file, anchor in LINK.findall(without_code(page))]
    assert [str(target) for target, _ in links if not target.exists()] == []
    assert [(target.name, anchor) for target, anchor in links if anchor and anchor not in anchors(target)] == []


def test_the_readme_is_short() -> None:
    """A newcomer reads it in one go: at most 1,200 words, as `wc -w` counts them."""
    assert len(TEXTS["README.md"].split()) <= 1200


@every_row("page", PAGES, ids=lambda page: page.name)
def test_every_page_is_in_the_index(page: Path) -> None:
    """docs/README.md, which finds pages by task, leads to each of them."""
    assert f"]({page.name})" in INDEX


def test_nobody_is_told_to_install_another_project() -> None:
    """voicemem is installed from its checkout: on PyPI its name is another project's."""
    sources = [path for folder in ("deploy", "voicemem") for path in (ROOT / folder).rglob("*") if path.is_file()]
    texts = {path.name: path.read_text() for path in sources if path.suffix != ".pyc"} | TEXTS
    named = {name: re.findall(r"pip install[^`\n]*[ '](voicemem\b(?!-))", text) for name, text in texts.items()}
    assert {name: found for name, found in named.items() if found} == {}


def test_json_examples_in_the_docs_are_json() -> None:
    """Every JSON block parses."""
    for text in TEXTS.values():
        for block in code_blocks(text, "json"):
            json.loads(block)


def test_everything_of_the_client_is_documented() -> None:
    """Each option, each error and each fact of a session is named in docs/client.md, options with their defaults."""
    facts = [name for name, value in vars(SessionFacts).items() if isinstance(value, property)]
    errors = [name for name in client.__all__ if issubclass(getattr(client, name), ClientError)]
    names = [*Options.__dataclass_fields__, *errors, *facts]
    assert [name for name in names if f"`{name}`" not in TEXTS["client.md"]] == []
    times = [name for name in Options.__dataclass_fields__ if name.endswith("_s")]
    for name in (*times, "fallback_after", "read_attempts"):
        row = next(line for line in TEXTS["client.md"].splitlines() if line.startswith("| ") and f"`{name}`" in line)
        default = getattr(Options, name)
        assert "None" if default is None else f"{default:g}" in re.split(r"[ ,|]+", row.split("|")[2]), name


def test_the_client_s_deadlines_and_metrics_are_documented() -> None:
    """The page about a memory that is away has the defaults of all that a caller waits for, and each metric."""
    text = TEXTS["when-the-memory-is-away.md"]
    for name in ("open_timeout_s", "context_timeout_s", "read_timeout_s", "close_timeout_s"):
        assert f"{getattr(Options, name):g} s (`{name}`)" in text
    metrics = re.findall(r"^# TYPE (\w+) (\w+)$", exposition({}, [], None), re.MULTILINE)
    rows = re.findall(r"^\| `(voicemem_client_\w+)` \|.*?\| (\w+) \| .+ \|$", text, re.MULTILINE)
    assert metrics == rows


def test_the_client_s_own_codes_are_documented() -> None:
    """Codes that the server does not have stand in docs/client.md, with the error that has them."""
    own = [
        *(client.BufferFull(1, 1), client.Unreachable(""), client.TimedOut("", 1)),
        *(client.Unacknowledged({}), client.Closed()),
    ]
    rows = [f"| `{type(error).__name__}` (`{error.code}`) |" for error in own]
    assert [row for row in [*rows, "| `ClientError` (`no_rest_url`) |"] if row not in TEXTS["client.md"]] == []


CONTEXT_PAGE = "context.md"
GATEWAY_PAGE = "gateway.md"
WORKING_MEMORY_PAGE = "working-memory.md"
CONTEXT_TEXT = (DOCS / CONTEXT_PAGE).read_text()


def test_every_policy_is_documented_with_its_parameters() -> None:
    """Each has a row, which names what it can be told."""
    table = CONTEXT_TEXT.partition("## ")[0]
    rows = dict(re.findall(r"^\| `(\w+)` \|([^|]*)\|", table, re.MULTILINE))
    for policy, parameters in PARAMETERS.items():
        assert sorted(parameters) == sorted(re.findall(r"`(\w+)`", rows[policy])), policy


def test_the_account_is_documented() -> None:
    """Each field of it, and of what it says of a message that is left out."""
    names = [*Usage.__struct_fields__, *LeftOut.__struct_fields__]
    assert [name for name in names if f"`{name}`" not in CONTEXT_TEXT] == []


SOURCES = ("gateway/llm_request.py", "llm/completions.py", "llm/client.py")


def test_every_word_for_a_failure_is_on_the_page() -> None:
    """The words that an `llm.error` may have, and no others, are in the table."""
    text = (DOCS / GATEWAY_PAGE).read_text()
    table = text[text.index("| code | meaning |") :].split("\n\n")[0]
    source = "".join((PACKAGE / name).read_text() for name in SOURCES)
    words = (
        {OWN_WORDS.get(word, word) for _, word in ERROR_WORDS}
        | set(re.findall(r'LlmFailed\("(\w+)"\)', source))
        | {"tls", "dns", "error"}
    )
    assert words == set(re.findall(r"`(\w+)`", "".join(line.split("|")[1] for line in table.splitlines())))


@pytest.mark.parametrize("page", sorted(path.name for path in DOCS.glob("first-*.md")))
def test_every_program_of_a_page_is_one_that_runs(tmp_path: Path, page: str) -> None:
    """Each program has a name on its page, and the tests run files of these names and no others."""
    save_programs(page, tmp_path, {})
    saved_files = {path.name for path in tmp_path.iterdir()}
    assert len(printed_programs(page, "python", "js", "html")) == len(saved_files)
    assert saved_files <= {
        *("sender.py", "recorder.py", "python_call.py", "node_call.mjs"),
        *("server.mjs", "index.html", "receiver.py", "receiver.mjs"),
    }


WORKING_MEMORY_TEXT = (DOCS / WORKING_MEMORY_PAGE).read_text()


def test_every_call_is_on_the_page() -> None:
    """Each route, each query parameter and each field of an answer is named."""
    calls = {
        (route.method, re.sub(r"^/v1/(sessions/\{id\}|users/\{user_id\})", "…", route.path))
        for route in WORKING_MEMORY_ROUTES
    }
    documents = [f"`{method} {path}`" for method, path in calls if "working-memory" in path]
    assert [call for call in documents if call not in WORKING_MEMORY_TEXT] == []
    fields = WorkingMemoryDocument.__struct_fields__
    assert [name for name in fields if f'"{name}"' not in WORKING_MEMORY_TEXT] == []
    parameters = {*VersionQuery.__struct_fields__, *VersionsQuery.__struct_fields__}
    assert [name for name in parameters if f"`{name}" not in WORKING_MEMORY_TEXT] == []


def test_every_setting_is_documented() -> None:
    """Each field of the section `working_memory` stands in docs/rest.md."""
    rest = (DOCS / "rest.md").read_text()
    assert [n for n in WorkingMemoryConfig.__struct_fields__ if f"`working_memory.{n}`" not in rest] == []


def test_every_code_of_the_calls_is_on_the_page() -> None:
    """Codes that no other call has stand in the table of limits and errors."""
    codes = {code for route in WORKING_MEMORY_ROUTES for code in route.codes}
    assert [code for code in codes if f"`{code}`" not in WORKING_MEMORY_TEXT] == []


def test_everything_of_the_library_is_documented() -> None:
    """Each public method stands in docs/library.md."""
    from voicemem.library.sessions import Documents, Library, LibrarySession, Memories

    kinds: list[tuple[str, type]] = [("library", Library), ("call", LibrarySession)]
    kinds += [("call.working_memory", Documents), ("library.long_term", Memories)]
    for name, kind in kinds:
        methods = [each for each, one in vars(kind).items() if iscoroutinefunction(one) and not each.startswith("_")]
        assert [method for method in methods if f"`await {name}.{method}(" not in TEXTS["library.md"]] == []


def test_no_page_installs_from_an_index() -> None:
    """The package is on none yet, so each page installs from the checkout."""
    assert [name for name, text in TEXTS.items() if re.search(r"pip install [^\n`]*voicemem-core", text)] == []
