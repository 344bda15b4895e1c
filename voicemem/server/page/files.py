"""The files of the page, read once: the shell, and the assets below a path that changes with any of them."""

import gzip
import hashlib
import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

from aiohttp import web

from voicemem.errors import Refused
from voicemem.server.http.request import Request

FOLDER = Path(__file__).parent / "assets"
MEDIA_TYPES = {
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".html": "text/html; charset=utf-8",
}
COMMENTS = re.compile(
    rb"^[ \t]*(?:/\*\*(?:[^*]|\*(?!/))*\*/|//[^\n]*)\n|/\*\* @(?:type|param) [^*\n]*\*/ ?", re.MULTILINE
)
"""Lines of a module with nothing but comments, and types inside of lines, which a browser need not load."""

LAYOUT = re.compile(rb"/\*(?:[^*]|\*(?!/))*\*/|^[ \t]+", re.MULTILINE)
"""Comments and indentation of a stylesheet, likewise."""


class Asset(NamedTuple):
    """A file as it is sent."""

    body: bytes
    zipped: bytes
    media_type: str
    etag: str


def asset(body: bytes, suffix: str) -> Asset:
    if suffix == ".js":
        body = COMMENTS.sub(b"", body)
    elif suffix == ".css":
        body = LAYOUT.sub(b"", body)
    return Asset(body, gzip.compress(body, 9, mtime=0), MEDIA_TYPES[suffix], hashlib.sha256(body).hexdigest()[:32])


class PageFiles(NamedTuple):
    """All files of one version of the page."""

    version: str
    """The hash of all of them, which is in their addresses: a browser never mixes two versions."""
    shell: Asset
    assets: dict[str, Asset]
    """By their path below the folder."""


@cache
def page_files() -> PageFiles:
    paths = sorted(path for path in FOLDER.rglob("*") if path.suffix in MEDIA_TYPES)
    bodies = {path.relative_to(FOLDER).as_posix(): path.read_bytes() for path in paths}
    summed = hashlib.sha256()
    for name, body in bodies.items():
        summed.update(f"{name}\n{len(body)}\n".encode() + body)
    version = summed.hexdigest()[:16]
    shell = bodies.pop("index.html").replace(b"{{assets}}", f"/ui/assets/{version}".encode())
    assets = {name: asset(body, Path(name).suffix) for name, body in bodies.items()}
    return PageFiles(version, asset(shell, ".html"), assets)


async def get_shell(request: Request) -> web.StreamResponse:
    """Return the one document of the page, the same at each of its addresses; its script sees which it is."""
    return answer_file(request, page_files().shell)


async def get_asset(request: Request) -> web.StreamResponse:
    """Return a module, the stylesheet or a picture; nothing at the address of another version."""
    files = page_files()
    file = files.assets.get(request.in_path["path"])
    if file is None or request.in_path["version"] != files.version:
        raise Refused("not_found")
    response = answer_file(request, file)
    response.headers["Cache-Control"] = "public, max-age=31536000, immutable"
    return response


def answer_file(request: Request, file: Asset) -> web.StreamResponse:
    headers = {"Content-Type": file.media_type, "ETag": f'"{file.etag}"', "Vary": "Accept-Encoding"}
    if any(tag.value in (file.etag, "*") for tag in request.if_none_match or ()):
        return web.Response(status=304, headers=headers)
    if takes_gzip(request.headers.get("Accept-Encoding", "")):
        return web.Response(body=file.zipped, headers=headers | {"Content-Encoding": "gzip"})
    return web.Response(body=file.body, headers=headers)


def takes_gzip(accepted: str) -> bool:
    for one in accepted.lower().split(","):
        name, _, weight = one.partition(";")
        if name.strip() == "gzip":
            return weight.replace(" ", "") not in ("q=0", "q=0.0", "q=0.00", "q=0.000")
    return False


POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; "
    "media-src https: http:; base-uri 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; "
    "trusted-types 'none'"
)
"""Allows the page's own files and recordings of calls only; no text becomes markup or script (Trusted Types)."""
FEATURES = ("accelerometer", "camera", "display-capture", "geolocation", "gyroscope", "microphone", "payment", "usb")
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",  # ids of calls are in paths
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": ", ".join(f"{feature}=()" for feature in FEATURES),
}


def add_headers(response: web.StreamResponse) -> None:
    """Add the headers to an answer that is about to be sent, errors included; only assets may be cached."""
    response.headers.update(HEADERS)
    if "immutable" not in response.headers.get("Cache-Control", ""):
        response.headers["Cache-Control"] = "no-store"
