"""Uploads of LiveKit's agents that are no forms of theirs."""

from __future__ import annotations

import aiohttp
import pytest

from voicemem.app import App

FORM = "multipart/form-data; boundary="
PART = b'--x\r\nContent-Disposition: form-data; name="header"\r\n\r\n'
UPLOADS = [
    ("multipart/form-data", b""),
    ("multipart/form-data; xboundary=x", PART),
    (f"{FORM}{'x' * 71}", PART),
    (f'{FORM}""', PART),
    ("multipart/mixed; boundary=x", PART),
    ("text/plain", b""),
    (f"{FORM}x", b"--x\r\nnothing\r\n\r\n"),
    (f"{FORM}x", b'--x\r\nContent-Disposition: form-data; name="other"\r\n\r\na\r\n--x--\r\n'),
    (f"{FORM}x", PART + b"\xff\xff\r\n--x--\r\n"),
]


@pytest.mark.parametrize("upload", UPLOADS)
async def test_other_uploads_are_malformed(app: App, upload: tuple[str, bytes]) -> None:
    """Each is answered as bad input, whatever is wrong with its boundary, parts or bytes."""
    kind, body = upload
    url = f"http://{app.rest_address}/v1/hooks/livekit-agents/default/observability/recordings/v0"
    headers = {"Content-Type": kind}
    async with aiohttp.ClientSession() as client, client.post(url, data=body, headers=headers) as answer:
        assert (answer.status, (await answer.json())["reason"]) == (400, "malformed_frame")
