"""Vectors in the file of the index: compared with and without sqlite-vec, and gone with what is erased."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from math import isclose
from pathlib import Path
from random import Random

import apsw
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.support.profiles import examples
from tests.support.stores.contract import NOW
from tests.support.stores.heard import index_call, passages, reindex
from tests.support.stores.memories import memory_of, remember, stream_of, write
from voicemem.llm.embeddings import to_vector
from voicemem.store.memories import tombstone
from voicemem.store.scopes import QueryScope
from voicemem.store.sqlite import store as engine
from voicemem.store.sqlite.connection import SqliteConnection
from voicemem.store.sqlite.store import SqliteStore
from voicemem.store.vectors import MAX_COMPARED, MemoryPlace, TextToEmbed, TranscriptVectors, VectorQuery

EMBEDDER = "noise 256"
TEXTS = [f"quixotic{number} marzipan" for number in range(60)]


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    opened = SqliteStore(str(tmp_path / "voicemem.db"))
    yield opened
    await opened.close_store()


def vector_of(text: str) -> bytes:
    lots = Random(text)
    vector = to_vector([lots.gauss() for _ in range(256)])
    assert vector is not None
    return vector


async def embed(store: SqliteStore, *keys: int) -> None:
    texts = await store.transcript_vectors.find_without_vector(EMBEDDER, keys, 1_000)
    await store.transcript_vectors.save_vectors(EMBEDDER, [(one, vector_of(one.text)) for one in texts])


async def nearest(store: SqliteStore, text: str) -> list[tuple[str, float]]:
    answer = await store.transcript_vectors.find_near(VectorQuery(QueryScope("p"), EMBEDDER, vector_of(text), limit=3))
    return [(message.text, round(message.score, 4)) for message in answer.found]


async def test_python_compares_as_the_extension_does(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer of them, and the operator is told."""
    await embed(store, await index_call(store, "s", *TEXTS))
    assert await store.transcript_vectors.prepare_vectors() == (MAX_COMPARED, None)
    by_extension = await nearest(store, TEXTS[7])
    assert by_extension[0] == (TEXTS[7], 1.0)
    monkeypatch.setattr(engine, "extension_path", lambda: None)
    store.index_file.release()
    support = await store.transcript_vectors.prepare_vectors()
    assert support.max_compared == engine.MAX_COMPARED_IN_PYTHON
    assert "sqlite-vec" in (support.note or "")
    assert by_extension == await nearest(store, TEXTS[7])


coordinates = st.lists(st.floats(-1, 1, width=32), min_size=4, max_size=4)


@examples(0.5)
@given(coordinates, coordinates)
def test_both_comparisons_agree(one: list[float], other: list[float]) -> None:
    """For all vectors of length 1."""
    pair = to_vector(one), to_vector(other)
    if None not in pair:
        connection = apsw.Connection(":memory:")
        engine.add_distance(connection)
        distance = connection.execute("select vec_distance_cosine(?, ?)", pair).get
        assert isclose(distance, engine.distance_of(*pair), abs_tol=1e-5)


@pytest.mark.long
async def test_no_vector_of_an_erased_session_is_in_any_file(store: SqliteStore, tmp_path: Path) -> None:
    """Nor of a message that was replaced; others keep theirs."""
    other = await index_call(store, "other", *(f"walnut{number}" for number in range(50)))
    keys = [await index_call(store, f"s{number}", *TEXTS) for number in range(2)]
    await embed(store, other, *keys)
    await reindex(store, keys[0], {1: passages(1, *TEXTS[:20])}, position=2)
    await embed(store, await index_call(store, "later", *(f"almond{number}" for number in range(50))))
    pieces = [vector_of(text)[place : place + 16] for text in TEXTS for place in range(0, 1024, 16)]
    assert count_on_disk(tmp_path, pieces) > len(pieces) * 0.9
    for key in keys:
        await store.retention.erase(key, NOW)
    while claimed := await store.retention.claim_erased("", NOW, 1, 50):
        while await store.retention.delete_erased(claimed):
            pass
    assert await store.retention.finish_erased()
    assert count_on_disk(tmp_path, pieces) == 0
    assert (await nearest(store, "walnut7"))[0] == ("walnut7", 1.0)


def count_on_disk(folder: Path, pieces: list[bytes]) -> int:
    """How many of these bytes stand in the files of the store."""
    files = [file.read_bytes() for file in folder.iterdir()]
    return sum(any(piece in content for content in files) for piece in pieces)


@pytest.mark.parametrize(
    ("columns", "index"),
    [("project", "project"), ("user_id", "user"), ("namespace", "namespace"), ("session_id", "id")],
)
async def test_a_scan_takes_its_sessions_from_the_newest_on(store: SqliteStore, columns: str, index: str) -> None:
    """By an index of their scope, without sorting: so it may stop when it has enough."""
    await embed(store, await index_call(store, "s", "north", given={"user_id": "ann"}))
    plan = await store.index_file.read(partial(plan_of, sorted({"project", columns})))
    compared = plan[plan.index("MATERIALIZE compared") + 1 : plan.index("SCAN c")]
    assert f"transcript_sessions_by_{index} " in compared[0]
    assert compared[1].startswith("SEARCH v USING INDEX")
    assert "(stream=?)" in compared[1]
    assert [] == [step for step in compared if "TEMP B-TREE" in step]


def plan_of(columns: list[str], connection: SqliteConnection) -> list[str]:
    """The steps in which SQLite finds what is near."""
    engine.add_distance(connection.raw)
    scope = " and ".join(f"s.{column} = :{column}" for column in columns)
    query = TranscriptVectors.fill(TranscriptVectors.near, scope=scope, cosine=engine.SqliteVectors.cosine)
    values = dict.fromkeys(columns, "p") | {"vector": vector_of("north"), "embedder": 1}
    values |= {"since_ms": 0, "until_ms": 1, "most": 10, "limit": 10}
    return [str(row[-1]) for row in connection.rows(f"explain query plan {query}", **values)]


async def test_no_vector_of_a_removed_memory_is_in_any_file(store: SqliteStore, tmp_path: Path) -> None:
    """Nor of one whose text was changed, or whose user was erased."""
    texts = [f"quixotic {number}" for number in range(12)]
    for place, text in enumerate(texts):
        stream = await stream_of(store, f"user{place % 3}")
        row = memory_of(stream, f"m{place}", text)
        assert await write(store, stream, row) is not None
        await store.memory_vectors.save_vectors(
            EMBEDDER, [(TextToEmbed(MemoryPlace(row.key, row.id), text), vector_of(text))]
        )
    await remember(store, "kept", "walnuts", stream=await stream_of(store, "kept"))
    pieces = [vector_of(text)[place : place + 16] for text in texts for place in range(0, 1024, 16)]
    assert count_on_disk(tmp_path, pieces) == len(pieces)
    for place in (0, 3, 6, 9):
        stream, row = await stream_of(store, "user0"), (await store.memories.find_memories("p", [f"m{place}"]))[0]
        position = stream.position + 1
        changed = replace(row, text="x", position=position, updated_ms=NOW + 1)
        after = tombstone(row, position, NOW + 1) if place % 2 else changed
        assert await write(store, stream, after, now_ms=NOW + 1) is not None
    for user in ("user1", "user2"):
        await store.retention.erase((await stream_of(store, user)).key, NOW)
    while claimed := await store.retention.claim_erased("", NOW, 1, 50):
        while await store.retention.delete_erased(claimed):
            pass
    assert await store.retention.finish_erased()
    assert count_on_disk(tmp_path, pieces) == 0
