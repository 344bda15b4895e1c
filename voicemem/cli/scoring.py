"""`voicemem truth`: the true calls that are part of the package, and the score of a transcript of them."""

import re
from collections.abc import Iterator, Sequence
from importlib import resources
from pathlib import Path
from typing import NamedTuple

import click
import msgspec
from msgspec import Struct

from voicemem.cli.common import CommandFailed, json_shown
from voicemem.cli.truth import TrueCall, TrueReply, read_true_call
from voicemem.protocol.explanations import did_you_mean
from voicemem.protocol.types import SPACELESS

WORD = re.compile(rf"{SPACELESS.pattern}[ゃゅょャュョ]?|(?:(?!{SPACELESS.pattern})\S)+")
LINE = 'One line a reply, as JSON: {"call": "taxi", "item": "a3", "heard": "A cab will be with you"}.'


class Heard(Struct, frozen=True, forbid_unknown_fields=True):
    """A line of a transcript: the text that a system says was heard of a reply."""

    call: str
    item: str
    heard: str


class Score(NamedTuple):
    """The score of one reply: how far a transcript of it is right."""

    call: str
    reply: TrueReply
    heard: str | None
    """None if the transcript does not have the reply."""
    wrong: int
    """Words too many, too few or other ones; in scripts without spaces, characters."""


def words_of(text: str) -> list[str]:
    """Return the words of a text without case and marks, or in scripts without spaces its characters."""
    plain = ("".join(filter(str.isalnum, word.casefold())) for word in WORD.findall(text))
    return [word for word in plain if word]


def words_wrong(reply: TrueReply, heard: str) -> int:
    """Count the words to add, remove or replace until a text ends between the last ended and the last begun word."""
    said = words_of(reply.text)
    least, most = len(said), len(said)
    if reply.cut_ms is not None:
        position = reply.position_ms
        least = min(least, sum(word.end_ms <= position for word in reply.words))
        most = min(most, sum(word.start_ms < position for word in reply.words))
    costs = list(range(most + 1))
    """By the number of words of the true text: their distance from the words of the heard text so far."""
    for number, word in enumerate(words_of(heard), 1):
        before, costs = costs, [number]
        for place in range(most):
            costs.append(min(before[place] + (word != said[place]), before[place + 1] + 1, costs[place] + 1))
    return min(costs[least:])


def packed_calls() -> dict[str, TrueCall]:
    lines = (resources.files("voicemem.cli") / "true_calls.jsonl").read_bytes().splitlines()
    return {call.name: call for call in (msgspec.json.decode(line, type=TrueCall) for line in lines)}


def calls_of(folder: Path) -> dict[str, TrueCall]:
    """Return the true calls of a folder by name. Raises `CommandFailed`."""
    calls = [read_true_call(path) for path in sorted(folder.glob("*.json"))]
    if not calls:
        raise CommandFailed(f"{folder} has no true calls (*.json).")
    return {call.name: call for call in calls}


def read_transcript(file: Path, calls: dict[str, TrueCall]) -> dict[tuple[str, str], str]:
    """Return the heard texts of a file by call and item. Raises `CommandFailed` for another file."""
    items = {name: {reply.item for reply in call.replies} for name, call in calls.items()}
    heard: dict[tuple[str, str], str] = {}
    for number, line in enumerate(file.read_bytes().splitlines(), 1):
        if not line.strip():
            continue
        try:
            one = msgspec.json.decode(line, type=Heard)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise CommandFailed(f"{file} is not a transcript: error in line {number}: {error}. {LINE}") from None
        if one.call not in items:
            near = did_you_mean(one.call, items)
            raise CommandFailed(f"{file}, line {number}: no true call is named {one.call!r}{near}.")
        if one.item not in items[one.call]:
            names = ", ".join(reply.item for reply in calls[one.call].replies)
            raise CommandFailed(f"{file}, line {number}: {one.call} has no reply {one.item!r}. It has {names}.")
        if (one.call, one.item) in heard:
            raise CommandFailed(f"{file}, line {number}: {one.item} of {one.call} is there twice.")
        heard[one.call, one.item] = one.heard
    if not heard:
        raise CommandFailed(f"{file} has no replies. {LINE}")
    return heard


def scores(calls: dict[str, TrueCall], transcript: dict[tuple[str, str], str]) -> Iterator[Score]:
    """Yield the score of each reply of the calls in a transcript; replies that it lacks count as not heard."""
    for name in dict.fromkeys(call for call, _ in transcript):
        for reply in calls[name].replies:
            heard = transcript.get((name, reply.item))
            yield Score(name, reply, heard, words_wrong(reply, heard or ""))


class Total(NamedTuple):
    """The scores of several replies, added up."""

    name: str
    cut: int
    wrong: float
    """Wrong words per reply, on average."""
    right: int
    damaged: int
    """Replies heard to their end that the transcript does not have whole."""
    missing: int


def total(name: str, several: Sequence[Score]) -> Total:
    cut = [one.wrong for one in several if one.reply.cut_ms is not None]
    damaged = sum(one.wrong > 0 for one in several if one.reply.cut_ms is None)
    missing = sum(one.heard is None for one in several)
    return Total(name, len(cut), sum(cut) / max(1, len(cut)), cut.count(0), damaged, missing)


@click.group(short_help="Score a transcript of calls with known ground truth.")
def truth() -> None:
    """Thirty calls of which it is known, to the word, what their callers heard; and the score of a transcript of them.

    docs/evidence.md explains them, how to run a system on them, and the format of its transcript.

    \b
    Examples:
      voicemem truth export calls
      voicemem truth score transcript.jsonl
    """


@truth.command(short_help="Write the true calls into a folder.")
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
def export(folder: Path) -> None:
    """Write the true calls into FOLDER, each a file: what was said, generated, synthesised and played, and when.

    Files of the same names are replaced. `voicemem replay --truth FILE` plays one into a running service.

    \b
    Example:
      voicemem truth export calls
    """
    folder.mkdir(parents=True, exist_ok=True)
    calls = packed_calls()
    for name, call in calls.items():
        (folder / f"{name}.json").write_bytes(msgspec.json.encode(call) + b"\n")
    click.echo(f"{folder} has {len(calls)} true calls")


@truth.command(short_help="Count the words that a transcript has wrong.")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--calls",
    "folder",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="A folder of other true calls; without it, those of the package.",
)
@click.option("--worst", type=click.IntRange(0), default=0, metavar="N", help="Also show the N worst replies.")
@click.option("--json", "as_json", is_flag=True, help="Print the scores of all replies as JSON.")
def score(file: Path, folder: Path | None, worst: int, as_json: bool) -> None:
    """Count the words that FILE, a transcript of true calls, has wrong in replies that their callers cut.

    FILE has a line of JSON for each reply, with the text that your system says was heard of it:

    \b
      {"call": "taxi", "item": "a3", "heard": "A cab will be with you in six "}

    No word is wrong where the text ends between the last word that had ended and the last that had begun. A word too
    many, too few or another one counts as one; in scripts without spaces, a character. Case and punctuation do not
    count. Nothing was heard of a reply that FILE lacks; a call that it has nothing of is left out.

    \b
    Examples:
      voicemem truth score transcript.jsonl
      voicemem truth score transcript.jsonl --worst 5
      voicemem truth score transcript.jsonl --json | jq .words_wrong
    """
    calls = packed_calls() if folder is None else calls_of(folder)
    replies_scored = list(scores(calls, read_transcript(file, calls)))
    whole = total("all", replies_scored)
    if as_json:
        replies = [
            {"call": one.call, "item": one.reply.item, "cut": one.reply.cut_ms is not None, "wrong": one.wrong}
            for one in replies_scored
        ]
        counts = {"cut_replies": whole.cut, "right": whole.right, "damaged": whole.damaged, "missing": whole.missing}
        click.echo(json_shown({"words_wrong": round(whole.wrong, 3), **counts, "replies": replies}, 2))
        return
    names = dict.fromkeys(one.call for one in replies_scored)
    totals = [*(total(name, [one for one in replies_scored if one.call == name]) for name in names), whole]
    click.echo(f"{'call':24}{'cut replies':>12}{'words wrong':>13}{'right':>7}{'damaged':>9}{'missing':>9}")
    for one in totals:
        right = f"{one.right / one.cut:.0%}" if one.cut else ""
        click.echo(f"{one.name:24}{one.cut:>12}{one.wrong:>13.2f}{right:>7}{one.damaged:>9}{one.missing:>9}")
    for reply in sorted(replies_scored, key=lambda one: -one.wrong)[:worst]:
        click.echo(f"\n{reply.call} {reply.reply.item}: {reply.wrong} wrong")
        click.echo(f"  heard       {reply.reply.heard()!r}\n  transcript  {reply.heard or ''!r}")
