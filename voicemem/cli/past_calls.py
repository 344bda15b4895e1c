"""Past calls of vendors: in saved files, and in the vendors' APIs, page by page."""

import asyncio
import os
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from functools import partial
from ipaddress import ip_network
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote, urlsplit

import aiohttp

from voicemem.backoff import exponential_s
from voicemem.cli.common import CommandFailed
from voicemem.client.errors import TRANSIENT_STATUSES
from voicemem.client.transport.failures import reason_of
from voicemem.client.transport.rest import decode_json
from voicemem.dialects.dialect import Dialect
from voicemem.dialects.elevenlabs_agents.translation import ELEVENLABS_AGENTS
from voicemem.dialects.retell.translation import RETELL
from voicemem.dialects.vapi.translation import VAPI
from voicemem.errors import Refused
from voicemem.protocol.types import JsonObject
from voicemem.security.address_guard import check_url
from voicemem.webhooks.outbox import retry_after_s

PAGE = 100
ATTEMPTS = 6
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 30.0
MAX_WAIT_S = 600
"""A vendor that asks for a longer pause is asked again by the next run."""
TIMEOUT_S = 60.0
MAX_ANSWER_BYTES = 128 * 1024 * 1024
SUFFIXES = (".json", ".jsonl", ".ndjson")
EVERYWHERE = ip_network("0.0.0.0/0"), ip_network("::/0")
LOOPBACK = ("127.0.0.1", "::1", "localhost")
BOM = b"\xef\xbb\xbf"


class Unreadable(Exception):
    """One call cannot be read; the text says why, and quotes nothing of it."""


class PastCall(NamedTuple):
    """A call, or a webhook of one, and where it comes from."""

    name: str
    """The file, or the vendor's id of the call."""
    id: str | None
    """The vendor's id, where it is known beforehand."""
    read: Callable[[], Awaitable[Any]]
    """Reads its JSON. Raises `Unreadable`, and `CommandFailed` for an error that every call would get."""


async def at_once(value: Any) -> Any:
    if isinstance(value, Unreadable):
        raise value
    return value


# Files


def find_files(path: Path) -> list[tuple[Path, str]]:
    """Return the files of a folder and its subfolders, with their names there; or one file. Raises `CommandFailed`."""
    if path.is_file():
        return [(path, path.name)]
    files = sorted(one for one in path.rglob("*") if one.suffix.lower() in SUFFIXES and one.is_file())
    if not files:
        raise CommandFailed(f"There is no file in {path} whose name ends with {', '.join(SUFFIXES)}.")
    return [(one, str(one.relative_to(path))) for one in files]


def calls_in(file: Path, name: str) -> Iterator[PastCall]:
    """Yield the calls and webhooks of a file: one as JSON, a list of them, or one a line."""
    try:
        raw = file.read_bytes().removeprefix(BOM)
    except OSError as error:
        yield PastCall(name, None, partial(at_once, Unreadable(f"It cannot be read: {error.strerror}.")))
        return
    whole, lines = decode_json(raw), raw.splitlines()
    if whole is not None or len(lines) < 2:
        several = whole if isinstance(whole, list) else [whole]
        named = [(f"{name}, call {number}" if len(several) > 1 else name, one) for number, one in enumerate(several, 1)]
    else:
        named = [(f"{name}, line {number}", decode_json(one)) for number, one in enumerate(lines, 1) if one.strip()]
    for place, value in named:
        yield PastCall(place, None, partial(at_once, Unreadable("It is not JSON.") if value is None else value))


# APIs


class ApiRequest(NamedTuple):
    method: str
    path: str
    query: dict[str, str] | None = None
    body: JsonObject | None = None


class ApiPage(NamedTuple):
    calls: list[JsonObject]
    cursor: str | None


class Vendor(NamedTuple):
    """A vendor whose calls can be imported, and its API."""

    dialect: Dialect
    url: str
    variable: str
    """The environment variable with its key, as its own SDK has it."""
    header: tuple[str, str]
    """The header with the key, and the prefix of the key there."""
    id: str
    """The field with the id of a call."""
    request: Callable[[int, str | None], ApiRequest]
    """Makes the request for a page, at a cursor, of the calls that began since a time, Unix ms."""
    page: Callable[[Any], ApiPage]
    """Reads a page. Raises `KeyError`, `TypeError`, `ValueError` for anything else."""
    path: str | None
    """The path of one call, up to its id; None if pages have the calls complete."""


def page_of(calls: str, cursor: str, answer: Any) -> ApiPage:
    return ApiPage(answer[calls], answer[cursor] if answer["has_more"] else None)


def list_retell(since_ms: int, cursor: str | None) -> ApiRequest:
    body: JsonObject = {"limit": PAGE, "sort_order": "ascending"}
    body["filter_criteria"] = {"start_timestamp": {"type": "number", "op": "ge", "value": since_ms}}
    return ApiRequest("POST", "/v3/list-calls", body=body | ({} if cursor is None else {"pagination_key": cursor}))


def list_elevenlabs(since_ms: int, cursor: str | None) -> ApiRequest:
    after = str(max(0, since_ms // 1000 - 1))  # itself excluded
    query = {"page_size": str(PAGE), "call_start_after_unix": after, "sort_direction": "asc"}
    return ApiRequest("GET", "/v1/convai/conversations", query | ({} if cursor is None else {"cursor": cursor}))


def list_vapi(since_ms: int, cursor: str | None) -> ApiRequest:
    since = datetime.fromtimestamp(since_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    query = {"limit": str(PAGE), "createdAtGe": since}
    return ApiRequest("GET", "/call", query | ({} if cursor is None else {"createdAtLe": cursor}))


def vapi_page(answer: Any) -> ApiPage:
    """Return a page of calls, the newest first; the next page begins with those of the last one's time again."""
    return ApiPage(answer, min(one["createdAt"] for one in answer) if len(answer) >= PAGE else None)


BEARER = ("Authorization", "Bearer ")
VENDORS = {
    "retell": Vendor(
        *(RETELL, "https://api.retellai.com", "RETELL_API_KEY", BEARER),
        *("call_id", list_retell, partial(page_of, "items", "pagination_key"), "/v2/get-call/"),
    ),
    "vapi": Vendor(VAPI, "https://api.vapi.ai", "VAPI_API_KEY", BEARER, "id", list_vapi, vapi_page, None),
    "elevenlabs": Vendor(
        *(ELEVENLABS_AGENTS, "https://api.elevenlabs.io", "ELEVENLABS_API_KEY", ("xi-api-key", "")),
        *("conversation_id", list_elevenlabs, partial(page_of, "conversations", "next_cursor")),
        "/v1/convai/conversations/",
    ),
}


def check_base_url(url: str) -> None:
    """Raise `CommandFailed` for an address that a vendor's key may not be sent to."""
    try:
        check_url(url, EVERYWHERE)  # the operator's own networks too
    except Refused as refused:
        raise CommandFailed(f"--base-url: {refused.detail}") from None
    parts = urlsplit(url)
    if parts.query or (parts.scheme == "http" and parts.hostname not in LOOPBACK):
        raise CommandFailed("--base-url must begin with https:// (http:// only for this machine), without a query.")


def read_key(vendor: Vendor, file: Path | None) -> str:
    """Return the vendor's key, from a file or the environment. Raises `CommandFailed`, which never quotes it."""
    if file is None:
        key, place = os.environ.get(vendor.variable, "").strip(), vendor.variable
    else:
        try:
            key, place = file.read_text("utf-8").strip(), str(file)
        except (OSError, UnicodeDecodeError):
            raise CommandFailed(f"The key file {file} cannot be read.") from None
    if not key:
        raise CommandFailed(f"There is no key: set {vendor.variable}, or name a file with --key-file.")
    if not (key.isascii() and key.isprintable()) or " " in key:
        raise CommandFailed(f"What stands in {place} is not a key.")
    return key


class VendorApi:
    """The calls that a vendor has. It follows no redirects, so that the key goes to its own address only."""

    def __init__(self, vendor: Vendor, url: str, http: aiohttp.ClientSession, pause_s: float) -> None:
        self.vendor = vendor
        self.url = url.rstrip("/")
        self.http = http
        self.pause_s = pause_s
        """The pause after the first failed attempt."""

    async def calls(self, since_ms: int) -> AsyncGenerator[list[PastCall], None]:
        """Yield the calls that began since then, page by page. Raises `CommandFailed`."""
        seen, cursor = set[str](), None
        while True:
            request = self.vendor.request(since_ms, cursor)
            answer = await self.ask(request)
            try:
                page = self.vendor.page(answer)
                by_id = {str(one[self.vendor.id]): one for one in page.calls}
            except (KeyError, TypeError, ValueError, AttributeError):
                raise CommandFailed(f"{self.describe(request)}: the answer is not a page of calls.") from None
            new = [id for id in by_id if id not in seen]
            seen.update(new)
            yield [PastCall(f"call {id}", id, self.reader(id, by_id[id])) for id in new]
            if page.cursor is None:
                return
            if not new or page.cursor == cursor:
                raise CommandFailed(f"{self.describe(request)}: the pages repeat themselves; not all calls were read.")
            cursor = page.cursor

    def reader(self, id: str, listed: JsonObject) -> Callable[[], Awaitable[Any]]:
        if self.vendor.path is None:
            return partial(at_once, listed)
        return partial(self.read_call, ApiRequest("GET", self.vendor.path + quote(id, safe="")))

    async def read_call(self, request: ApiRequest) -> Any:
        try:
            return await self.ask(request)
        except VendorRefused as refused:
            raise Unreadable(str(refused)) from None

    async def ask(self, request: ApiRequest) -> Any:
        """Return the JSON of an answer, retrying if that may help. Raises `VendorRefused`, `CommandFailed`."""
        for attempt in range(ATTEMPTS):
            status, pause_s = None, exponential_s(attempt, self.pause_s, LONGEST_PAUSE_S)
            try:
                status, wait, raw = await self.send(request)
            except (aiohttp.ClientError, OSError, TimeoutError) as error:
                failure = f"{reason_of(error, TIMEOUT_S).rstrip('.')}."
            else:
                value = decode_json(raw) if status == 200 else None
                if value is not None:
                    return value
                failure = "the answer is not JSON." if status == 200 else f"HTTP status {status}."
                if status in (401, 403):
                    raise CommandFailed(f"{self.describe(request)}: the vendor refused the key ({failure})")
                if status != 200 and status not in TRANSIENT_STATUSES:
                    raise VendorRefused(f"{self.describe(request)}: {failure}")
                pause_s = retry_after_s(wait, datetime.now(UTC).timestamp()) or pause_s
            if attempt == ATTEMPTS - 1 or pause_s > MAX_WAIT_S:
                break
            await asyncio.sleep(pause_s)
        kind = CommandFailed if status in (None, 429) else VendorRefused
        raise kind(f"{self.describe(request)}: {failure} Run the command again later: it continues.")

    async def send(self, request: ApiRequest) -> tuple[int, str | None, bytes]:
        """Return the status, `Retry-After` and body of an answer."""
        async with self.http.request(
            request.method, self.url + request.path, params=request.query, json=request.body, allow_redirects=False
        ) as response:
            raw = bytearray()
            async for piece in response.content.iter_any():
                raw += piece
                if len(raw) > MAX_ANSWER_BYTES:
                    raise CommandFailed(f"{self.describe(request)}: the answer has more than {MAX_ANSWER_BYTES} bytes.")
            return response.status, response.headers.get("Retry-After"), bytes(raw)

    def describe(self, request: ApiRequest) -> str:
        return f"{request.method} {self.url}{request.path}"


class VendorRefused(CommandFailed):
    """The vendor refused one request."""


@asynccontextmanager
async def vendor_api(vendor: Vendor, url: str, key: str, pause_s: float) -> AsyncIterator[VendorApi]:
    """The API of a vendor at an address, with a key."""
    name, prefix = vendor.header
    timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
    async with aiohttp.ClientSession(headers={name: prefix + key}, timeout=timeout, trust_env=False) as http:
        yield VendorApi(vendor, url, http, pause_s)
