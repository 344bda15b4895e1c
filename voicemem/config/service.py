"""The settings of the service: one frozen value, made and checked once (docs/operations.md, "Settings").

Only `voicemem/cli/service_settings` reads flags, environment variables and the settings file; everything else gets its
settings as arguments.
"""

import ipaddress
import re
import shlex
from collections.abc import Sequence
from functools import lru_cache
from math import inf
from typing import Any, Literal, NamedTuple, get_args

import msgspec
from msgspec import Struct

from voicemem.config.session import URL_PATTERN, URL_RULE, Contents, Included, check_webhook_secret
from voicemem.errors import CannotStart, Refused
from voicemem.protocol.memories import GivenKind

MIB = 1024 * 1024
MIN_MEMORY_BUDGET, MAX_MEMORY_BUDGET = 16, 1024 * 1024
"""In MiB."""
SQLITE_PREFIX = "sqlite:"
MEMORY_STORE = "memory:"
POSTGRESQL_PREFIXES = ("postgresql://", "postgres://")
NO_WEBHOOK = "none"
"""The value of `webhook_url` that turns the operator's webhook off."""
REDACTIONS = ("cards", "otp", "email", "phone")
OWN_REDACTION = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
"""The operator's own redaction, MODULE:FUNCTION."""
MAX_MODEL_NAME, MAX_DIMENSIONS, MAX_WEIGHT, MAX_WAIT_MS = 256, 4_096, 100, 10_000
OWN_VARIABLES = ("memory", "last_call", "caller_known")
"""The variables that platforms get at the start of a call besides the operator's."""
VARIABLE = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}")
MAX_VARIABLES, MAX_VARIABLE, MAX_SHOWN = 100, 4_000, 40
ANY_HOST = "0.0.0.0"  # noqa: S104 (recognised here, not bound)


class Address(NamedTuple):
    """The address on which a server listens; with port 0 it takes a free port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        return is_loopback(self.host)


class Settings(Struct, frozen=True, kw_only=True):
    """All settings of `voicemem serve`."""

    store: str = f"{SQLITE_PREFIX}voicemem.db"
    rest: Address = Address("127.0.0.1", 8080)
    ingest: Address = Address("127.0.0.1", 8765)
    ingest_looks: bool = True
    """True if busy connections are read together, where the system can do that; False: each by itself."""
    webhook_url: str | None = None
    """None: what the last start with a URL has set; `none`: turned off."""
    webhook_secret: str | None = None
    webhook_contents: Contents = "full"
    """The fields of messages in these webhooks; `standard`: only role and content, for strict receivers."""
    webhook_include: tuple[str, ...] = ()
    """The further parts of these webhooks: `user_id`, `tools`, `analysis`."""
    insecure: bool = False
    ui: bool = True
    """True if the page is served, at `/ui/` of the REST port."""
    ui_origin: str | None = None
    """The page's origin behind a proxy, such as `https://memory.example`; None: on loopback only."""
    admin_key: str | None = None
    allow_addresses: tuple[str, ...] = ()
    """Private networks that may be addressed through the API; by default only public addresses may."""
    agora_contents: Literal["full", "standard"] = "full"
    """The fields of messages in the history on Agora's paths; `standard`: only role and content, for strict readers."""
    request_rate: float = 2_000.0
    """HTTP requests and handshakes per second and key; 0: no limit."""
    event_rate: float = 50_000.0
    """Events per second and key; 0: no limit."""
    byte_rate: float = 0.0
    """Bytes of events per second and key; 0: no limit."""
    open_sessions: int = 0
    """Sessions of a project that may run at a time; 0: no limit."""
    sessions_per_day: int = 0
    """Sessions that a project may begin between midnight and midnight, UTC; 0: no limit."""
    stored_bytes: int = 0
    """Bytes that the journals of a project may take in the store; 0: no limit."""
    ttl_seconds: int = 0
    """Seconds after their end at which sessions are erased that have no `ttl_seconds`; 0: never."""
    connections_per_address: int = 0
    """Connections of one IP address, on each port; 0: no limit."""
    llm_url: str | None = None
    """The LLM of sessions without an `llm.url`; may be a private address."""
    llm_api_key: str | None = None
    llm_model: str | None = None
    llm_timeout: float = 30.0
    """Seconds without a byte after which an LLM request is given up."""
    llm_total_timeout: float = 300.0
    """Seconds after which an LLM request is given up, however steadily its answer comes."""
    embeddings_url: str | None = None
    """The endpoint of vectors for searches by meaning; may be a private address. None: words alone find."""
    embeddings_model: str | None = None
    embeddings_dimensions: int | None = None
    """How many numbers a vector has; None: as many as the model gives."""
    embeddings_key: str | None = None
    embeddings_weight: float = 1.0
    """The weight of the best meaning in a search, beside the best words, which count 1."""
    embeddings_wait_ms: int = 300
    """How long a search waits for the vector of its query, before it goes by words alone."""
    memory: str | None = None
    """The context policy of sessions that do not choose one, as JSON: `{"policy":"window","max_tokens":4000}`."""
    memories_budget: int = 0
    """Tokens that a project may spend a day on memories that an LLM makes of its calls; 0: no limit."""
    policies: tuple[str, ...] = ()
    """The operator's own policies, as NAME=MODULE:CLASS."""
    redact: tuple[str, ...] = ()
    """Kinds of redaction: names of `REDACTIONS`, and the operator's own as MODULE:FUNCTION."""
    memories_ttl: tuple[str, ...] = ()
    """How long memories of a kind are kept that say nothing else, as KIND=DURATION."""
    model_windows: tuple[str, ...] = ()
    """The sizes of models' contexts, as MODEL=TOKENS."""
    hook_secrets: tuple[str, ...] = ()
    """Signing secrets of inbound webhooks, as DIALECT=SECRET or PROJECT/DIALECT=SECRET."""
    identify: tuple[str, ...] = ()
    """The facts in frames of dialects that identify callers, as DIALECT=user,number or PROJECT/DIALECT=number."""
    phone_region: str | None = None
    """The country of telephone numbers that are written without one, such as DE; None: they identify no one."""
    variables: str | None = None
    """Further variables that platforms get at the start of a call, with their values, as a JSON object."""
    vapi_assistants: tuple[str, ...] = ()
    """The assistants that answer calls at Vapi, as ID or PROJECT=ID."""
    observe_key: str | None = None
    """The key for vendors whose calls the service observes; without it it observes none."""
    observe_urls: tuple[str, ...] = ()
    """Addresses at which calls are observed instead of the vendor's own, as DIALECT=URL; may be private."""
    observe_limit: int = 100
    """Calls that are observed at a time."""
    memory_budget: int = 512
    """MiB for all caches together."""
    log_format: str = "text"
    log_level: str = "warning"


UNIT_MS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def parse_address(text: str) -> Address:
    """Parse HOST:PORT; an IPv6 host is in brackets. Raises `CannotStart`."""
    match = re.fullmatch(r"(?:\[([0-9A-Fa-f:.%]+)\]|([^:\s\[\]]*)):(\d{1,5})", text)
    if match is None or int(match[3]) > 65535:
        raise CannotStart(f"{text!r} is not an address; write HOST:PORT, such as 127.0.0.1:8080.")
    return Address(match[1] or match[2] or "127.0.0.1", int(match[3]))


def check_operators_webhook(settings: Settings) -> None:
    """Raise `CannotStart` for an invalid webhook, or for settings of a webhook without a URL."""
    has_webhook = settings.webhook_url not in (None, NO_WEBHOOK)
    if has_webhook and not re.match(r"https?://[^/\s]", settings.webhook_url or ""):
        raise CannotStart(f"The webhook URL must begin with http:// or https://, or be {NO_WEBHOOK}.")
    if settings.webhook_secret is not None and not has_webhook:
        raise CannotStart("A webhook secret was given, but no webhook URL.")
    if settings.webhook_contents not in get_args(Contents):
        raise CannotStart("The contents of webhooks must be full, standard or vcon.")
    if settings.webhook_contents != "full" and not has_webhook:
        raise CannotStart("The contents of webhooks were given, but no webhook URL.")
    if not {*settings.webhook_include} <= {*get_args(Included)}:
        raise CannotStart(f"Webhooks may include: {', '.join(get_args(Included))}.")
    if settings.webhook_include and not has_webhook:
        raise CannotStart("What webhooks include was given, but no webhook URL.")
    try:
        check_webhook_secret(settings.webhook_secret)
    except Refused as refused:
        raise CannotStart(refused.detail) from None


def check_service_settings(settings: Settings) -> None:
    """Check everything that can be checked without opening a file or a socket. Raises `CannotStart`."""
    check_store(settings.store)
    rest, ingest = settings.rest, settings.ingest
    if rest.port and rest.port == ingest.port and (rest.host == ingest.host or ANY_HOST in (rest.host, ingest.host)):
        raise CannotStart(f"REST and ingest cannot both listen on port {rest.port}; each needs a port of its own.")
    check_operators_webhook(settings)
    check_ui_origin(settings)
    check_observing(settings)
    check_redactions(settings.redact)
    parse_memories_ttl(settings.memories_ttl)
    parse_variables(settings.variables)
    parse_assistants(settings.vapi_assistants)
    check_llm(settings)
    check_embeddings(settings)
    if settings.agora_contents not in ("full", "standard"):
        raise CannotStart("The contents on Agora's paths must be full or standard.")
    if settings.admin_key is not None and len(settings.admin_key) < 16:
        raise CannotStart("VOICEMEM_ADMIN_KEY must have at least 16 characters.")
    if not all(0 <= rate < inf for rate in (settings.request_rate, settings.event_rate, settings.byte_rate)):
        raise CannotStart("request-rate, event-rate and byte-rate must be 0 or more per second; 0 means no limit.")
    if not MIN_MEMORY_BUDGET <= settings.memory_budget <= MAX_MEMORY_BUDGET:
        raise CannotStart(
            f"--ram-limit-mib must be {MIN_MEMORY_BUDGET} to {MAX_MEMORY_BUDGET} MiB, without the unit, such as 512."
        )
    if min(settings.open_sessions, settings.sessions_per_day, settings.stored_bytes) < 0:
        raise CannotStart("open-sessions, sessions-per-day and stored-bytes must be 0 or more; 0 means no limit.")
    if not 0 <= settings.ttl_seconds <= 10**10:
        raise CannotStart("ttl_seconds must be a number of seconds up to 10000000000, or 0 to keep all sessions.")
    if settings.connections_per_address < 0:
        raise CannotStart("connections-per-address must be 0 or more; 0 means no limit.")


DEFAULT_PORTS = {"http": 80, "https": 443}
"""The ports that browsers leave out of an origin."""


def check_ui_origin(settings: Settings) -> None:
    """Check where browsers see the page. Raises `CannotStart`."""
    if settings.ui_origin is None:
        return
    match = re.fullmatch(r"(https?)://([a-z0-9._-]+|\[[0-9a-f:.]+\])(?::[0-9]{1,5})?", settings.ui_origin)
    if match is None or settings.ui_origin == f"{match[1]}://{match[2]}:{DEFAULT_PORTS[match[1]]}":
        raise CannotStart("--ui-origin is what a browser shows, in small letters: https://NAME, or https://NAME:PORT.")
    if match[1] == "http" and not is_loopback(match[2]) and not settings.insecure:
        raise CannotStart("--ui-origin must begin with https://: keys and calls would cross the network in the clear.")


def check_redactions(names: Sequence[str]) -> None:
    """Check the names of redactions. Raises `CannotStart`."""
    for name in names:
        if name not in REDACTIONS and not OWN_REDACTION.fullmatch(name):
            known = ", ".join(REDACTIONS)
            raise CannotStart(f"{name!r} cannot be redacted; known are {known}, and your own as MODULE:FUNCTION.")


def parse_memories_ttl(settings: Sequence[str]) -> dict[str, int]:
    """Parse how long memories of each kind are kept, in ms. Raises `CannotStart`."""
    ttl_ms: dict[str, int] = {}
    for one in settings:
        kind, _, duration = one.partition("=")
        match = re.fullmatch(r"([1-9][0-9]{0,8})([smhd])", duration)
        if match is None or kind not in get_args(GivenKind) or kind in ttl_ms:
            kinds = ", ".join(get_args(GivenKind))
            raise CannotStart(
                f"{one!r} is not a valid memory retention; write KIND=90d (or s, m, h), each of {kinds} once."
            )
        ttl_ms[kind] = int(match[1]) * UNIT_MS[match[2]]
    return ttl_ms


def parse_variables(text: str | None) -> dict[str, str | int | float | bool]:
    """Return the operator's variables by name, from a JSON object. Raises `CannotStart`, which quotes no value."""
    try:
        variables: Any = {} if text is None else msgspec.json.decode(text)
    except msgspec.MsgspecError:
        variables = None
    if not isinstance(variables, dict) or len(variables) > MAX_VARIABLES:
        raise CannotStart(f"The variables must be a table, or JSON object, of at most {MAX_VARIABLES} names.")
    for name, value in variables.items():
        if not VARIABLE.fullmatch(name) or name in OWN_VARIABLES:
            raise CannotStart(
                f"{name[:MAX_SHOWN]!r} cannot be a variable: a name is 1 to 64 of A-Za-z0-9_, begins with a letter, and"
                f" is none of {', '.join(OWN_VARIABLES)}."
            )
        if not isinstance(value, str | int | float) or (isinstance(value, str) and len(value) > MAX_VARIABLE):
            raise CannotStart(
                f"The variable {name} must be a text of at most {MAX_VARIABLE} characters, a number, or true or false."
            )
    return variables


def parse_assistants(settings: Sequence[str]) -> dict[str | None, str]:
    """Vapi's assistants by project; None is all others. Raises `CannotStart`."""
    assistants: dict[str | None, str] = {}
    for one in settings:
        match = re.fullmatch(r"(?:([A-Za-z0-9._:-]{1,128})=)?([A-Za-z0-9_-]{1,128})", one)
        if match is None or match[1] in assistants:
            raise CannotStart("vapi-assistant must be ID, or PROJECT=ID, once per project.")
        assistants[match[1]] = match[2]
    return assistants


def check_observing(settings: Settings) -> None:
    """Check the settings of other stacks' calls. Raises `CannotStart`, which quotes neither a URL nor a secret."""
    if not all(re.match(r"(?:[A-Za-z0-9._:-]{1,128}/)?[a-z0-9-]{1,64}=.", one) for one in settings.hook_secrets):
        raise CannotStart("A hook secret is DIALECT=SECRET, or PROJECT/DIALECT=SECRET.")
    if settings.observe_key is not None and not re.fullmatch(r"[!-~]+", settings.observe_key):
        raise CannotStart("The key of observed calls must be printable ASCII without spaces; it is sent in a header.")
    for one in settings.observe_urls:
        if not re.fullmatch(r"[a-z0-9-]{1,64}=wss?://[^/@?#\s]+(?:/[^@#\s]*)?", one):
            raise CannotStart("observe-url must be DIALECT=URL, such as openai-realtime=wss://HOST/v1/realtime.")
    if settings.observe_limit < 0:
        raise CannotStart("observe-limit must be 0 or more; 0 means none.")


def check_llm(settings: Settings) -> None:
    """Check the settings of the LLM. Raises `CannotStart`, which quotes neither its URL nor its key."""
    if settings.llm_url is not None and not re.fullmatch(URL_PATTERN, settings.llm_url):
        raise CannotStart(f"The LLM's URL is not valid. {URL_RULE}; give its key separately, as --llm-api-key.")
    if settings.llm_api_key is not None and not re.fullmatch(r"[ -~]*", settings.llm_api_key):
        raise CannotStart("The LLM's key must be printable ASCII; it is sent in a header.")
    if settings.memories_budget < 0:
        raise CannotStart("extraction-tokens-per-day must be 0 or more; 0 means no limit.")
    if settings.llm_url is None and (settings.llm_api_key is not None or settings.llm_model is not None):
        raise CannotStart("An LLM's key or model was given, but not its URL.")
    if not (0 < settings.llm_timeout < inf and 0 < settings.llm_total_timeout < inf):
        raise CannotStart("The timeouts of LLM requests must be numbers of seconds above 0.")


def check_embeddings(settings: Settings) -> None:
    """Check the settings of the embedder. Raises `CannotStart`, which quotes neither its URL nor its key."""
    url, model, dimensions = settings.embeddings_url, settings.embeddings_model, settings.embeddings_dimensions
    if url is not None and not re.fullmatch(URL_PATTERN, url):
        raise CannotStart(f"The embedder's URL is not valid. {URL_RULE}; give its key separately, as embeddings-key.")
    if settings.embeddings_key is not None and not re.fullmatch(r"[ -~]*", settings.embeddings_key):
        raise CannotStart("The embedder's key must be printable ASCII; it is sent in a header.")
    if url is None and any(one is not None for one in (model, dimensions, settings.embeddings_key)):
        raise CannotStart("A model, dimensions or a key of an embedder were given, but not its URL.")
    if url is not None and not (model and len(model) <= MAX_MODEL_NAME and model.isprintable()):
        raise CannotStart(f"--embeddings-url needs --embeddings-model, at most {MAX_MODEL_NAME} printable characters.")
    if dimensions is not None and not 1 <= dimensions <= MAX_DIMENSIONS:
        raise CannotStart(f"The dimensions of vectors must be 1 to {MAX_DIMENSIONS}.")
    if not 0 <= settings.embeddings_weight <= MAX_WEIGHT:
        raise CannotStart(f"The weight of meaning beside words must be 0 to {MAX_WEIGHT}.")
    if not 1 <= settings.embeddings_wait_ms <= MAX_WAIT_MS:
        raise CannotStart(f"A search may wait 1 to {MAX_WAIT_MS} ms for the vector of its query.")


def check_store(store: str) -> None:
    """Raise `CannotStart` for anything but a store's URL; a program may pass any value."""
    if not (isinstance(store, str) and re.fullmatch(r"memory:|sqlite:[^\0]+|postgres(ql)?://[^\0]+", store)):
        raise CannotStart(f"The store {store!r} is unknown; write sqlite:PATH, postgresql://HOST/DATABASE or memory:.")


def shown_store(store: str) -> str:
    """Return a store as it may be shown and logged: without the password that its URL may hold."""
    hidden = re.sub(r"(?<=://)([^/?#@:]*):[^/?#]*@", r"\1@", store)
    return re.sub(r"(?i)([?&](?:ssl)?password=)[^&]*", r"\1…", hidden)


def key_command(store: str) -> str | None:
    """Return the command that makes a key in a store; None for one in memory, which no other process can open."""
    return None if store == MEMORY_STORE else f"voicemem keys create --store {shlex.quote(shown_store(store))}"


def check_binding(settings: Settings, keys_needed: bool) -> None:
    """Raise `CannotStart` if a service without keys would be open to the network."""
    if keys_needed or settings.insecure:
        return
    for address in (settings.rest, settings.ingest):
        if not address.is_loopback:
            command = key_command(settings.store)
            made = "" if command is None else f"Create a key ({command}), or set"
            raise CannotStart(
                f"Without keys the service listens on loopback only, not on {address}. {made or 'Set'}"
                " VOICEMEM_ADMIN_KEY; --insecure does without."
            )


@lru_cache(maxsize=256)  # called for every request
def is_loopback(host: str) -> bool:
    """Return whether a host, with or without brackets, is localhost or a loopback address."""
    name = host.strip("[]").rstrip(".").lower()
    if name == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
