"""`voicemem replay --truth`: a true call onto a running service, with what was really played kept beside it."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import click
import msgspec
from msgspec.structs import replace

from voicemem.cli.common import CommandFailed
from voicemem.cli.truth.calls import TrueCall, load_call
from voicemem.cli.truth.derive import derive
from voicemem.cli.truth.kinds import Kind
from voicemem.cli.truth.played import NAME, played_call
from voicemem.client import ClientError, Options, RequestRefused
from voicemem.client.transport.rest import RestClient, session_path
from voicemem.protocol.types import JsonObject
from voicemem.runtime import now_ms

OPTIONS = Options(read_attempts=1)
LONGEST_PAUSE_S = 3600.0
"""The silences of a true call are as long as they were."""


class Staged(NamedTuple):
    """A call that is ready to be sent."""

    call: TrueCall
    session: str | None
    events: list[JsonObject]


def read_true_call(file: Path) -> TrueCall:
    """Raises `CommandFailed` for any other file."""
    try:
        return load_call(file)
    except msgspec.DecodeError as error:
        raise CommandFailed(f"{file} is not a true call, as in fixtures/truth/calls: {error}.") from None


async def stage(
    call: TrueCall, kind: Kind, session: str | None, rest_url: str | None, key: str | None, pace: float
) -> Staged:
    """Move the call so that it is played now, and keep beside its session what is played, where that can be reached."""
    call = replace(call, began=now_ms() - round(call.end_ms * (1 - 1 / pace)))
    if rest_url is not None:
        try:
            call, session = await keep_beside(call, kind, session, rest_url, key)
        except ClientError as error:
            click.secho(f"What is played is not kept beside the call: {error.detail}", fg="yellow", err=True)
        else:
            click.echo(f"watch it: {rest_url.rstrip('/')}/ui/calls/{session}/{NAME}", err=True)
    return Staged(call, session, [{**event, "seq": number} for number, event in enumerate(derive(call, kind), 1)])


async def keep_beside(
    call: TrueCall, kind: Kind, session: str | None, rest_url: str, key: str | None
) -> tuple[TrueCall, str]:
    """Open the session, and put what is played into its data; a call that was begun before keeps its times."""
    rest = RestClient(rest_url, key, OPTIONS)
    try:
        config = {"name": f"True call: {call.name}", "labels": {"truth": call.name, "evidence": kind.name}}
        opened = session or await create(rest, config)
        with suppress(RequestRefused):  # it is there, with another configuration
            await create(rest, {**config, "session_id": opened})
        path = session_path(opened, "/data")
        with suppress(RequestRefused):  # the key may write only
            data = await rest.get(path, {}, OPTIONS.request_timeout_s)
            call = replace(call, began=began_before(data, call))
        played = {NAME: played_call(call, kind.name)}
        await rest.request("PATCH", path, body=msgspec.json.encode(played))
    finally:
        await rest.close()
    return call, opened


async def create(rest: RestClient, config: JsonObject) -> str:
    return str((await rest.request("POST", "/v1/sessions", body=msgspec.json.encode(config)))["session_id"])


def began_before(data: Any, call: TrueCall) -> int:
    """When an earlier replay of this call into this session began, else when this one does."""
    played = data.get(NAME) if isinstance(data, dict) else None
    same = isinstance(played, dict) and played.get("call") == call.name and isinstance(played.get("began_ms"), int)
    return int(played["began_ms"]) if same and isinstance(played, dict) else call.began
