"""What the fuzzers share: recorded calls as seeds, words of the protocol, and mutations that know what events are."""

from __future__ import annotations

import json
import os
import random
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import atheris

from tests.support.paths import ROOT
from voicemem.protocol.codec import RESERVED_METADATA
from voicemem.protocol.events import Auth, JournaledEvent, SessionOpen

FIXTURES = ROOT / "fixtures"
LINES = 25
"""Of a recorded call in one seed; longer calls are cut into several."""
MAX_BYTES = 8192
KINDS = (*get_args(JournaledEvent), SessionOpen, Auth)
TYPES = [str(kind.__struct_config__.tag) for kind in KINDS]
FIELDS = sorted({name for kind in KINDS for name in kind.__struct_fields__} | RESERVED_METADATA)
VALUES: list[Any] = [
    None,
    True,
    False,
    "",
    " ",
    "a",
    "One two. ",
    "一二三",
    "👩‍🚀",
    "\u0000",
    "asr",
    "llm",
    "user",
    "assistant",
]
VALUES += [0, 1, 2, 3, 7, -1, 10, 400, 1_000, 2**53, -(2**53), 2**63, 0.5, 1e308, [], {}, [{}], {"a": [1]}]
VALUES += [[{"text": "One", "start_ms": 0, "end_ms": 300}, {"text": "two.", "start_ms": 300, "end_ms": 500}]]
VALUES += ["user", "assistant", "greeting", "silence", "message", "command", "llm_failure", {"api_key": "x"}]
VALUES += [{"interrupted": True, "interrupt_timestamp": 5, "original": "One two."}]


def seeds() -> list[bytes]:
    """The recorded calls as JSON lines, and some of them as arrays."""
    found = []
    for path in sorted(FIXTURES.rglob("*.jsonl")):
        lines = path.read_bytes().splitlines()[: 20 * LINES]
        found += [b"\n".join(lines[first : first + LINES]) for first in range(0, len(lines), LINES)]
    return found + [b"[" + seed.replace(b"\n", b",") + b"]" for seed in found[::5]]


def drive(target: Callable[[bytes], None]) -> None:
    """Fuzz with the arguments of the command line, and exit as libFuzzer does: with 0 when nothing was found."""
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        child = os.fork()  # atheris ends its process by itself, and someone must tidy up
        if child == 0:
            fuzz(target, Path(folder))
        try:
            _, status = os.waitpid(child, 0)
        except KeyboardInterrupt:
            _, status = os.waitpid(child, 0)
    sys.exit(os.waitstatus_to_exitcode(status))


def fuzz(target: Callable[[bytes], None], folder: Path) -> None:
    """Fuzz with what is needed for it in this folder; does not return."""
    corpus = folder / "corpus"
    corpus.mkdir()
    for number, seed in enumerate(seeds()):
        (corpus / f"{number:04}").write_bytes(seed)
    words = folder / "words"
    words.write_text("".join(f'"\\"{word}\\""\n' for word in [*TYPES, *FIELDS]), "utf-8")
    arguments = sys.argv[1:]
    if all(argument.startswith("-") for argument in arguments):
        arguments.append(str(corpus))
    flags = [f"-dict={words}", f"-max_len={MAX_BYTES}", "-timeout=20", "-rss_limit_mb=2048"]
    atheris.Setup([sys.argv[0], *flags, *arguments], target, custom_mutator=mutated)
    atheris.Fuzz()


def mutated(data: bytes, most: int, seed: int) -> bytes:
    """The input with something changed: its bytes, or the events that it holds."""
    draw = random.Random(seed)
    if draw.random() < 0.4:
        return bytes(atheris.Mutate(data, most))
    lines = data.split(b"\n")
    for _ in range(draw.randint(1, 3)):
        change(lines, draw)
    return b"\n".join(lines)[:most]


def change(lines: list[bytes], draw: random.Random) -> None:
    """Change one line, or the order of the lines."""
    if not lines:
        lines.append(b"{}")
    one, other = draw.randrange(len(lines)), draw.randrange(len(lines))
    match draw.randrange(6):
        case 0:
            lines[one], lines[other] = lines[other], lines[one]
        case 1:
            lines.insert(other, lines[one])
        case 2:
            del lines[one]
        case 3:
            lines.insert(one, json.dumps({"type": draw.choice(TYPES), "turn_id": draw.randrange(4)}).encode())
        case _:
            lines[one] = other_event(lines[one], draw)


def other_event(line: bytes, draw: random.Random) -> bytes:
    """A line with a field of its event changed, taken away or added."""
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        return line
    if not isinstance(event, dict):
        return line
    name = draw.choice([*event, draw.choice(FIELDS)])
    if name in event and draw.random() < 0.3:
        del event[name]
    elif name == "type":
        event[name] = draw.choice(TYPES)
    else:
        event[name] = draw.choice(VALUES)
    return json.dumps(event, ensure_ascii=draw.random() < 0.5).encode("utf-8", "surrogatepass")
