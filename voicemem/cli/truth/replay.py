"""`voicemem replay --truth`: a true call onto a running service, with what was really played kept beside it."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import click
import msgspec
from msgspec.structs import replace

from voicemem.cli.common import CommandFailed, Server
from voicemem.cli.truth.calls import Kind, TrueCall, TrueReply, TrueUtterance, TrueWord, derive, load_call
from voicemem.client import ClientError, RequestRefused
from voicemem.client.transport.rest import RestClient, session_path
from voicemem.protocol.types import JsonObject
from voicemem.runtime import now_ms

LONGEST_PAUSE_S = 3600.0
"""The silences of a true call are as long as they were."""


def read_true_call(file: Path) -> TrueCall:
    """Raises `CommandFailed` for any other file."""
    try:
        return load_call(file)
    except msgspec.DecodeError as error:
        raise CommandFailed(f"{file} is not a true call, as in fixtures/truth/calls: {error}.") from None


async def stage(
    call: TrueCall, kind: Kind, session: str | None, server: Server | None, pace: float
) -> tuple[TrueCall, str | None, list[JsonObject]]:
    """Move the call so that it is played now, and keep beside its session what is played, where that can be reached.

    Returns it with its session and its events.
    """
    call = replace(call, began=now_ms() - round(call.end_ms * (1 - 1 / pace)))
    if server is not None:
        try:
            async with server.client() as rest:
                call, session = await keep_beside(call, kind, session, rest)
        except ClientError as error:
            click.secho(f"What is played is not kept beside the call: {error.detail}", fg="yellow", err=True)
        else:
            click.echo(f"watch it: {server.url.rstrip('/')}/ui/calls/{session}/{NAME}", err=True)
    return call, session, [{**event, "seq": number} for number, event in enumerate(derive(call, kind), 1)]


async def keep_beside(call: TrueCall, kind: Kind, session: str | None, rest: RestClient) -> tuple[TrueCall, str]:
    """Open the session, and put what is played into its data; a call that was begun before keeps its times."""
    config = {"name": f"True call: {call.name}", "labels": {"truth": call.name, "evidence": kind.name}}
    opened = session or await create(rest, config)
    with suppress(RequestRefused):  # it is there, with another configuration
        await create(rest, {**config, "session_id": opened})
    path = session_path(opened, "/data")
    with suppress(RequestRefused):  # the key may write only
        match await rest.get(path, {}, rest.options.request_timeout_s):
            case {"played": {"call": call.name, "began_ms": int(began)}}:  # an earlier replay of this call
                call = replace(call, began=began)
    await rest.request("PATCH", path, body={NAME: played_call(call, kind.name)})
    return call, opened


async def create(rest: RestClient, config: JsonObject) -> str:
    return str((await rest.request("POST", "/v1/sessions", body=config))["session_id"])


NAME = "played"
"""Its name in the `data`."""


def played_call(call: TrueCall, evidence: str) -> JsonObject:
    """All times in Unix ms, as the `ts` of events. The words of a text, joined, are the text."""
    return {
        "call": call.name,
        "evidence": evidence,
        "began_ms": call.began,
        "ended_ms": call.began + call.end_ms,
        "replies": [played_reply(reply, call.began) for reply in call.replies],
        "utterances": [spoken(utterance, call.began) for utterance in call.utterances],
    }


def played_reply(reply: TrueReply, began: int) -> JsonObject:
    """Each word as [text, from, until, heard]; the times are null of a word that was not played to its end."""
    words: list[list[object]] = []
    end = 0
    for text, word in pieces(reply.text, reply.words, reply.cut_ms is None):
        heard = reply.cut_ms is None or word.end_ms <= reply.position_ms
        times = [began + reply.time_of(at_ms) if heard else None for at_ms in (word.start_ms, word.end_ms)]
        words.append([text, *times, heard])
        end += len(text)
    if end < len(reply.text):  # the reply was cut before this was synthesised
        words.append([reply.text[end:], None, None, False])
    return {
        "turn_id": reply.turn_id,
        "item": reply.item,
        "text": reply.text,
        "heard": reply.heard(),
        "cut_ms": None if reply.cut_ms is None else began + reply.cut_ms,
        "words": words,
    }


def spoken(utterance: TrueUtterance, began: int) -> JsonObject:
    """Each word as [text, from, until]."""
    begin = began + utterance.begin_ms
    return {
        "turn_id": utterance.turn_id,
        "item": utterance.item,
        "text": utterance.text,
        "noise": utterance.noise,
        "words": [
            [text, begin + word.start_ms, begin + word.end_ms] for text, word in pieces(utterance.text, utterance.words)
        ],
    }


def pieces(text: str, words: Sequence[TrueWord], whole: bool = True) -> Iterator[tuple[str, TrueWord]]:
    """Each word with what stands after it; what stands after the last may not be known to have been spoken."""
    begins = [0, *(word.begin for word in words[1:])]
    rest = text[words[-1].end :] if words and not whole else ""
    ends = [*begins[1:], len(text) - len(rest.lstrip())]
    for word, begin, end in zip(words, begins, ends, strict=False):
        yield text[begin:end], word
