"""With an embedder, messages are found by what they mean too; without it, while it is late, or when it fails, by words.

The embedder of these tests knows no meaning: texts are alike to it where they are written alike.
"""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import asyncio
import logging
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.callers.rest import RestClient, client_with_key
from tests.support.events import final
from tests.support.profiles import examples
from tests.support.servers.embedder import MODEL, EmbeddingServer, embedding_server, embeddings
from tests.support.services import Serve, node_on, running_service
from tests.support.stores.contract import example_numbers
from tests.support.waiting import eventually
from voicemem.app import App
from voicemem.protocol.types import JsonObject
from voicemem.store.port import Store

PATH = "/v1/memories/search"
TEXTS = ("I am allergic to walnuts.", "My dog is called Rex.", "We meet at the lake on Tuesday.")
LIKE_WALNUTS = "waldnutts allergie"
"""No word of it is in a text, and many a piece of its words."""
FOREVER_MS = 10_000
"""So long a search may wait where the vector of its query is to be there however busy the machine is."""


@pytest.fixture
async def embedder() -> AsyncIterator[EmbeddingServer]:
    async with embedding_server() as running:
        yield running


def settings_for(embedder: EmbeddingServer, **more: Any) -> JsonObject:
    return {
        "embeddings_url": embedder.url,
        "embeddings_model": MODEL,
        "embeddings_key": "sk-1",
        "embeddings_wait_ms": FOREVER_MS,
        **more,
    }


@pytest.fixture
async def app(serve: Serve, embedder: EmbeddingServer) -> App:
    return await serve(**settings_for(embedder))


async def call_of(app: App, session_id: str = "s", *texts: str, **config: Any) -> RestClient:
    """A call in which this was said; each text is a turn."""
    api = RestClient(app)
    await api.create(session_id, **config)
    await api.send(*(final(turn, text, turn) for turn, text in enumerate(texts or TEXTS, 1)), session_id=session_id)
    return api


async def missing(app: App) -> int | None:
    """How many messages have no vector yet; None before anything can be told."""
    assert app.services.vectors is not None
    maker, indexer = app.services.vectors.maker, app.services.indexer
    if maker.embedder.name is None or not indexer.is_complete:
        return None
    await indexer.index_first(lambda stream: True)  # as a search does: a running call is indexed once a minute
    if indexer.changed or indexer.indexing:
        return None
    return await maker.count_missing()


async def embedded(app: App) -> None:
    """Wait until all that is indexed has vectors."""
    await eventually(0, lambda: missing(app))


async def search(api: RestClient, query: str, **wanted: Any) -> JsonObject:
    answered = await api.post(PATH, {"query": query, **wanted})
    assert 200 == answered.status, answered.body
    return dict(answered.json)


async def texts_of(api: RestClient, query: str, **wanted: Any) -> list[str]:
    return [memory["text"] for memory in (await search(api, query, **wanted))["memories"]]


async def test_what_has_no_word_of_the_query_is_found(app: App, embedder: EmbeddingServer) -> None:
    """By its vector; the answer says how each was found, and that both ways were used."""
    api = await call_of(app)
    await embedded(app)
    assert [] == await texts_of(api, LIKE_WALNUTS, mode="words")
    answer = await search(api, LIKE_WALNUTS)
    assert ("hybrid", TEXTS[0], ["vectors"], 1.0) == (
        answer["mode"], *(answer["memories"][0][name] for name in ("text", "by", "score")),
    )  # fmt: skip
    both = (await search(api, "walnuts"))["memories"][0]
    assert (TEXTS[0], ["words", "vectors"], 1.0) == (both["text"], both["by"], both["score"])
    assert {"Bearer sk-1"} == set(embedder.keys)
    assert {"float"} == {request["encoding_format"] for request in embedder.requests}


async def test_each_message_is_embedded_once_and_alone(app: App, embedder: EmbeddingServer) -> None:
    """Without the message before it; again only when its words change."""
    api = await call_of(app)
    await embedded(app)
    await api.send(final(4, "And a hat.", 4, item="u4"))
    await embedded(app)
    await api.send(final(4, "And a cat.", 5, item="u4"))
    assert ["And a cat."] == await texts_of(api, "cat", mode="words", limit=1)
    await embedded(app)
    asked = {text: count for text, count in embedder.asked.items() if text[0] in "IMWA"}
    assert dict.fromkeys((*TEXTS, "And a hat.", "And a cat."), 1) == asked


async def test_modes_are_what_they_say(app: App) -> None:
    """By words alone, by vectors alone with cosines as scores, or by both."""
    api = await call_of(app)
    await embedded(app)
    assert [TEXTS[0]] == await texts_of(api, "walnuts", mode="words", limit=1)
    answer = await search(api, TEXTS[1], mode="vectors")
    assert "vectors" == answer["mode"]
    assert (TEXTS[1], 1.0, ["vectors"]) == tuple(answer["memories"][0][name] for name in ("text", "score", "by"))
    assert all(0 < memory["score"] < 1 for memory in answer["memories"][1:])
    assert "hybrid" == (await search(api, "walnuts", mode="hybrid"))["mode"]
    assert "words" == (await search(api, "walnuts", mode="words"))["mode"]


async def test_without_an_embedder_there_are_no_vectors(serve: Serve) -> None:
    """`auto` goes by words, and says so; who asks for vectors is told how to get them."""
    app = await serve()
    api = await call_of(app)
    answer = await search(api, "walnuts")
    assert ("words", ["words"]) == (answer["mode"], answer["memories"][0]["by"])
    for mode in ("vectors", "hybrid"):
        refused = await api.post(PATH, {"query": "walnuts", "mode": mode})
        assert (400, "invalid_field") == refused.problem
        assert "--embeddings-url" in refused.json["detail"]


async def test_the_weight_says_what_meaning_counts(serve: Serve, embedder: EmbeddingServer) -> None:
    """With 0 what is found by meaning alone is not found."""
    app = await serve(**settings_for(embedder, embeddings_weight=0.0))
    api = await call_of(app)
    await embedded(app)
    answer = await search(api, "walnuts")
    assert {("words",)} == {tuple(memory["by"]) for memory in answer["memories"]}
    assert [] == await texts_of(api, LIKE_WALNUTS)


async def test_a_late_embedder_holds_up_nothing(serve: Serve, embedder: EmbeddingServer) -> None:
    """Events are acknowledged and searches answered by words; the vectors come when it answers."""
    app = await serve(**settings_for(embedder, embeddings_wait_ms=1))
    embedder.go_on.clear()
    api = await call_of(app)
    for _ in range(5):
        answer = await search(api, "walnuts")
        assert ("words", TEXTS[0], ["words"]) == (
            answer["mode"], *(answer["memories"][0][name] for name in ("text", "by")),
        )  # fmt: skip
        assert "words" == (await search(api, "walnuts", mode="vectors"))["mode"]
    assert 3 == len(await api.contents())
    embedder.go_on.set()
    await embedded(app)

    async def mode() -> str:
        return str((await search(api, "walnuts"))["mode"])

    await eventually("hybrid", mode)


@pytest.mark.long
async def test_many_searches_at_once_ask_a_bounded_number_of_times(serve: Serve, embedder: EmbeddingServer) -> None:
    """For each query once, and not for all that come at once while the embedder hangs."""
    app = await serve(**settings_for(embedder, embeddings_wait_ms=50))
    embedder.go_on.clear()
    api = await call_of(app)
    modes = await asyncio.gather(*(search(api, f"walnuts {number % 50}") for number in range(100)))
    assert {"words"} == {answer["mode"] for answer in modes}
    queries = {text: count for text, count in embedder.asked.items() if text.startswith("walnuts")}
    assert {1} == set(queries.values())
    assert 32 >= len(queries)


TROUBLE = [
    {"status": 401},
    {"status": 429},
    {"status": 500},
    {"distort": lambda vectors: b"no JSON"},
    {"distort": lambda vectors: embeddings([[float(place)] * 3 for place, _ in enumerate(vectors, 1)])},
    {"distort": lambda vectors: embeddings(vectors[:-1])},
    {"distort": lambda vectors: embeddings([*vectors, vectors[0]])},
    {"distort": lambda vectors: {"data": []}},
    {"distort": lambda vectors: b'{"data":[{"embedding":[NaN]}]}'},
]


@pytest.mark.parametrize("trouble", TROUBLE, ids=lambda one: "-".join(one))
async def test_an_embedder_that_fails_is_logged_once_and_tried_again(
    serve: Serve,
    embedder: EmbeddingServer,
    trouble: JsonObject,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Words go on meanwhile, and nothing of what it answered is kept."""
    monkeypatch.setattr("voicemem.memory.vectors.MIN_RETRY_S", 0.01)
    for name, value in trouble.items():
        setattr(embedder, name, value)
    with caplog.at_level(logging.WARNING, "voicemem"):
        app = await serve(**settings_for(embedder, embeddings_dimensions=256))
        api = await call_of(app)
        answer = await search(api, "walnuts")
        assert ("words", TEXTS[0]) == (answer["mode"], answer["memories"][0]["text"])
        assert app.services.vectors is not None
        maker = app.services.vectors.maker
        await eventually(True, lambda: asyncio.sleep(0, maker.failures >= 2))
        assert 3 == await missing(app)
        embedder.status, embedder.distort = 200, None
        await embedded(app)
        await eventually(0, lambda: asyncio.sleep(0, maker.failures))
    logged = [record.getMessage() for record in caplog.records if "embedder" in record.getMessage()]
    assert 2 == len(logged)
    assert "walnuts" not in "".join(logged)
    assert "sk-1" not in "".join(logged)


async def test_a_text_that_the_embedder_refuses_is_left_to_words(app: App, embedder: EmbeddingServer) -> None:
    """Those that came with it get their vectors, and it is not asked for again and again."""
    embedder.refused = {TEXTS[1]}
    api = await call_of(app)
    await embedded(app)
    assert TEXTS[0] == (await texts_of(api, LIKE_WALNUTS))[0]
    assert TEXTS[1] not in await texts_of(api, "Rex dog", mode="vectors")
    assert TEXTS[1] == (await texts_of(api, "dog"))[0]
    asked = embedder.asked[TEXTS[1]]
    await api.send(final(4, "And a cat.", 4))
    await embedded(app)
    assert asked == embedder.asked[TEXTS[1]]


async def test_what_was_forgotten_or_erased_is_not_found(app: App) -> None:
    """By its meaning as little as by its words."""
    for name in ("a", "b"):
        api = await call_of(app, name, user_id="ann")
    await embedded(app)
    await api.post("/v1/sessions/a/forget", {"through_turn": 1})
    assert TEXTS[0] not in await texts_of(api, LIKE_WALNUTS, session_id="a", mode="vectors")
    await api.delete("/v1/sessions/b")
    assert {"a"} == {memory["session_id"] for memory in (await search(api, LIKE_WALNUTS))["memories"]}
    await api.delete("/v1/users/ann")
    assert [] == await texts_of(api, LIKE_WALNUTS)


async def test_projects_and_users_do_not_see_each_other(app: App) -> None:
    """A search compares what is in its scope."""
    clients = {name: await client_with_key(app, "ingest", "read", project=name) for name in ("one", "two")}
    for project, api in clients.items():
        for user in ("ann", "ben"):
            await api.create(user, user_id=user)
            await api.send(final(1, f"I am allergic to walnuts, says {user} of {project}.", 1), session_id=user)
    await embedded(app)
    for project, api in clients.items():
        assert 2 == len(await texts_of(api, LIKE_WALNUTS))
        for user in ("ann", "ben"):
            expected = [f"I am allergic to walnuts, says {user} of {project}."]
            assert expected == await texts_of(api, LIKE_WALNUTS, user_id=user)


names = st.sampled_from(["ann", "ben", "核桃", '"', "a b"])


@examples(0.1)
@given(st.lists(st.tuples(names, names), min_size=1, max_size=4), names, names)
async def test_tenants_never_see_each_other(
    app: App, calls: list[tuple[str, str]], user_id: str, namespace: str
) -> None:
    """Whatever users and namespaces are called: exactly what is theirs is found."""
    number = next(example_numbers)
    api = await client_with_key(app, "ingest", "read", project=f"p{number}")
    for place, (user, space) in enumerate(calls):
        await api.create(f"s{place}", user_id=user, labels={"namespace": space})
        await api.send(final(1, f"walnuts {place}", 1), session_id=f"s{place}")
    assert [] != await texts_of(api, "walnuts", mode="words")
    await embedded(app)
    found = await texts_of(api, "wallnuts", mode="vectors", user_id=user_id, namespace=namespace)
    assert sorted(found) == [f"walnuts {place}" for place, call in enumerate(calls) if call == (user_id, namespace)]


async def test_pages_follow_each_other(app: App) -> None:
    """Without holes, and with one request to the embedder for all of them."""
    api = await call_of(app, "s", *(f"walnut {number}" for number in range(7)))
    await embedded(app)
    pages, cursor = list[str](), None
    for _ in range(3):
        answer = await search(api, "walnutts 3", limit=3, **({"cursor": cursor} if cursor else {}))
        assert "hybrid" == answer["mode"]
        pages += [memory["text"] for memory in answer["memories"]]
        cursor = answer["next_cursor"]
    assert (None, 7, sorted(pages)) == (cursor, len(pages), [f"walnut {number}" for number in range(7)])
    assert "walnut 3" == pages[0]


async def test_another_model_makes_all_vectors_again(embedder: EmbeddingServer, tmp_path: Path) -> None:
    """So do other dimensions; a start with the same ones asks for nothing."""
    store = f"sqlite:{tmp_path}/db"
    async with running_service(store=store, **settings_for(embedder)) as app:
        await call_of(app)
        await embedded(app)
    for change in ({}, {"embeddings_model": "another"}, {"embeddings_dimensions": 64}):
        embedder.asked.clear()
        settings = settings_for(embedder, **change)
        async with running_service(store=store, **settings) as app:
            await embedded(app)
            answer = await search(RestClient(app), LIKE_WALNUTS)
            assert ("hybrid", TEXTS[0]) == (answer["mode"], answer["memories"][0]["text"])
        assert bool(change) == (embedder.asked[TEXTS[0]] > 0)


async def test_a_service_that_gets_an_embedder_catches_up(embedder: EmbeddingServer, tmp_path: Path) -> None:
    """What was said before has vectors soon."""
    store = f"sqlite:{tmp_path}/db"
    async with running_service(store=store) as app:
        for number in range(60):
            await call_of(app, f"s{number}", f"walnut {number}", "dog", "lake")
    async with running_service(store=store, **settings_for(embedder)) as app:
        await embedded(app)
        assert "walnut 7" == (await texts_of(RestClient(app), "wallnut 7", mode="vectors"))[0]
    assert 64 == max(len(request["input"]) for request in embedder.requests)


async def test_a_store_without_vectors_goes_by_words(
    serve: Serve, embedder: EmbeddingServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The operator is told once, and nothing is asked of the embedder."""
    from voicemem.store.vectors import TranscriptVectors, VectorSupport

    async def none(vectors: TranscriptVectors) -> VectorSupport:
        return VectorSupport(0, "There are no vectors here.")

    monkeypatch.setattr(TranscriptVectors, "prepare_vectors", none)
    with caplog.at_level(logging.WARNING, "voicemem"):
        app = await serve(**settings_for(embedder))
        api = await call_of(app)
        for mode in ("auto", "hybrid", "vectors"):
            assert "words" == (await search(api, "walnuts", mode=mode))["mode"]
    assert ["There are no vectors here."] == [r.getMessage() for r in caplog.records if "vectors" in r.getMessage()]
    assert [] == embedder.requests


async def test_what_one_node_stores_another_finds_by_meaning(store: Store, embedder: EmbeddingServer) -> None:
    """Each makes the vectors of what it has indexed, and one those that were left undone."""
    async with node_on(store, **settings_for(embedder)) as one, node_on(store, **settings_for(embedder)) as other:
        await (await call_of(one, "s", user_id="ann")).end()

        async def found() -> list[str]:
            return (await texts_of(RestClient(other), LIKE_WALNUTS, user_id="ann", mode="vectors"))[:1]

        await eventually([TEXTS[0]], found)


async def test_the_metrics_count_requests(app: App) -> None:
    """Of messages and of queries apart."""
    api = await call_of(app)
    await embedded(app)
    await search(api, LIKE_WALNUTS)
    metrics = app.services.telemetry.metrics.render().decode()
    assert 'voicemem_llm_calls_total{result="answered",use="query"} 1.0' in metrics
    assert 'voicemem_llm_calls_total{result="failed",use="embedding"} 0.0' in metrics
    assert "voicemem_vector_scans_capped_total 0.0" in metrics


async def reindex(store: str, *flags: str) -> tuple[int, str, str]:
    """Run the command to its end, however long a busy machine takes: exit code, output, error output."""
    command = (sys.executable, "-m", "voicemem", "reindex", "--store", store, *flags)
    process = await asyncio.create_subprocess_exec(*command, stdout=PIPE, stderr=PIPE)
    output, errors = await process.communicate()
    assert process.returncode is not None
    return process.returncode, output.decode(), errors.decode()


@pytest.mark.long
async def test_reindex_makes_vectors_too(embedder: EmbeddingServer, tmp_path: Path) -> None:
    """With the flags of the embedder, and progress; a start then finds nothing left to do."""
    store = f"sqlite:{tmp_path}/db"
    async with running_service(store=store) as app:
        await call_of(app)
    flags = ("--embeddings-url", embedder.url, "--embeddings-model", MODEL)
    code, output, errors = await reindex(store, *flags)
    assert (0, "1 session indexed\n3 vectors made\n") == (code, output), errors
    async with running_service(store=store, **settings_for(embedder)) as app:
        await embedded(app)
    assert dict.fromkeys(TEXTS, 1) == {text: embedder.asked[text] for text in TEXTS}
    embedder.status = 500
    code, output, errors = await reindex(store, *flags)
    assert (1, "1 session indexed\n", True) == (code, output, "The embedder failed (500)" in errors)
    code, output, errors = await reindex(store, "--embeddings-url", embedder.url)
    assert (1, "", True) == (code, output, "--embeddings-model" in errors)


async def test_memories_get_vectors_too(app: App, embedder: EmbeddingServer) -> None:
    """When they are kept, and again when their text changes; of a removed one nothing is left to do."""
    api = RestClient(app)
    texts = ("Ann is allergic to walnuts.", "Ann has a dog.")
    kept = await api.post("/v1/memories", {"memories": [{"text": text, "user_id": "ann"} for text in texts]})
    assert 200 == kept.status, kept.body
    store, maker = app.services.store, app.services.vectors.maker if app.services.vectors else None
    assert maker is not None

    async def left() -> int | None:
        return (
            None
            if maker.embedder.name is None
            else await store.memory_vectors.count_without_vector(maker.embedder.name)
        )

    await eventually(0, left)
    assert dict.fromkeys(texts, 1) == {text: embedder.asked[text] for text in texts}
    memory = kept.json["memories"][0]["id"]
    await api.patch(f"/v1/memories/{memory}", {"text": "Ann is allergic to hazelnuts."})
    await eventually(1, lambda: asyncio.sleep(0, embedder.asked["Ann is allergic to hazelnuts."]))
    await eventually(0, left)
    await api.delete(f"/v1/memories/{memory}")
    assert 0 == await left()


async def test_memories_are_found_by_what_they_mean(app: App) -> None:
    """Beside messages, and alone; by words as well, and with pages."""
    api = await call_of(app, "s", user_id="ann")
    texts = [f"Ann cannot eat walnuts {number}." for number in range(5)]
    given = [{"text": text, "user_id": "ann", "kind": "fact"} for text in texts]
    kept = await api.post("/v1/memories", {"memories": [*given, {"text": texts[0], "user_id": "ben"}]})
    assert 200 == kept.status, kept.body
    await embedded(app)
    assert [] == await texts_of(api, LIKE_WALNUTS, user_id="ann", mode="words")
    answer = await search(api, LIKE_WALNUTS, user_id="ann")
    assert ("hybrid", {"message", "fact"}) == (answer["mode"], {memory["kind"] for memory in answer["memories"]})
    assert {"ann"} == {memory["user_id"] for memory in answer["memories"]}
    facts = await search(api, "walnuts", user_id="ann", kinds=["fact"])
    assert ("hybrid", 5) == (facts["mode"], len(facts["memories"]))
    assert {("words", "vectors")} == {tuple(memory["by"]) for memory in facts["memories"]}
    alone = await search(api, texts[3], user_id="ann", kinds=["fact"], mode="vectors")
    assert ("vectors", texts[3], 1.0) == (alone["mode"], alone["memories"][0]["text"], alone["memories"][0]["score"])
    pages, cursor = list[str](), None
    for _ in range(3):
        page = await search(
            api, LIKE_WALNUTS, user_id="ann", kinds=["fact"], limit=2, **({"cursor": cursor} if cursor else {})
        )
        pages += [memory["text"] for memory in page["memories"]]
        cursor = page["next_cursor"]
    assert (None, texts) == (cursor, sorted(pages))


async def test_queries_are_redacted_before_they_are_sent(serve: Serve, embedder: EmbeddingServer) -> None:
    """An agent may search for what the caller has just said."""
    api = await call_of(await serve(**settings_for(embedder, redact=("cards",))))
    await api.post(PATH, {"query": "Whose card is 4929 1234 5678 9012?", "mode": "vectors"})
    assert "Whose card is 4929 12██ ████ ████?" in embedder.asked
    assert not any("1234" in text for text in embedder.asked)
