"""`voicemem truth`: a transcript of the true calls is compared with what was heard."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
from click.testing import CliRunner, Result

from bench.harness.truth import load_calls, memory
from bench.harness.truth import score as bench_score
from tests.support.paths import TRUTH
from tests.support.rows import every_row
from tests.support.samples.true_calls import call, reply
from voicemem.cli import main
from voicemem.cli.scoring import packed_calls, words_of, words_wrong
from voicemem.cli.truth import KINDS, TrueCall

TALKED = "One two, three four? Five six"
LINE = {"call": "taxi", "item": "a1", "heard": "City cabs"}
CALLS = load_calls(TRUTH / "calls")


def truth(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, ["truth", *map(str, arguments)])


def transcript(folder: Path, *lines: Any) -> Path:
    """A file with these lines: bytes as they are, all else as JSON."""
    file = folder / "transcript.jsonl"
    file.write_bytes(b"\n".join(one if isinstance(one, bytes) else json.dumps(one).encode() for one in lines))
    return file


@every_row(
    ("heard", "wrong"),
    [
        ("", 2),
        ("One", 1),
        ("One two,", 0),
        ("one TWO three", 0),
        ("One two, three four?", 1),
        ("One too, three", 1),
        ("Well, one two", 1),
        ("two three", 1),
        ("… one — two!", 0),
    ],
)
def test_words_wrong(heard: str, wrong: int) -> None:
    """Two words had ended and the third had begun; what is too much, too little or another word counts."""
    assert words_wrong(reply(TALKED, cut=1300), heard) == wrong


def test_words_of_a_complete_reply() -> None:
    """It is all of its words."""
    assert [words_wrong(reply(TALKED), heard) for heard in (TALKED, TALKED[:-4], "")] == [0, 1, 6]


@every_row(
    ("text", "count"),
    [("您好，请讲。", 4), ("きょうは晴れ", 5), ("Zimmer 4 – bitte!", 3), ("don't stop", 2), ("。…", 0)],
)
def test_words_of_scripts(text: str, count: int) -> None:
    """In scripts without spaces, characters count; a small kana belongs to the one before it."""
    assert len(words_of(text)) == count


@every_row("true", CALLS, ids=lambda true: true.name)
def test_the_score_of_a_memory_is_that_of_the_bench(true: TrueCall) -> None:
    """Of every reply, whether a beginning of it was remembered, all or nothing."""
    for kind in ("position", "generated"):
        found = {message.timestamp: message for message in memory(true, KINDS[kind], 0, 0)}
        for one in true.replies:
            message = found.get(true.began + one.deltas[0].at_ms)
            heard = "" if message is None else message.content
            assert words_wrong(one, heard) == abs(bench_score(true, one, message).wrong)


def test_the_calls_are_part_of_the_package(tmp_path: Path) -> None:
    """Anyone who installs it can write them into a folder, and they are those of `fixtures/truth`."""
    assert packed_calls() == {true.name: true for true in CALLS}
    done = truth("export", tmp_path / "new" / "calls")
    assert done.exit_code == 0, done.output
    assert load_calls(tmp_path / "new" / "calls") == CALLS


def test_a_transcript_is_scored(tmp_path: Path) -> None:
    """Each call, and all of them; what a call's transcript lacks was not heard, and other calls are left out."""
    heard = [{"call": "taxi", "item": one.item, "heard": one.heard()} for one in packed_calls()["taxi"].replies]
    done = truth("score", transcript(tmp_path, *heard[:-1], b"", {**LINE, "call": "museum", "heard": ""}), "--json")
    found = json.loads(done.output)
    taxi = [one["wrong"] for one in found["replies"] if one["call"] == "taxi"]
    assert taxi[:-1] == [0] * (len(heard) - 1)
    assert taxi[-1] > 0
    assert {one["call"] for one in found["replies"]} == {"taxi", "museum"}
    assert found["missing"] == 1 + len(packed_calls()["museum"].replies) - 1
    table = truth("score", transcript(tmp_path, *heard), "--worst", "1")
    assert "all                                3         0.00   100%" in table.output


@every_row(
    ("lines", "says"),
    [
        ([], "has no replies"),
        ([b"{"], "line 1"),
        ([b"\xff"], "line 1"),
        ([LINE, 7], "line 2"),
        ([{"call": "taxi", "item": "a1"}], "`heard`"),
        ([{**LINE, "heard": None}], "$.heard"),
        ([{**LINE, "text": "x"}], "`text`"),
        ([{**LINE, "call": "taxis"}], "did you mean `taxi`?"),
        ([{**LINE, "item": "a99"}], "It has a1, a2, a3"),
        ([LINE, b"", LINE], "line 3: a1 of taxi is there twice"),
    ],
)
def test_what_is_no_transcript_is_refused(lines: list[Any], says: str, tmp_path: Path) -> None:
    """The error names the line, and what would have been right."""
    done = truth("score", transcript(tmp_path, *lines))
    assert done.exit_code == 1
    assert says in done.output, done.output


def test_calls_of_ones_own(tmp_path: Path) -> None:
    """A folder of other true calls is scored; one without any, or with a broken one, is refused."""
    own = msgspec.structs.replace(call(reply(TALKED, cut=1300)), name="own")
    (tmp_path / "own.json").write_bytes(msgspec.json.encode(own))
    file = transcript(tmp_path, {"call": "own", "item": own.replies[0].item, "heard": "One two"})
    assert json.loads(truth("score", file, "--calls", tmp_path, "--json").output)["words_wrong"] == 0
    (tmp_path / "empty").mkdir()
    assert "no true calls" in truth("score", file, "--calls", tmp_path / "empty").output
    unplayed = msgspec.structs.replace(own.replies[0], played=[])
    (tmp_path / "own.json").write_bytes(msgspec.json.encode(msgspec.structs.replace(own, replies=[unplayed])))
    assert "needs deltas, synthesised and played" in truth("score", file, "--calls", tmp_path).output
