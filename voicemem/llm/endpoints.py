"""The endpoint of a session's LLM requests: its own, or the operator's if it has none."""

import msgspec
from msgspec import Struct

from voicemem.config.session import parse_config
from voicemem.errors import Refused
from voicemem.store.journal import Journal
from voicemem.store.streams import Stream

COMPLETIONS_PATH, EMBEDDINGS_PATH, MODELS_PATH = "/chat/completions", "/embeddings", "/models"


class LlmEndpoint(Struct, frozen=True):
    """The address of an LLM. `url` is a base URL, or the full URL if its path ends in `path`."""

    url: str
    api_key: str | None = None
    headers: dict[str, str] = {}
    public_only: bool = True
    """True if its address must be public, as for a URL from the API."""
    model: str | None = None
    """For sessions that name no model."""
    path: str = COMPLETIONS_PATH

    @property
    def request_url(self) -> str:
        path, mark, query = self.url.partition("?")
        path = path.rstrip("/")
        if self.path == MODELS_PATH:
            path = path.removesuffix(COMPLETIONS_PATH)
        return (path if path.endswith(self.path) else path + self.path) + mark + query


class LlmEndpoints:
    """The LLMs of sessions; `default` is the operator's, which may be at a private address."""

    def __init__(self, journal: Journal, default: LlmEndpoint | None) -> None:
        self.journal = journal
        self.default = default

    async def for_session(self, stream: Stream) -> LlmEndpoint:
        """Return the LLM of a session; the operator's key is never sent to a session's own URL. Raises `Refused`."""
        url = parse_config(stream.config).llm.url
        if url is None:
            if self.default is None:
                raise Refused("llm_not_configured")
            return self.default
        secrets = await self.journal.load_secrets(stream.key)
        headers = msgspec.json.decode(secrets.get("llm.headers", "{}"), type=dict[str, str])
        return LlmEndpoint(url, secrets.get("llm.api_key"), headers)
