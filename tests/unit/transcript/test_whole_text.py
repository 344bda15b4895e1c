"""When a heard text was all of a reply."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from voicemem.transcript import timeline
from voicemem.transcript.timeline import TextTimeline, Timeline, WholeText

PIECES = st.text(alphabet="ab \n", max_size=4)
TIMES = st.integers(0, 9)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("generated"), PIECES),
        st.tuples(st.just("replaced"), PIECES),
        st.tuples(st.just("heard"), TIMES, PIECES),
        st.tuples(st.just("heard more"), TIMES, PIECES),
        st.tuples(st.just("asked"), TIMES, TIMES),
    ),
    max_size=40,
)


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks that are full after a few entries."""
    monkeypatch.setattr(timeline, "FULL", 3 * timeline.WIDTH)


@pytest.mark.usefixtures("small_blocks")
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(STEPS)
def test_a_heard_text_is_found_as_by_a_search(steps: list[tuple[str, ...]]) -> None:
    """However the text and the heard texts grow, the first equal one is found, in every window of time."""
    whole, series, text, heard = WholeText(), TextTimeline(Timeline()), "", list[tuple[int, str]]()
    whole.update(0, text)
    for number, (kind, *values) in enumerate(steps, 1):
        if kind in ("generated", "replaced"):
            text = text + str(values[0]) if kind == "generated" else str(values[0])
            whole.update(number, text)
        elif kind == "asked":
            until, since = int(values[0]), int(values[1])
            equal = [ts for ts, one in heard if one.split() == text.split() and since <= ts < until]
            assert whole.first_equal(series, until, since) == min(equal, default=None)
            assert whole.joined() == " ".join(text.split())
        else:
            one = str(values[1]) if kind == "heard" else series.texts.longest + str(values[1])
            heard.append((int(values[0]), one))
            series.add(int(values[0]), number, one)


def test_a_long_text_is_not_looked_through_again() -> None:
    """Once it was found, asking again goes on where the heard text ends."""
    whole, series = WholeText(), TextTimeline(Timeline())
    whole.update(1, "word " * 10_000)
    series.add(5, 1, "word " * 9_999)
    assert whole.first_equal(series, 9, 0) is None
    series.add(6, 2, "word " * 10_000)
    assert whole.first_equal(series, 9, 0) == 6
    prefixes = whole.known[id(series)]
    assert (prefixes.words, prefixes.at, prefixes.longest) == (10_000, 49_999, 50_000)
    whole.update(2, "word " * 10_000 + "end")
    assert whole.first_equal(series, 9, 0) is None
    assert prefixes.words == 10_000
