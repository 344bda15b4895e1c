"""The calls of fixtures/truth/ are made by their script."""

from __future__ import annotations

import subprocess
import sys
import wave
from pathlib import Path

import pytest

from tests.support.paths import TRUTH
from voicemem.cli.truth import load_call

MADE_WITH = "1.51"
FEW = ("taxi", "ja_takkyubin")


def make(*arguments: str) -> None:
    command = [sys.executable, str(TRUTH / "make.py"), *arguments, "--only", *FEW]
    subprocess.run(command, capture_output=True, timeout=120, check=True)


@pytest.mark.needs("espeak-ng")
def test_the_script_makes_the_calls_again(tmp_path: Path) -> None:
    """The same version of espeak-ng makes the same files, another one the same words."""
    make("--into", str(tmp_path))
    said = subprocess.run(["espeak-ng", "--version"], capture_output=True, text=True, check=True).stdout
    for name in FEW:
        made, known = tmp_path / f"{name}.json", TRUTH / "calls" / f"{name}.json"
        if f": {MADE_WITH} " in said:
            assert made.read_bytes() == known.read_bytes()
        words = [[reply.text[word.begin : word.end] for word in reply.words] for reply in load_call(made).replies]
        assert len(words) == len(load_call(known).replies)
        assert all(words)


@pytest.mark.needs("espeak-ng")
def test_the_audio_is_as_long_as_the_call(tmp_path: Path) -> None:
    """Both sides, on two channels."""
    make("--audio", str(tmp_path))
    with wave.open(str(tmp_path / "taxi.wav")) as audio:
        seconds = audio.getnframes() / audio.getframerate()
        assert audio.getnchannels() == 2
    assert abs(seconds - load_call(TRUTH / "calls" / "taxi.json").end_ms / 1000) < 2.1
