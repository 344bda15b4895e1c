"""Comparing a small frame with a long text costs what the frame does."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from voicemem.dialects.agora_ten import begins_tightly
from voicemem.dialects.translating import begins, completed, plain

TEXTS = st.text(alphabet="ab \n", max_size=12)


@given(TEXTS, TEXTS)
def test_white_space_counts_as_runs(text: str, beginning: str) -> None:
    """Looking at no more than is needed gives what looking at all does."""
    assert begins(text, beginning) == (text.startswith(beginning) or plain(text).startswith(plain(beginning)))
    letters = ["".join(one.split()) for one in (text, beginning)]
    assert begins_tightly(text, beginning) == letters[0].startswith(letters[1])


@given(TEXTS, TEXTS)
def test_what_was_heard_stays_and_the_rest_comes_behind_it(heard: str, full: str) -> None:
    """A text that begins otherwise adds nothing."""
    found = completed(heard, full)
    assert found.startswith(heard)
    rest = plain(full)[len(plain(heard)) :] if begins(full, heard) else ""
    assert plain(found) == plain(heard + rest)
