"""What the library refuses: before a file is made, and before anything of it is stored."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import voicemem
from tests.support.events import final
from tests.support.rows import every_row
from voicemem.context.policies import Choice, Remembered
from voicemem.errors import CannotStart, Refused, StoreUnavailable, VoicememError
from voicemem.library.sessions import open_library

Do = Callable[[Any, Any], Any]


class Stepping:
    """A policy that says what is wrong with its parameters."""

    def __init__(self, step: int = 2) -> None:
        if step < 1:
            raise ValueError("step must be at least 1")

    def choose(self, remembered: Remembered) -> Choice:
        return Choice([], "skipped")


@pytest.mark.parametrize(
    "store", ["postgres:x", "calls.db", "memry:", "sqlite:", "", 5, None, b"memory:", "sqlite:a\0"]
)
async def test_what_is_no_store_makes_no_file(store: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sentence is that of `--store`."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CannotStart, match=r"The store .* is unknown; write sqlite:PATH, .* or memory:\."):
        async with voicemem.open(store):
            pass
    assert [] == os.listdir(tmp_path)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"project": 5}, "A project must be 1 to 128"),
        ({"project": "a b"}, "A project must be 1 to 128"),
        ({"policies": {"full": Stepping}}, "The policy full comes with voicemem"),
        ({"policies": {"x": 5}}, "no method `choose`"),
        ({"policies": {"x": Stepping()}}, "no method `choose`"),
        ({"policies": {"Not A Name": Stepping}}, "cannot be the name of a policy"),
        ({"policies": {5: Stepping}}, "cannot be the name of a policy"),
        ({"policies": [Stepping]}, "must be a dict of classes"),
        ({"model_windows": {"m": "x"}}, "model_windows"),
        ({"model_windows": {"m": -1}}, "model_windows"),
        ({"model_windows": {"m": 0}}, "model_windows"),
        ({"model_windows": 5}, "model_windows"),
        ({"memory": {"policy": object()}}, "cannot be written as JSON"),
        ({"memory": {"policy": "thrid"}}, "The policy must be one of full, recent"),
        ({"memory": {"policy": "s", "parameters": {"step": 0}}, "policies": {"s": Stepping}}, "at least 1"),
    ],
)
async def test_options_that_cannot_be_make_no_file(options: Any, told: str, tmp_path: Path) -> None:
    """They raise `CannotStart`, as the service does."""
    with pytest.raises(CannotStart, match=told):
        async with voicemem.open(f"sqlite:{tmp_path}/calls.db", **options):
            pass
    assert [] == os.listdir(tmp_path)


MESSAGE = {"type": "message", "role": "user", "text": "Hi", "source": "message"}
DEEP: Any = []
for _ in range(40):
    DEEP = [DEEP]
REFUSED: list[tuple[str, Do]] = [
    ("invalid_field", lambda library, call: call.record("x")),
    ("invalid_field", lambda library, call: call.record([MESSAGE])),
    ("invalid_field", lambda library, call: call.record(MESSAGE, producer=5)),
    ("invalid_field", lambda library, call: call.record(MESSAGE, producer="")),
    ("invalid_field", lambda library, call: call.record(MESSAGE | {"metadata": {"a": b"x"}})),
    ("invalid_field", lambda library, call: call.record(MESSAGE | {"metadata": {"a": float("nan")}})),
    ("invalid_field", lambda library, call: call.record(MESSAGE | {"metadata": {"a": 2**60}})),
    ("invalid_field", lambda library, call: call.record(MESSAGE | {"text": "\ud800"})),
    ("too_deep", lambda library, call: call.record(MESSAGE | {"metadata": {"a": DEEP}})),
    ("too_big", lambda library, call: call.record(MESSAGE | {"metadata": {"a": "x" * 2**20}})),
    ("invalid_field", lambda library, call: call.add([{"role": "user", "content": "Hi"}])),
    ("invalid_field", lambda library, call: call.add({"role": "user", "content": b"Hi"})),
    ("missing_field", lambda library, call: call.add()),
    ("invalid_field", lambda library, call: call.working_memory.execute({"x": 1})),
    ("invalid_field", lambda library, call: call.working_memory.execute("x")),
    ("invalid_field", lambda library, call: call.working_memory.append(5)),
    ("invalid_field", lambda library, call: call.working_memory.replace(None)),
    ("invalid_field", lambda library, call: call.working_memory.clear(expected="x")),
    ("invalid_field", lambda library, call: call.working_memory.read(version=0)),
    ("invalid_field", lambda library, call: call.working_memory.read(version="1")),
    ("unknown_version", lambda library, call: call.working_memory.read(version=7)),
    ("invalid_field", lambda library, call: call.working_memory.versions(limit=0)),
    ("invalid_field", lambda library, call: call.update_data(a=object())),
    ("invalid_field", lambda library, call: call.update_data(a=2**60)),
    ("invalid_field", lambda library, call: call.update(labels=5)),
    ("invalid_field", lambda library, call: call.context(tols=True)),
    ("invalid_field", lambda library, call: call.context(policy="recent")),
    ("invalid_field", lambda library, call: call.usage(tols=True)),
    ("invalid_field", lambda library, call: call.context(max_history=0)),
    ("invalid_field", lambda library, call: call.context(max_history=1025)),
    ("invalid_field", lambda library, call: call.context(memory={"policy": "full", "max_tokens": 5})),
    ("invalid_field", lambda library, call: call.context(memory=5)),
    ("invalid_field", lambda library, call: call.context(enrich=["nothing"])),
    ("invalid_field", lambda library, call: call.history(open="x")),
    ("invalid_field", lambda library, call: call.forget(keep_last="x")),
    ("invalid_field", lambda library, call: call.fork("1")),
    ("invalid_field", lambda library, call: call.fork(True)),
    ("invalid_field", lambda library, call: call.end(reason=5)),
    ("invalid_field", lambda library, call: library.create("a b")),
    ("invalid_field", lambda library, call: library.create(colour="red")),
    ("invalid_field", lambda library, call: library.get(5)),
    ("unknown_session", lambda library, call: library.get("nobody")),
    ("invalid_field", lambda library, call: library.list(state="x")),
    ("invalid_field", lambda library, call: library.list(limit=0)),
    ("invalid_field", lambda library, call: library.list(user_id=5)),
    ("invalid_field", lambda library, call: library.restore({})),
    ("invalid_checkpoint", lambda library, call: library.restore(b"{}")),
    ("invalid_field", lambda library, call: library.erase_user(5)),
]


@every_row("place", range(len(REFUSED)))
async def test_what_cannot_be_is_refused_and_changes_nothing(place: int) -> None:
    """Every method raises `Refused`, whatever it was given; the session stays as it was."""
    code, do = REFUSED[place]
    async with voicemem.open() as library:
        call = await library.create("call-1", user_id="ann")
        before = await call.info()
        with pytest.raises(Refused) as refused:
            await do(library, call)
        assert code == refused.value.code
        assert before == await call.info()


async def test_a_policy_s_own_words_are_told_to_its_author() -> None:
    """In a configuration, and in a wish."""
    memory = {"policy": "s", "parameters": {"step": 0}}
    told = r"The policy s does not take these parameters: step must be at least 1"
    async with voicemem.open(policies={"s": Stepping}) as library:
        with pytest.raises(Refused, match=told):
            await library.create(memory=memory)
        call = await library.create()
        with pytest.raises(Refused, match=told):
            await call.context(memory=memory)
        with pytest.raises(Refused, match=told):
            await call.usage(memory=memory)


async def test_a_context_shows_the_data_when_wished() -> None:
    """As `data=true` does over REST."""
    async with voicemem.open() as library:
        call = await library.create()
        await call.update_data(plan="gold")
        assert "gold" not in str(await call.context())
        assert "gold" in str(await call.context(data=True))


@pytest.mark.parametrize("stored", [True, False])
async def test_errors_of_the_store_have_their_own_classes(stored: bool, tmp_path: Path) -> None:
    """A file that is in use cannot be opened; a library that is closed has no store."""
    store = f"sqlite:{tmp_path}/calls.db" if stored else "memory:"
    async with voicemem.open(store) as library:
        call = await library.create()
        if stored:
            with pytest.raises(CannotStart, match="Another server is already using"):
                async with voicemem.open(store):
                    pass
    for one in (call.info(), library.create(), call.record(MESSAGE), call.data(), library.list()):
        with pytest.raises(StoreUnavailable):
            await one
    assert all(issubclass(kind, VoicememError) for kind in (Refused, CannotStart, StoreUnavailable))


async def test_users_are_erased_with_all_of_theirs() -> None:
    """Their sessions and their document; those of others stay."""
    async with voicemem.open() as library:
        call = await library.create("call-1", user_id="ann")
        await library.create("call-2", user_id="bob")
        await library.user_memory("ann").append("Likes tea.")
        assert 1 == await library.erase_user("ann")
        assert ["call-2"] == [one.session_id for one in await library.list()]
        assert None is (await library.user_memory("ann").read()).content
        with pytest.raises(Refused, match="unknown_session"):
            await call.info()


async def test_versions_and_what_is_unfinished_can_be_read() -> None:
    """What made the versions of a document, and replies in progress."""
    async with voicemem.open() as library:
        call = await library.create()
        await call.working_memory.append("One.")
        await call.working_memory.clear()
        versions = await call.working_memory.versions()
        assert [(2, "clear"), (1, "append")] == [(one.version, one.operation) for one in versions]
        assert (await call.working_memory.read()).updated_ms == versions[0].updated_ms
        assert [1] == [one.version for one in await call.working_memory.versions(before=2)]
        assert [2] == [one.version for one in await call.working_memory.versions(limit=1)]
        await call.record({"type": "asr", "turn_id": 1, "text": "Can you"})
        assert [] == await call.history()
        assert ["Can you"] == [one.content for one in await call.history(open=True)]


USER = {"role": "user", "content": "Hi."}


async def test_they_are_refused_in_the_library() -> None:
    """Which has the same ways in."""
    async with open_library() as library:
        call = await library.create("s")
        with pytest.raises(Refused, match="The producer name api is reserved"):
            await call.record(final(1, "Hi."), producer="api")
        await call.add(USER)
