"""The size of a session: in memory while it is idle, and as a snapshot. Part of `bench.fold`."""

from __future__ import annotations

import gc
import os
import tracemalloc
import zlib
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

from bench.harness.folding import fold_into
from bench.harness.load import calls
from bench.harness.report import Measured, at_most, best
from voicemem.sessions.read_models.read_model import ReadModel
from voicemem.transcript.state import State, decode_state, encode_state

IDLE_TURNS = 10
"""Turns of an idle session: twenty messages."""
TRACED_SHARE = 10
"""One of this many sessions is traced, since tracing is slow and its result hardly varies."""


def idle_memory(sessions: int) -> list[Measured]:
    """Measure what a session of twenty messages takes in memory: only folded, and with its messages made."""
    texts = calls.turns(IDLE_TURNS)
    blob = encode_state(folded(texts))
    before = rss_kib()
    kept = [packed(texts) for _ in range(sessions)]
    resident = (rss_kib() - before) / sessions
    del kept
    traced = partial(traced_kib, max(1, sessions // TRACED_SHARE))
    idle_kib, read, live, restored = (
        traced(lambda: packed(texts)),
        traced(lambda: read_once(texts)),
        traced(lambda: in_use(texts)),
        traced(lambda: ReadModel(decode_state(blob))),
    )
    journal = sum(map(len, texts)) / 1024
    sleeper, one = packed(texts), in_use(texts)
    wake = best(lambda: decode_state(zlib.decompress(sleeper.packed))) * 1e6
    pack = best(lambda: zlib.compress(encode_state(one.state), 1)) * 1e6
    return [
        Measured("idle_kib", "idle session of 20 messages, packed", idle_kib, "KiB", journal, at_most(idle_kib, 25)),
        Measured("idle_rss_kib", "the same by resident memory", resident, "KiB", journal),
        Measured("pack_us", "packing it", pack, "µs"),
        Measured("unpack_us", "unpacking it", wake, "µs"),
        Measured("used_kib", "the same in use, read once", read, "KiB", journal),
        Measured("used_unread_kib", "the same in use, never read", live, "KiB", journal),
        Measured("used_restored_kib", "the same, restored from its snapshot", restored, "KiB", journal),
    ]


def traced_kib(sessions: int, make: Callable[[], ReadModel]) -> float:
    """What Python has allocated for each of them."""
    gc.collect()
    tracemalloc.start()
    kept = [make() for _ in range(sessions)]
    gc.collect()
    held = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    return held / len(kept) / 1024


def read_once(texts: Iterable[bytes]) -> ReadModel:
    read_model = in_use(texts)
    read_model.messages()
    return read_model


def packed(texts: Iterable[bytes]) -> ReadModel:
    """The memory as it is kept ten seconds after its last use."""
    read_model = read_once(texts)
    read_model.pack()
    return read_model


def in_use(texts: Iterable[bytes]) -> ReadModel:
    return ReadModel(folded(texts))


def folded(texts: Iterable[bytes]) -> State:
    return fold_into(State(), texts)


def rss_kib() -> float:
    """Resident memory of this process; 0 where it is unknown."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return 0.0
    return pages * os.sysconf("SC_PAGE_SIZE") / 1024


def snapshots(turns: int) -> list[Measured]:
    """Measure snapshots of an idle session and of a long call, compared with the bytes of their journals."""
    measured = []
    for key, number in (("idle", IDLE_TURNS), ("long", turns)):
        texts = calls.turns(number)
        state = folded(texts)
        blob = encode_state(state)
        size, journal = len(blob) / 1024, sum(map(len, texts)) / 1024
        save, load = best(partial(encode_state, state)) * 1e6, best(partial(decode_state, blob)) * 1e6
        again = best(partial(folded, texts)) * 1e6
        measured += [
            Measured(f"snapshot_{key}_kib", f"snapshot of {number} turns, beside its journal", size, "KiB", journal),
            Measured(f"snapshot_{key}_us", "making it", save, "µs"),
            Measured(f"restore_{key}_us", "restoring it, beside folding anew", load, "µs", again),
        ]
    return measured
