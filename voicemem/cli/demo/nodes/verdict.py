"""What became of the calls of the demo, as the service, its webhooks and its nodes tell it."""

from __future__ import annotations

import asyncio
import os
import sys
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import aiohttp
import msgspec
from rich.table import Table
from rich.text import Text

from voicemem.cli.common import CommandFailed
from voicemem.cli.demo.nodes.calls import Call
from voicemem.cli.demo.one_call import get
from voicemem.webhooks.signing import WebhookEvent


class Finding(NamedTuple):
    """Something that must hold, what was found of it, and whether it does hold."""

    what: str
    found: str
    holds: bool


async def find(
    http: aiohttp.ClientSession, calls: Sequence[Call], undisturbed: str, notices: Sequence[WebhookEvent]
) -> list[Finding]:
    """Look at everything that the calls have left behind."""
    expected = (await get(http, "history", undisturbed))["contents"]
    histories = [await get(http, "history", call.session_id) for call in calls]
    journals = [await read_journal(http, call.session_id) for call in calls]
    return [
        check_events(calls, journals),
        check_histories(histories, expected),
        check_sessions(histories),
        check_webhook_events(calls, notices, expected),
    ]


async def read_journal(http: aiohttp.ClientSession, session_id: str) -> list[dict[str, Any]]:
    async with http.get(f"/v1/sessions/{session_id}/events") as response:
        response.raise_for_status()
        return msgspec.json.Decoder(dict[str, Any]).decode_lines(await response.read())


def check_events(calls: Sequence[Call], journals: Sequence[Sequence[dict[str, Any]]]) -> Finding:
    """Every event of every producer is in the journal once, and nothing else of theirs."""
    lost = doubled = 0
    for call, journal in zip(calls, journals, strict=True):
        stored = Counter((one["producer"], one["seq"]) for one in journal if one["producer"] in call.sent)
        sent = {(producer, seq) for producer, count in call.sent.items() for seq in range(1, count + 1)}
        lost += len(sent - stored.keys())
        doubled += stored.total() - len(stored)
    total = sum(call.total for call in calls)
    found = f"{total} sent, {lost} lost, {doubled} stored twice"
    return Finding("events in the journals", found, not lost and not doubled)


def check_histories(histories: Sequence[dict[str, Any]], expected: object) -> Finding:
    equal = sum(history["contents"] == expected for history in histories)
    found = f"{equal} of {len(histories)} equal to that of the same call on one node, without a kill"
    return Finding("memories", found, equal == len(histories))


def check_sessions(histories: Sequence[dict[str, Any]]) -> Finding:
    ended = sum(history["state"] == "ended" for history in histories)
    found = f"{ended} of {len(histories)} ended, when their callers hung up"
    return Finding("sessions", found, ended == len(histories))


def check_webhook_events(calls: Sequence[Call], notices: Sequence[WebhookEvent], expected: object) -> Finding:
    """One webhook for each call, with the memory that the others have too."""
    of_calls = {call.session_id for call in calls}
    came = Counter(notice.body["payload"]["agent_id"] for notice in notices)
    once = sum(came[session_id] == 1 for session_id in of_calls)
    right = all(
        all(notice.verified.values()) and notice.body["payload"]["contents"] == expected
        for notice in notices
        if notice.body["payload"]["agent_id"] in of_calls
    )
    which = "" if right else "not "
    found = f"{once} of {len(of_calls)} came exactly once, {which}all with that memory and with right signatures"
    return Finding("webhooks", found, once == len(of_calls) and right)


def render_findings(findings: Sequence[Finding]) -> Table:
    table = Table(title="What became of the calls", show_header=False)
    for finding in findings:
        mark = Text("✓", style="bold green") if finding.holds else Text("✗", style="bold red")
        table.add_row(mark, finding.what, finding.found)
    return table


async def list_nodes(store: str) -> str:
    """What `voicemem nodes` prints. Raises `CommandFailed`."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "voicemem", "nodes"),
        env={**os.environ, "VOICEMEM_STORE": store},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    printed, _ = await process.communicate()
    if process.returncode:
        raise CommandFailed("voicemem nodes failed.")
    return printed.decode()
