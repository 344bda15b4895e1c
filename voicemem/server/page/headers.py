"""The headers of every answer below `/ui`: what a browser may load, run, and show around it."""

from __future__ import annotations

from aiohttp import web

POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "form-action 'self'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
"""Only files of the page itself, and no text that becomes markup or script (Trusted Types)."""
FEATURES = ("accelerometer", "camera", "display-capture", "geolocation", "gyroscope", "microphone", "payment", "usb")
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",  # ids of calls are in paths
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": ", ".join(f"{feature}=()" for feature in FEATURES),
}


def is_of_page(path: str) -> bool:
    """Whether a path belongs to the page."""
    return path == "/ui" or path.startswith("/ui/")


async def add_headers(request: web.Request, response: web.StreamResponse) -> None:
    """Add them to an answer that is about to be sent, an error's included; only assets may be kept."""
    if not is_of_page(request.path):
        return
    response.headers.update(HEADERS)
    if "immutable" not in response.headers.get("Cache-Control", ""):
        response.headers["Cache-Control"] = "no-store"
