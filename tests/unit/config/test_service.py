"""The settings of the service: what is taken, what keeps it from starting."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.rows import every_row
from voicemem.config.service import (
    Address,
    Settings,
    check_binding,
    check_service_settings,
    is_loopback,
    parse_address,
    parse_assistants,
    parse_memories_ttl,
    parse_variables,
    shown_store,
)
from voicemem.errors import CannotStart

EVERYWHERE = Address("0.0.0.0", 0)
ADMIN_KEY = "sixteen letters."


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("127.0.0.1:8080", Address("127.0.0.1", 8080)),
        ("localhost:0", Address("localhost", 0)),
        ("[::1]:65535", Address("::1", 65535)),
        (":8080", Address("127.0.0.1", 8080)),
        ("memory.internal:80", Address("memory.internal", 80)),
    ],
)
def test_an_address_is_host_and_port(text: str, expected: Address) -> None:
    """HOST:PORT is read, an IPv6 host in brackets; without a host it is this machine."""
    assert expected == parse_address(text)


@pytest.mark.parametrize("text", ["127.0.0.1:8080", "[::1]:80", "a.example:1"])
def test_an_address_is_written_as_it_is_read(text: str) -> None:
    """The text of an address can be read again."""
    assert text == str(parse_address(text))


@every_row(
    "text", ["", "8080", "localhost", "localhost:", "localhost:x", "localhost:65536", "localhost:-1", "::1:80", "a b:1"]
)
def test_what_is_no_address_is_refused(text: str) -> None:
    """A mistake in an address is told with an example of a right one."""
    with pytest.raises(CannotStart, match="HOST:PORT"):
        parse_address(text)


@every_row("host", ["localhost", "LOCALHOST", "localhost.", "127.0.0.1", "127.8.9.1", "::1", "[::1]"])
def test_this_machine(host: str) -> None:
    """Loopback has several names."""
    assert is_loopback(host)


@every_row(
    "host",
    [
        "",
        "0.0.0.0",
        "::",
        "10.0.0.1",
        "192.168.0.1",
        "example.com",
        "localhost.example.com",
        "127.0.0.1.example.com",
        "notlocalhost",
        "localhost@example.com",
        "2130706433",
        "127.1",
        "0x7f000001",
        "①②⑦.⓪.⓪.①",
        "127.0.0.1\0",
        "localhost\n",
    ],
)
def test_other_machines_and_spellings(host: str) -> None:
    """What is not plainly loopback is not loopback."""
    assert not is_loopback(host)


@every_row(
    "settings",
    [
        {},
        {"store": "memory:"},
        {"store": "sqlite:/var/lib/a b.db"},
        {"webhook_url": "http://10.0.0.1:9000/hook", "webhook_secret": "s"},
        {"webhook_url": "https://x.example/", "webhook_contents": "standard"},
        {"admin_key": ADMIN_KEY},
        {"llm_url": "https://10.0.0.1:9001/v1?api-version=1", "llm_api_key": "sk-a b~", "llm_timeout": 0.5},
        {"embeddings_url": "http://10.0.0.1/v1", "embeddings_model": "m", "embeddings_dimensions": 4096},
        {"embeddings_weight": 0.0, "embeddings_wait_ms": 1},
        {"request_rate": 0.0, "event_rate": 0.5},
        {"ui": False},
        {"ui_origin": "https://memory.example"},
        {"ui_origin": "https://[2001:db8::1]:8443"},
        {"ui_origin": "http://localhost:9000"},
        {"ui_origin": "http://memory.example", "insecure": True},
    ],
)
def test_good_settings(settings: dict[str, Any]) -> None:
    """Nothing is wrong with these; the operator's receiver may be a private address."""
    check_service_settings(Settings(**settings))


@every_row(
    ("settings", "word"),
    [
        ({"store": "sqlite:"}, "store"),
        ({"store": "voicemem.db"}, "store"),
        ({"store": "mysql://x"}, "store"),
        ({"store": ""}, "store"),
        ({"webhook_url": "ftp://x/"}, "webhook"),
        ({"llm_url": "ftp://x/"}, "LLM"),
        ({"llm_url": "http://user:hunter2@x.example/v1"}, "LLM"),
        ({"llm_url": "http://x.example/a b"}, "LLM"),
        ({"llm_url": "http://x.example/v1\n"}, "LLM"),
        ({"llm_url": "http://x.example", "llm_api_key": "hunter2\n"}, "key"),
        ({"llm_url": "http://x.example", "llm_api_key": "hunter2\u20ac"}, "key"),
        ({"llm_timeout": 0.0}, "seconds"),
        ({"memory_budget": 15}, "MiB"),
        ({"memory_budget": 512 * 1024 * 1024}, "MiB"),
        ({"llm_total_timeout": 0.0}, "seconds"),
        ({"llm_total_timeout": float("inf")}, "seconds"),
        ({"llm_timeout": float("inf")}, "seconds"),
        ({"llm_timeout": float("nan")}, "seconds"),
        ({"llm_api_key": "k"}, "LLM"),
        ({"llm_model": "m"}, "LLM"),
        ({"embeddings_url": "ftp://x/", "embeddings_model": "m"}, "embedder"),
        ({"embeddings_url": "http://user:hunter2@x.example/v1", "embeddings_model": "m"}, "embedder"),
        ({"embeddings_url": "http://x.example"}, "--embeddings-model"),
        ({"embeddings_url": "http://x.example", "embeddings_model": "m\n"}, "--embeddings-model"),
        ({"embeddings_url": "http://x.example", "embeddings_model": "m", "embeddings_key": "hunter2\n"}, "key"),
        ({"embeddings_url": "http://x.example", "embeddings_model": "m", "embeddings_dimensions": 0}, "dimensions"),
        ({"embeddings_url": "http://x.example", "embeddings_model": "m", "embeddings_dimensions": 4097}, "dimensions"),
        ({"embeddings_model": "m"}, "not its URL"),
        ({"embeddings_key": "hunter2"}, "not its URL"),
        ({"embeddings_weight": -0.1}, "weight"),
        ({"embeddings_weight": float("nan")}, "weight"),
        ({"embeddings_wait_ms": 0}, "ms"),
        ({"webhook_url": "https://"}, "webhook"),
        ({"webhook_url": "receiver.example"}, "webhook"),
        ({"webhook_secret": "s"}, "webhook"),
        ({"webhook_contents": "standard"}, "no webhook URL"),
        ({"webhook_url": "https://x.example/", "webhook_contents": "some"}, "full, standard or vcon"),
        ({"webhook_url": "https://x.example/", "webhook_secret": "whsec_notbase64"}, "base64"),
        ({"rest": Address("::1", 80), "ingest": Address("::1", 80)}, "port 80"),
        ({"rest": EVERYWHERE._replace(port=80), "ingest": Address("127.0.0.1", 80)}, "port 80"),
        ({"admin_key": "fifteen letters"}, "VOICEMEM_ADMIN_KEY"),
        ({"admin_key": ""}, "VOICEMEM_ADMIN_KEY"),
        ({"request_rate": -1.0}, "rate"),
        ({"event_rate": -0.1}, "rate"),
        ({"byte_rate": -1.0}, "rate"),
        ({"event_rate": float("nan")}, "rate"),
        ({"request_rate": float("inf")}, "rate"),
        *(
            ({"ui_origin": origin}, "--ui-origin is what a browser shows")
            for origin in (
                *("", "memory.example", "https://", "https://memory.example/", "https://Memory.example"),
                *("https://u:hunter2@memory.example", "https://memory.example:443", "http://localhost:80", "ftp://x"),
                *("https://memory.example\n", "https://memory.example/ui/"),
            )
        ),
        ({"ui_origin": "http://memory.example"}, "in the clear"),
    ],
)
def test_bad_settings_are_named(settings: dict[str, Any], word: str) -> None:
    """The service does not start, and says which setting is wrong."""
    with pytest.raises(CannotStart, match=word) as caught:
        check_service_settings(Settings(**settings))
    assert "hunter2" not in str(caught.value)


def test_a_bad_secret_is_not_shown() -> None:
    """The sentence about a key that is too short does not hold the key."""
    with pytest.raises(CannotStart) as caught:
        check_service_settings(Settings(admin_key="hush hush"))
    assert "hush" not in str(caught.value)


@every_row("field", ["rest", "ingest"])
@every_row("host", ["0.0.0.0", "::", "192.168.1.5", "memory.internal"])
def test_without_keys_only_loopback_is_bound(field: str, host: str) -> None:
    """Either port beyond loopback needs keys, or the flag that takes the risk."""
    settings: Any = {field: Address(host, 1)}
    with pytest.raises(CannotStart, match="--insecure"):
        check_binding(Settings(**settings), keys_needed=False)
    check_binding(Settings(**settings), keys_needed=True)
    check_binding(Settings(**settings, insecure=True), keys_needed=False)


@pytest.mark.parametrize(
    ("store", "shown"),
    [
        ("sqlite:calls.db", "sqlite:calls.db"),
        ("postgresql://voicemem@db/calls", "postgresql://voicemem@db/calls"),
        (
            "postgresql://voicemem:se:cret@db,other/calls?sslmode=require",
            "postgresql://voicemem@db,other/calls?sslmode=require",
        ),
        ("postgresql:///calls?password=secret&host=db", "postgresql:///calls?password=…&host=db"),
    ],
)
def test_a_password_is_not_shown(store: str, shown: str) -> None:
    """Whatever else the URL of a store holds is shown as it is."""
    assert shown == shown_store(store)


def test_how_long_memories_are_kept() -> None:
    """A number and a unit for each kind, once."""
    assert parse_memories_ttl(("episode=90d", "fact=2h")) == {"episode": 90 * 86_400_000, "fact": 7_200_000}


@every_row("given", ["episode", "episode=", "episode=90", "episode=0d", "message=1d", "fact=1d,fact=2d"])
def test_how_long_memories_cannot_be_kept(given: str) -> None:
    """The sentence says what would be right."""
    with pytest.raises(CannotStart, match="write KIND=90d"):
        check_service_settings(Settings(memories_ttl=tuple(given.split(","))))


def test_variables_are_texts_numbers_and_booleans() -> None:
    """By their names; without the setting there are none."""
    assert parse_variables(None) == {}
    given = '{"tier": "none", "open": true, "lines": 3, "rate": 0.5}'
    assert parse_variables(given) == {"tier": "none", "open": True, "lines": 3, "rate": 0.5}


LONG = {"a": "x" * 4001}


@every_row(
    "given",
    [
        *("", "[]", "none", '"x"', '{"a": NaN}', '{"a": null}', '{"a": []}', '{"a": {}}', '{"": 1}', '{"a-b": 1}'),
        *('{"1a": 1}', '{"memory": ""}', '{"caller_known": "yes"}', json.dumps(LONG), json.dumps({"x" * 65: 1})),
    ],
)
def test_what_is_no_variable_keeps_the_service_from_starting(given: str) -> None:
    """The sentence says what would have been right."""
    with pytest.raises(CannotStart, match=r"ariable"):
        check_service_settings(Settings(variables=given))


def test_an_assistant_is_for_all_projects_or_one() -> None:
    """ID, or PROJECT=ID."""
    assert parse_assistants(("asst_1", "shop=asst-2")) == {None: "asst_1", "shop": "asst-2"}
    for given in (("a b",), ("",), ("shop=",), ("a", "b"), ("shop=a", "shop=b"), ("a/b=c",)):
        with pytest.raises(CannotStart, match="PROJECT=ID"):
            parse_assistants(given)
