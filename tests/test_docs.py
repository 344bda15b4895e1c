"""Docs and code say the same: everything a user can touch is documented, and the README's programs run."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
import shutil
import sys
from pathlib import Path
from typing import Any, get_args

import aiohttp
import click
import msgspec
import pytest
from callers import Caller
from llm_server import Script, llm_server
from processes import free_ports, running_process
from producers import over_its_rate
from programs import shell
from services import Serve

from voicemem import client
from voicemem.cli import main
from voicemem.client import ClientError, Options
from voicemem.client.session import SessionFacts
from voicemem.config.session import LlmConfig, SessionConfig, WebhookConfig
from voicemem.context.formats import ENRICHERS
from voicemem.context.policies import MemoryConfig
from voicemem.errors import CODES
from voicemem.protocol.checks import METADATA_ORDER
from voicemem.protocol.events import Event, IncomingEvent, ProducedEvent
from voicemem.protocol.frames import Frame
from voicemem.security.audit import Act
from voicemem.server import agora
from voicemem.server.agora.agents import AgentsQuery
from voicemem.server.agora.conversation import TurnsQuery
from voicemem.server.agora.errors import agora_error, status_of
from voicemem.server.rest import ROUTES
from voicemem.server.rest.deliveries import DeliveryQuery, Since
from voicemem.server.rest.events import AppendQuery, JournalQuery
from voicemem.server.rest.history import ContextQuery, HistoryQuery
from voicemem.server.rest.keys import NewKey, NewToken
from voicemem.server.rest.sessions import Ending, SessionsQuery
from voicemem.server.rest.tails import MessageChanges, MessageUpsert, SessionOver, SessionTailsQuery, TailCut
from voicemem.server.rest.webhooks import NewSecret, NewWebhook, WebhookChange
from voicemem.telemetry.metrics import Metrics

ROOT = Path(__file__).parent.parent
PAGES = [path for path in sorted((ROOT / "docs").glob("*.md")) if path.name != "README.md"]
INDEX = (ROOT / "docs" / "README.md").read_text()
DOCS = {path.name: path.read_text() for path in [ROOT / "README.md", *PAGES]}
EVENTS = ProducedEvent.__args__


def blocks(text: str, language: str) -> list[str]:
    """The fenced code blocks of one language."""
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: f"{route.method} {route.path}")
def test_every_route_is_documented_with_its_scope(route: Any) -> None:
    """Each route stands in the table of docs/rest.md, with the scope it needs."""
    scope = f" [{route.scope}]" if route.scope else ""
    assert f"| `{route.method} {route.path}`{scope} |" in DOCS["rest.md"]


@pytest.mark.parametrize("route", agora.ROUTES, ids=lambda route: f"{route.method} {route.path}")
def test_every_route_of_agoras_is_documented_with_its_scope(route: Any) -> None:
    """Each route stands in the table of docs/agora.md, with the scope it needs; the page names both bases."""
    assert f"| `{route.method} {route.path}` [{route.scope}] |" in DOCS["agora.md"]
    assert [base for base in agora.BASES if f"`{base}`" not in DOCS["agora.md"]] == []


@pytest.mark.parametrize("query", [AgentsQuery, TurnsQuery])
def test_every_query_parameter_of_agoras_is_documented(query: type[msgspec.Struct]) -> None:
    """Each query parameter is named in docs/agora.md."""
    assert [name for name in query.__struct_fields__ if f"`{name}`" not in DOCS["agora.md"]] == []


def test_every_reason_of_agoras_is_documented() -> None:
    """Each reason that an error may have stands in docs/agora.md, with its status."""
    answered = {
        (agora_error(code, "").reason, status_of(code))
        for code in CODES
        if CODES[code].status not in (405, 406, 412, 502, 504)
    }
    rows = re.findall(r"^\| (\d+) \| `(\w+)` \|", DOCS["agora.md"], re.MULTILINE)
    assert {(reason, int(status)) for status, reason in rows} == answered


@pytest.mark.parametrize(
    "query", [SessionsQuery, HistoryQuery, ContextQuery, AppendQuery, JournalQuery, SessionTailsQuery, DeliveryQuery]
)
def test_every_query_parameter_is_documented(query: type[msgspec.Struct]) -> None:
    """Each query parameter is named in docs/rest.md."""
    missing = [name for name in query.__struct_fields__ if not re.search(rf"`{name}[`=]", DOCS["rest.md"])]
    assert missing == []


@pytest.mark.parametrize("kind", EVENTS, ids=lambda kind: str(kind.__struct_config__.tag))
def test_every_event_and_its_fields_are_documented(kind: type[Event]) -> None:
    """Each event has a row in docs/ingest.md that names its fields; a session.update's are the configuration."""
    tag = kind.__struct_config__.tag
    row = next(line for line in DOCS["ingest.md"].splitlines() if line.startswith(f"| `{tag}` |"))
    own = [field for field in kind.__struct_fields__ if field not in Event.__struct_fields__]
    missing = [field for field in own if f"`{field}`" not in row]
    assert missing == [] or tag == "session.update"


def test_every_common_field_is_documented() -> None:
    """What every event may carry stands in docs/ingest.md."""
    assert [name for name in Event.__struct_fields__ if f"`{name}`" not in DOCS["ingest.md"]] == []


def test_every_error_code_is_documented_with_its_numbers() -> None:
    """Each code stands in docs/errors.md with HTTP status, close code and sentence, and no others do."""
    rows = [line for line in DOCS["errors.md"].splitlines() if re.match(r"\| `[a-z_]+` \| \d", line)]
    expected = [f"| `{code}` | {c.status} | {c.close or ''} | {c.sentence} |" for code, c in CODES.items()]
    assert expected == rows


def test_every_act_of_the_audit_is_documented() -> None:
    """Each stands in a table of docs/access.md."""
    rows = " ".join(line.split("|")[1] for line in DOCS["access.md"].splitlines() if line.startswith("| `"))
    assert [act for act in get_args(Act) if f"`{act}`" not in rows] == []


def test_every_frame_of_the_ingest_is_documented_with_its_fields() -> None:
    """What may be sent besides events, and everything that the server sends, stands in docs/ingest.md."""
    frames = [*set(IncomingEvent.__args__) - set(EVENTS), *Frame.__args__]
    names = {field for frame in frames for field in frame.__struct_fields__}
    names |= {str(frame.__struct_config__.tag) for frame in frames}
    text = DOCS["ingest.md"]
    assert [name for name in sorted(names) if f"`{name}`" not in text and f'"{name}"' not in text] == []


def test_every_event_of_a_tail_is_documented_with_its_fields() -> None:
    """What a tail tells stands in docs/tail.md."""
    text = DOCS["tail.md"]
    assert [name for name in ("entry", "messages", "end", "goaway", "error") if f"| `{name}` |" not in text] == []
    kinds = MessageChanges, MessageUpsert, SessionOver, TailCut
    names = {field for kind in kinds for field in kind.__struct_fields__}
    assert [name for name in sorted(names) if f"`{name}`" not in text] == []


@pytest.mark.parametrize("body", [NewKey, NewToken, NewWebhook, WebhookChange, NewSecret, Since, Ending])
def test_every_field_of_a_body_is_documented(body: type[msgspec.Struct]) -> None:
    """What keys, tokens and webhooks are made of stands in docs/rest.md."""
    text = DOCS["rest.md"]
    assert [name for name in body.__struct_fields__ if f"`{name}`" not in text and f'"{name}"' not in text] == []


@pytest.mark.parametrize("config", [SessionConfig, LlmConfig, WebhookConfig, MemoryConfig])
def test_every_session_setting_is_documented(config: type[msgspec.Struct]) -> None:
    """Each field of a session's configuration is named in docs/rest.md."""
    prefix = {LlmConfig: "llm.", WebhookConfig: "webhook.", MemoryConfig: "memory."}.get(config, "")
    names = [f"`{prefix}{name}`" for name in config.__struct_fields__ if name not in ("llm", "webhook", "memory")]
    assert [name for name in names if name not in DOCS["rest.md"]] == []


def commands() -> list[tuple[str, click.Command]]:
    """Every command and sub-command with its full name."""
    found: list[tuple[str, click.Command]] = []
    for name, command in main.commands.items():
        found.append((name, command))
        if isinstance(command, click.Group):
            found += [(f"{name} {sub}", child) for sub, child in command.commands.items()]
    return found


@pytest.mark.parametrize(("name", "command"), commands(), ids=[name for name, _ in commands()])
def test_every_command_flag_and_variable_is_documented(name: str, command: click.Command) -> None:
    """Each command, each of its flags and each environment variable stands in docs/operations.md, and has a help."""
    text = DOCS["operations.md"]
    assert f"voicemem {name.split()[0]}" in text
    assert command.help
    for option in command.params:
        if isinstance(option, click.Option):
            assert f"`{option.opts[0]}`" in text or f"{option.opts[0]}]" in text, option.opts[0]
            assert option.envvar is None or f"`{option.envvar}`" in text, option.envvar


def test_enrichers_and_metadata_keys_are_documented() -> None:
    """The names of enrichers and of voicemem's own metadata keys stand in the docs."""
    assert [name for name in ENRICHERS if f"`{name}`" not in DOCS["rest.md"]] == []
    assert [key for key in METADATA_ORDER if f"`metadata.{key}`" not in DOCS["memory.md"]] == []


def test_every_metric_is_documented_with_its_labels_and_type() -> None:
    """Each metric stands in the table of docs/monitoring.md with its labels and type, and no others do."""
    rows = re.findall(r"^\| `(voicemem_\w+)` \| (.*?) ?\| (\w+) \| .+ \|$", DOCS["monitoring.md"], re.MULTILINE)
    documented = {name: (set(re.findall(r"`(\w+)`(?= \(|, `|$)", labels)), kind) for name, labels, kind in rows}
    expected = {name: (set(labels), kind) for name, labels, kind in Metrics().described()}
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


@pytest.mark.parametrize("page", LINKED, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_between_documents_lead_somewhere(page: Path) -> None:
    """Relative links in README and docs name files and headings that exist."""
    links = [((page.parent / file) if file else page, anchor) for file, anchor in LINK.findall(without_code(page))]
    assert [str(target) for target, _ in links if not target.exists()] == []
    assert [(target.name, anchor) for target, anchor in links if anchor and anchor not in anchors(target)] == []


def test_the_readme_is_short() -> None:
    """A newcomer reads it in one go: at most 1,200 words, as `wc -w` counts them."""
    assert len(DOCS["README.md"].split()) <= 1200


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_page_is_in_the_index(page: Path) -> None:
    """docs/README.md, which finds pages by task, leads to each of them."""
    assert f"]({page.name})" in INDEX


def test_nobody_is_told_to_install_another_project() -> None:
    """voicemem is installed from its checkout: on PyPI its name is another project's."""
    sources = [path for folder in ("deploy", "voicemem") for path in (ROOT / folder).rglob("*") if path.is_file()]
    texts = {path.name: path.read_text() for path in sources if path.suffix != ".pyc"} | DOCS
    named = {name: re.findall(r"pip install[^`\n]*[ '](voicemem\b(?!-))", text) for name, text in texts.items()}
    assert {name: found for name, found in named.items() if found} == {}


def test_json_examples_in_the_docs_are_json() -> None:
    """Every JSON block parses."""
    for text in DOCS.values():
        for block in blocks(text, "json"):
            json.loads(block)


async def test_the_follower_of_the_docs_runs(serve: Serve) -> None:
    """The program in docs/tail.md shows the history of the call when it is over."""
    app = await serve()
    root, program = f"http://{app.rest_address}/v1/sessions", dict[str, Any](__name__="follower")
    shown: list[Any] = []
    exec(compile(blocks(DOCS["tail.md"], "python")[0], "tail.md", "exec"), program)
    async with aiohttp.ClientSession() as http:
        await http.post(root, json={"session_id": "s"})
        following = asyncio.create_task(program["follow"](f"{root}/s/events?view=messages&open=true", shown.append))
        for text in ("Tell", "Tell me a joke."):
            await http.post(
                f"{root}/s/events", json={"type": "asr", "turn_id": 1, "text": text, "final": text[-1] == "."}
            )
        await http.post(f"{root}/s/end")
        await asyncio.wait_for(following, 20)
        async with http.get(f"{root}/s/history") as history:
            assert (await history.json())["contents"] == shown[-1]


async def test_the_gateway_of_the_readme_answers(serve: Serve) -> None:
    """OpenAI's client, made as the README shows, gets the LLM's answer."""
    _, shown = blocks(DOCS["README.md"], "python")
    async with llm_server(Script(["Hello."])) as llm:
        app = await serve(llm_url=llm.url)
        await Caller(app).create("call-2")
        ask = 'print(client.chat.completions.create(model="m", messages=[{"role": "user", "content": "Hi."}]).choices)'
        asking = await start(shown.replace("127.0.0.1:8080", str(app.rest_address)) + ask)
        printed, _ = await asyncio.wait_for(asking.communicate(), 60)
        assert b"content='Hello.'" in printed


@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl here")
async def test_the_call_of_the_readme_goes_as_shown(tmp_path: Path) -> None:
    """Service, receiver, program and requests as the README gives them: they print what it shows, times apart."""
    readme, commands = DOCS["README.md"], blocks(DOCS["README.md"], "sh")
    serving, receiving = (
        shlex.split(next(text for text in commands if f"voicemem {name} " in text).replace("\\\n", " "))
        for name in ("serve", "receive")
    )
    (shown_history,) = blocks(readme, "json")
    (port,) = free_ports(1)
    listening = await asyncio.create_subprocess_exec(
        *(sys.executable, "-u", "-m", *receiving, "--listen", f"127.0.0.1:{port}"), stdout=asyncio.subprocess.PIPE
    )
    try:
        options = [option.replace("127.0.0.1:9000", f"127.0.0.1:{port}") for option in serving[4:]]
        async with running_process(tmp_path / "calls.db", *options) as process:
            program = blocks(readme, "python")[0].replace("127.0.0.1:8765", str(process.ingest_address))
            calling = await start(program.replace("http://127.0.0.1:8080", process.rest))
            printed, errors = await asyncio.wait_for(calling.communicate(), 60)
            assert (calling.returncode, printed.decode()) == (0, blocks(readme, "text")[1]), errors
            answers = [
                json.loads(await shell(text.replace("http://127.0.0.1:8080", process.rest), tmp_path))
                for text in commands
                if text.startswith("curl")
            ]
            assert without_times(answers[0]) == without_times(json.loads(shown_history))
            assert answers[1]["config"]["memory"] == {"policy": "window", "max_tokens": 4000}
            assert listening.stdout is not None
            seen = b""
            while seen.count(b"verified") < 3 or b"Why did the scarecrow win an award?" not in seen:
                line = await asyncio.wait_for(listening.stdout.readline(), 60)
                assert line, seen
                seen += line
    finally:
        listening.terminate()
        await listening.communicate()


def without_times(answer: Any) -> Any:
    """An answer with every time in ms made the same."""
    return json.loads(re.sub(r"\b\d{13}\b", "0", json.dumps(answer)))


SENDER = blocks(DOCS["first-client-python.md"], "python")[0]


@pytest.mark.parametrize(
    ("change", "code", "told"),
    [
        ({}, 0, "'seq': 6"),
        ({'"hangup"': "7"}, 0, "'code': 'invalid_field'"),
        ({'"turn_id": 1, "text": "win': '"text": 7, "x": "win'}, 0, "'seq': 6"),
        ({'"seq": seq}': '"seq": seq + 1}'}, 1, "Events are missing before this seq"),
    ],
    ids=["as printed", "the last refused", "another refused", "a gap"],
)
async def test_the_first_sender_ends(serve: Serve, change: dict[str, str], code: int, told: str) -> None:
    """The sender of the first client ends, whatever is refused; run again it says that its call has ended."""
    app = await serve()
    program = SENDER.replace("127.0.0.1:8765", str(app.ingest_address))
    for old, new in change.items():
        assert old in program
        program = program.replace(old, new)
    once = await start(program)
    printed, errors = await asyncio.wait_for(once.communicate(), 60)
    assert (once.returncode, told in (printed + errors).decode()) == (code, True), printed + errors
    if not change:
        again = await start(program)
        _, errors = await asyncio.wait_for(again.communicate(), 60)
        assert (again.returncode, errors.splitlines()[-1].startswith(b"call-1 has ended.")) == (1, True)


async def test_the_first_sender_waits_when_its_key_is_over_its_rate(serve: Serve) -> None:
    """A `rate_limited` before `session.ready` is not a refusal: the sender waits, and comes to its end."""
    key = "an operator's own key"
    app = await serve(admin_key=key, event_rate=20.0)
    program = SENDER.replace("127.0.0.1:8765", str(app.ingest_address))
    program = program.replace('/ingest")', f'/ingest", additional_headers={{"Authorization": "Bearer {key}"}})')
    told = 'if frame["type"] in types and'
    assert told in program
    program = program.replace(told, f'print("told:", frame.get("code", frame["type"]))\n        {told}')
    async with over_its_rate(app, key):
        sending = await start(program)
        assert sending.stdout is not None
        assert await asyncio.wait_for(sending.stdout.readline(), 60) == b"told: rate_limited\n"
    rest, errors = await asyncio.wait_for(sending.communicate(), 60)
    assert (sending.returncode, b"'seq': 6" in rest) == (0, True), errors


PROGRAMS = [block for name in ("README.md", "client.md") for block in blocks(DOCS[name], "python")]
CLIENTS = [program for program in PROGRAMS if "voicemem.client" in program]
SHOWN = [
    ("user 'Tell me a joke.'", "assistant 'Why did the '", "A story, please."),
    ("on disk: 1", "assistant 'Why did the '", "messages for the next LLM request: 3"),
    ("seq 1 turn 1", "seq 2 turn 2"),
    ("1 invalid_field", "The session has ended"),
    ("on disk: 1", "1 message"),
]
"""What the programs that use the client print, among other things."""


@pytest.mark.parametrize(("program", "shown"), [*zip(CLIENTS, SHOWN, strict=True)], ids=range(len(SHOWN)))
async def test_the_programs_of_the_client_run(serve: Serve, program: str, shown: tuple[str, ...]) -> None:
    """Each program in the README and in docs/client.md that uses the client works as printed."""
    app = await serve()
    program = program.replace("127.0.0.1:8765", str(app.ingest_address))
    running = await start(program.replace("127.0.0.1:8080", str(app.rest_address)))
    printed, errors = await asyncio.wait_for(running.communicate(), 20)
    assert (running.returncode, b"Traceback" in errors) == (0, False)
    assert [text for text in shown if text not in printed.decode()] == []


async def test_the_program_with_agoras_sdk_runs(serve: Serve) -> None:
    """The program in docs/agora.md works as printed."""
    app = await serve()
    (program,) = blocks(DOCS["agora.md"], "python")
    running = await start(program.replace("127.0.0.1:8080", str(app.rest_address)))
    printed, errors = await asyncio.wait_for(running.communicate(), 60)
    assert (running.returncode, printed) == (0, b"assistant Welcome.\n"), errors


def test_everything_of_the_client_is_documented() -> None:
    """Each option, each error and each fact of a session is named in docs/client.md, options with their defaults."""
    facts = [name for name, value in vars(SessionFacts).items() if isinstance(value, property)]
    errors = [name for name in client.__all__ if issubclass(getattr(client, name), ClientError)]
    names = [*Options.__dataclass_fields__, *errors, *facts]
    assert [name for name in names if f"`{name}`" not in DOCS["client.md"]] == []
    for name in ("first_delay_s", "longest_delay_s", "fallback_after", "websocket_every_s", "close_timeout_s"):
        row = next(line for line in DOCS["client.md"].splitlines() if line.startswith("| ") and f"`{name}`" in line)
        assert f"{getattr(Options, name):g}" in row.split("|")[2], name


def test_the_client_s_own_codes_are_documented() -> None:
    """Codes that the server does not have stand in docs/client.md, with the error that has them."""
    own = [client.BufferFull(1, 1), client.Unreachable(""), client.Unacknowledged({}), client.Closed()]
    rows = [f"| `{error.code}` | `{type(error).__name__}` |" for error in own]
    assert [row for row in [*rows, "| `no_rest_url` | `ClientError` |"] if row not in DOCS["client.md"]] == []


async def start(program: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable, "-u", "-c", program, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
