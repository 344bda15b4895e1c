"""The settings of the service, as one frozen value made and checked once (design, section 11).

Flags and environment variables are read in `cli.py`; everything else gets what it needs as arguments.
"""

from __future__ import annotations

import ipaddress
import re
from functools import lru_cache
from math import inf
from typing import Literal, NamedTuple

from msgspec import Struct

from voicemem.config.secrets import check_webhook_secret
from voicemem.config.session import URL_PATTERN, URL_RULE
from voicemem.errors import CannotStart, Refused

SQLITE_PREFIX = "sqlite:"
MEMORY_STORE = "memory:"
ANY_HOST = "0.0.0.0"  # noqa: S104 (to be told, not to be bound)


class Address(NamedTuple):
    """Where a server listens; port 0 takes a free one."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        return is_loopback(self.host)


class Settings(Struct, frozen=True, kw_only=True):
    """Everything that can be set for `voicemem serve`."""

    store: str = f"{SQLITE_PREFIX}voicemem.db"
    rest: Address = Address("127.0.0.1", 8080)
    ingest: Address = Address("127.0.0.1", 8765)
    webhook_url: str | None = None
    webhook_secret: str | None = None
    insecure: bool = False
    admin_key: str | None = None
    allow_addresses: tuple[str, ...] = ()
    """Networks that addresses given through the API may be in, though they are not public."""
    agora_contents: Literal["full", "standard"] = "full"
    """What a message carries in the history on Agora's paths; `standard` is role and content, for strict readers."""
    request_rate: float = 2_000.0
    """HTTP requests and handshakes per second and key; 0 is without limit."""
    event_rate: float = 50_000.0
    """Events per second and key; 0 is without limit."""
    llm_url: str | None = None
    """Where the gateway calls for sessions that give no `llm.url`; may be a private address."""
    llm_api_key: str | None = None
    llm_model: str | None = None
    llm_timeout: float = 30.0
    """Seconds without a byte after which a call of an LLM is given up."""
    memory: str | None = None
    """The memory policy of sessions that choose none, as JSON: `{"policy":"window","max_tokens":4000}`."""
    policies: tuple[str, ...] = ()
    """Of the operator's own: NAME=MODULE:CLASS."""
    model_windows: tuple[str, ...] = ()
    """Tokens of models' contexts: MODEL=TOKENS."""
    log_format: str = "text"
    log_level: str = "warning"


def parse_address(text: str) -> Address:
    """HOST:PORT, an IPv6 host in brackets. Raises `CannotStart`."""
    match = re.fullmatch(r"(?:\[([0-9A-Fa-f:.%]+)\]|([^:\s\[\]]*)):(\d{1,5})", text)
    if match is None or int(match[3]) > 65535:
        raise CannotStart(f"{text!r} is no address; write HOST:PORT, such as 127.0.0.1:8080.")
    return Address(match[1] or match[2] or "127.0.0.1", int(match[3]))


def check_service_settings(settings: Settings) -> None:
    """Raise `CannotStart` for what can be found wrong without opening anything."""
    check_store(settings.store)
    check_ports(settings.rest, settings.ingest)
    if settings.webhook_url is not None and not re.match(r"https?://[^/\s]", settings.webhook_url):
        raise CannotStart("The webhook URL must begin with http:// or https://.")
    if settings.webhook_secret is not None and settings.webhook_url is None:
        raise CannotStart("A webhook secret was given, but no webhook URL.")
    try:
        check_webhook_secret(settings.webhook_secret)
    except Refused as refused:
        raise CannotStart(refused.detail) from None
    check_llm(settings)
    if settings.agora_contents not in ("full", "standard"):
        raise CannotStart("The contents on Agora's paths are full or standard.")
    if settings.admin_key is not None and len(settings.admin_key) < 16:
        raise CannotStart("VOICEMEM_ADMIN_KEY must have at least 16 characters.")
    if not (0 <= settings.request_rate < inf and 0 <= settings.event_rate < inf):
        raise CannotStart("A rate is a number per second, or 0 for no limit.")


def check_llm(settings: Settings) -> None:
    """Raise `CannotStart` for what no LLM can be called with; neither its address nor its key is shown."""
    if settings.llm_url is not None and not re.fullmatch(URL_PATTERN, settings.llm_url):
        raise CannotStart(f"The LLM's URL cannot be this one. {URL_RULE}; its key is given apart, as --llm-api-key.")
    if settings.llm_api_key is not None and not re.fullmatch(r"[ -~]*", settings.llm_api_key):
        raise CannotStart("The LLM's key has characters that no header can have, such as the end of a line.")
    if settings.llm_url is None and (settings.llm_api_key is not None or settings.llm_model is not None):
        raise CannotStart("An LLM's key or model was given, but no URL of it.")
    if not 0 < settings.llm_timeout < inf:
        raise CannotStart("The timeout of LLMs is a number of seconds above 0.")


def check_store(store: str) -> None:
    """Raises `CannotStart` for what is no store; a program may give anything."""
    if not (isinstance(store, str) and re.fullmatch(r"memory:|sqlite:[^\0]+", store)):
        raise CannotStart(f"The store {store!r} is unknown; write sqlite:PATH or memory:.")


def check_ports(rest: Address, ingest: Address) -> None:
    """Raise `CannotStart` when both servers would take the same port."""
    if rest.port and rest.port == ingest.port and (rest.host == ingest.host or ANY_HOST in (rest.host, ingest.host)):
        raise CannotStart(f"REST and ingest cannot both listen on port {rest.port}; each needs a port of its own.")


def check_binding(settings: Settings, keys_needed: bool) -> None:
    """Raise `CannotStart` when anybody on the network could use a service without keys."""
    if keys_needed or settings.insecure:
        return
    for address in (settings.rest, settings.ingest):
        if not address.is_loopback:
            raise CannotStart(
                f"Without keys the service listens on loopback only, not on {address}. Make a key"
                " (voicemem keys create), set VOICEMEM_ADMIN_KEY, or say --insecure."
            )


@lru_cache(maxsize=256)  # asked at every request
def is_loopback(host: str) -> bool:
    """Whether a host, with or without brackets, is this machine by name or address."""
    name = host.strip("[]").rstrip(".").lower()
    if name == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
