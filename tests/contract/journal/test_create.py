"""Sessions are created, once, with what they were given."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

from typing import Any

import pytest

from tests.support.stores.contract import HOOK, NOW
from voicemem.config.session import SessionConfig, parse_config, validate_config
from voicemem.store.port import Store


async def test_a_created_session_is_running(store: Store) -> None:
    """A new session runs from the given time, with the configuration that was given and an empty journal."""
    stream, how = await store.journal.create_session("p", "s", validate_config({"name": "joker"}), NOW)

    assert "created" == how
    assert ("p", "session", "s") == (stream.project, stream.kind, stream.id)
    assert ("running", {"name": "joker"}) == (stream.state, stream.config)
    assert (NOW, NOW, 0) == (stream.started_ms, stream.silent_since_ms, stream.position)
    assert (None, None, None) == (stream.ended_ms, stream.reason, stream.ending)
    assert stream == await store.journal.find_session("p", "s")
    assert [] == await store.journal.read_rows(stream.key, 0, 10)


async def test_an_unknown_session_is_none(store: Store) -> None:
    """A session that was never made is not found."""
    assert await store.journal.find_session("p", "s") is None


async def test_creating_again_with_the_same_configuration(store: Store) -> None:
    """The same configuration, secrets included, finds the session that is there."""
    given = {"labels": {"a": "1"}, "llm": {"api_key": "k"}}
    first, _ = await store.journal.create_session("p", "s", validate_config(given), NOW)

    assert (first, "same") == await store.journal.create_session("p", "s", validate_config(given), NOW + 1)


@pytest.mark.parametrize("other", [{}, {"llm": {"api_key": "other"}}, {"llm": {"api_key": "k", "model": "m"}}])
async def test_creating_again_with_another_configuration(store: Store, other: dict[str, Any]) -> None:
    """Another configuration, or another secret, is told apart and changes nothing."""
    given = {"llm": {"api_key": "k"}}
    first, _ = await store.journal.create_session("p", "s", validate_config(given), NOW)

    assert (first, "different") == await store.journal.create_session("p", "s", validate_config(other), NOW + 1)
    assert (first, "same") == await store.journal.create_session("p", "s", validate_config(given), NOW + 2)


async def test_a_session_belongs_to_its_project(store: Store) -> None:
    """The same id in two projects is two sessions."""
    one, _ = await store.journal.create_session("p", "s", validate_config({}), NOW)
    other, how = await store.journal.create_session("q", "s", validate_config({}), NOW)

    assert "created" == how
    assert one.key != other.key
    assert other == await store.journal.find_session("q", "s")


async def test_secrets_are_kept_apart(store: Store) -> None:
    """The configuration that can be read never holds a secret."""
    given = {"llm": {"api_key": "k1"}, "webhook": {"url": HOOK, "secret": "k2"}}
    stream, _ = await store.journal.create_session("p", "s", validate_config(given), NOW)

    assert {"llm": {}, "webhook": {"url": HOOK}} == stream.config


async def test_secrets_can_be_read_by_who_calls_out(store: Store) -> None:
    """By their place, as they are after every patch; of another session or an erased one there is nothing."""
    given = {"llm": {"api_key": "k1", "headers": {"X-A": "1"}}, "webhook": {"url": HOOK, "secret": "k2"}}
    stream, _ = await store.journal.create_session("p", "s", validate_config(given), NOW)
    other, _ = await store.journal.create_session("p", "other", validate_config({}), NOW)
    assert {
        "llm.api_key": "k1",
        "llm.headers": '{"X-A":"1"}',
        "webhook.secret": "k2",
    } == await store.journal.load_secrets(stream.key)
    assert {} == await store.journal.load_secrets(other.key)
    patch = validate_config({"llm": {"api_key": None, "headers": {"X-B": "2"}}})
    await store.journal.change_config(stream.key, patch, b'{"type":"session.update"}', NOW)
    assert {"llm.headers": '{"X-B":"2"}', "webhook.secret": "k2"} == await store.journal.load_secrets(stream.key)
    await store.retention.erase(stream.key, NOW)
    assert {} == await store.journal.load_secrets(stream.key)


@pytest.mark.parametrize(
    "given", [{"idle_timeout": None}, {"labels": None}, {"webhook": None}, {"llm": {"api_key": None, "params": None}}]
)
async def test_null_settings_are_left_at_their_defaults(store: Store, given: dict[str, Any]) -> None:
    """A setting that is given as null is one that is not given, also when it is given again."""
    stream, _ = await store.journal.create_session("p", "s", validate_config(given), NOW)
    again, how = await store.journal.create_session("p", "s", validate_config(given), NOW)

    assert SessionConfig() == parse_config(stream.config)
    assert (stream, "same") == (again, how)
