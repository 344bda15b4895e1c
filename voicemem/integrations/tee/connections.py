"""The kinds of connections, and the methods through which all of their messages pass.

The methods are replaced on the connection itself, so it stays the same for the program and its SDK, whose other methods
(`async for`, `receive_json`, `send_text` …) use them. A message is copied after the call has received or sent it.
"""

import asyncio
import inspect
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable, Mapping
from functools import wraps
from typing import Any

import msgspec
from aiohttp import WSMsgType
from websockets.exceptions import ConnectionClosed

from voicemem.integrations.tee.memory import CallMemory

CLEAN_CODES = (1000, 1001, 1005)
"""Close codes after which the other side is not expected back."""
MESSAGES = (WSMsgType.TEXT, WSMsgType.BINARY)
CLOSING = (WSMsgType.CLOSE, WSMsgType.CLOSING, WSMsgType.CLOSED, WSMsgType.ERROR)
Method = Callable[..., Awaitable[Any]]


OPENAI_DIALECTS = {
    "AsyncRealtimeConnection": "openai-realtime",
    "AsyncLiveConnection": "openai-live",
    "AsyncForksConnection": "openai-live",
    "AsyncSidebandConnection": "openai-live",
}
"""The dialects of connections of openai's SDK."""


def certain_dialect(connection: object) -> str | None:
    """Return the dialect of a connection, if its kind determines it."""
    names = [kind.__name__ for kind in type(connection).__mro__ if kind.__module__.startswith("openai.")]
    return next((OPENAI_DIALECTS[name] for name in names if name in OPENAI_DIALECTS), None)


def wrap(connection: object, tap: CallMemory) -> None:
    """Copy all messages of a connection. Raises `TypeError` for an unknown or a synchronous kind."""
    kinds: dict[tuple[str, ...], Callable[[Any, CallMemory], None]] = {
        ("recv_bytes", "send"): wrap_openai,
        ("receive", "send_str", "send_bytes"): wrap_aiohttp,
        ("receive", "send", "send_text"): wrap_starlette,
        ("recv", "send"): wrap_websockets,
    }
    for names, wrap_kind in kinds.items():
        if all(callable(getattr(connection, name, None)) for name in names):
            if not all(inspect.iscoroutinefunction(getattr(connection, name)) for name in names):
                raise TypeError("a tee needs an asynchronous connection: this one is synchronous")
            wrap_kind(connection, tap)
            return
    raise TypeError(
        "a tee goes around openai's AsyncRealtimeConnection, or a websocket of websockets, aiohttp, FastAPI or "
        f"Starlette; this is a {type(connection).__name__}"
    )


def replace(connection: Any, name: str, replacement: Callable[..., Any]) -> None:
    """Replace a method, keeping its name and signature. Raises `TypeError`."""
    try:
        setattr(connection, name, wraps(getattr(connection, name))(replacement))
    except AttributeError:
        raise TypeError(f"a {type(connection).__name__} lets nothing be changed, so it cannot have a tee") from None


# Methods of all kinds


def wrap_receiving(connection: Any, name: str, tap: CallMemory, on_message: Callable[..., None]) -> None:
    """Copy the results of a method; `on_message` gets them with the call's arguments."""
    receive: Method = getattr(connection, name)

    async def receiving(*arguments: Any, **named: Any) -> Any:
        try:
            message = await receive(*arguments, **named)
        except ConnectionClosed as error:
            tap.closed(is_clean(error))
            raise
        safely(tap, on_message, message, *arguments, **named)
        return message

    replace(connection, name, receiving)


def wrap_sending(connection: Any, name: str, tap: CallMemory, on_message: Callable[..., None]) -> None:
    """Copy the arguments of a method, once they were sent; `on_message` gets them."""
    send: Method = getattr(connection, name)

    async def sending(*arguments: Any, **named: Any) -> Any:
        try:
            result = await send(*arguments, **named)
        except asyncio.CancelledError:
            safely(tap, on_message, *arguments, **named)  # a cancelled send had already written to the buffer
            raise
        safely(tap, on_message, *arguments, **named)
        return result

    replace(connection, name, sending)


def wrap_closing(connection: Any, tap: CallMemory) -> None:
    close: Method = connection.close

    async def closing(*arguments: Any, **named: Any) -> Any:
        tap.closed(by_app=True)
        return await close(*arguments, **named)

    replace(connection, "close", closing)


def safely(tap: CallMemory, on_message: Callable[..., None], *arguments: Any, **named: Any) -> None:
    """Copy a message; on an error the copy is lost, and the call continues."""
    try:
        on_message(*arguments, **named)
    except Exception as error:  # such as a signature changed in a later SDK version
        tap.failed(error)


def is_clean(error: ConnectionClosed) -> bool:
    """Return whether a connection was closed, not lost; a close without a code counts as closed."""
    return error.rcvd is not None and error.rcvd.code in CLEAN_CODES


# openai


def wrap_openai(connection: Any, tap: CallMemory) -> None:
    """Copy the messages of openai's SDK: `send` and all resources use `_send`, or `send` if that is missing."""
    wrap_receiving(connection, "recv_bytes", tap, tap.received)
    if inspect.iscoroutinefunction(getattr(connection, "_send", None)):
        wrap_sending(connection, "_send", tap, lambda data: tap.sent(data, is_text=True))
    else:
        wrap_openai_sends(connection, tap)
    wrap_closing(connection, tap)


def wrap_openai_sends(connection: Any, tap: CallMemory) -> None:
    """Copy the arguments of `send` and `send_raw`, only once if one calls the other."""
    inside: set[asyncio.Task[Any] | None] = set()
    send: Method = connection.send

    async def sending(event: Any) -> None:
        task = asyncio.current_task()
        inside.add(task)
        try:
            await send(event)
        finally:
            inside.discard(task)
        safely(tap, on_event, event)

    def on_event(event: Any) -> None:
        is_model = not isinstance(event, Mapping)
        data = str(event.to_json(use_api_names=True, exclude_unset=True)) if is_model else msgspec.json.encode(event)
        tap.sent(data, is_text=True)

    def on_raw(data: str | bytes) -> None:
        if asyncio.current_task() not in inside:
            tap.sent(data, is_text=True)

    replace(connection, "send", sending)
    if inspect.iscoroutinefunction(getattr(connection, "send_raw", None)):
        wrap_sending(connection, "send_raw", tap, on_raw)


# websockets


def wrap_websockets(connection: Any, tap: CallMemory) -> None:
    """Wrap a connection of `websockets`, a client's or a server's. Messages may be sent in fragments."""
    wrap_receiving(connection, "recv", tap, lambda message, *_, **__: tap.received(message, isinstance(message, str)))
    if callable(getattr(connection, "recv_streaming", None)):
        stream: Callable[..., AsyncIterator[Any]] = connection.recv_streaming

        async def streaming(*arguments: Any, **named: Any) -> AsyncIterator[Any]:
            pieces: list[Any] = []
            try:
                async for piece in stream(*arguments, **named):
                    pieces.append(piece)
                    yield piece
            except ConnectionClosed as error:
                tap.closed(is_clean(error))
                raise
            safely(tap, lambda: tap.received(joined(pieces), isinstance(pieces[0], str)))

        replace(connection, "recv_streaming", streaming)
    send: Method = connection.send

    async def sending(message: Any, *arguments: Any, **named: Any) -> Any:
        pieces: list[Any] = []
        copied = copy_pieces(message, pieces)
        try:
            result = await send(copied, *arguments, **named)
        except asyncio.CancelledError:
            safely(tap, on_sent, message if copied is message else pieces, **named)
            raise
        safely(tap, on_sent, message if copied is message else pieces, **named)
        return result

    def on_sent(message: Any, text: bool | None = None) -> None:
        whole = joined(message) if isinstance(message, list) else message
        tap.sent(whole, isinstance(whole, str) if text is None else text)

    replace(connection, "send", sending)
    wrap_closing(connection, tap)


def copy_pieces(message: Any, pieces: list[Any]) -> Any:
    """Return a message unchanged; if it is sent in fragments, `pieces` gets each as it is consumed."""
    if isinstance(message, str | bytes | bytearray | memoryview | Mapping):
        return message
    if isinstance(message, Iterable):
        return (pieces.append(piece) or piece for piece in message)  # type: ignore[func-returns-value]
    if isinstance(message, AsyncIterable):
        return (pieces.append(piece) or piece async for piece in message)  # type: ignore[func-returns-value]
    return message


def joined(pieces: list[Any]) -> str | bytes:
    return "".join(pieces) if pieces and isinstance(pieces[0], str) else b"".join(pieces)


# aiohttp


def wrap_aiohttp(connection: Any, tap: CallMemory) -> None:
    """Wrap a websocket of aiohttp, a client's or a server's: all receiving methods use `receive`."""

    def on_message(message: Any, *_: Any, **__: Any) -> None:
        if message.type in CLOSING:
            tap.closed(message.type is not WSMsgType.ERROR and connection.close_code in CLEAN_CODES)
        elif message.type in MESSAGES:
            tap.received(message.data, message.type is WSMsgType.TEXT)

    def on_frame(message: bytes, opcode: WSMsgType, *_: Any, **__: Any) -> None:
        if opcode in MESSAGES:
            tap.sent(message, opcode is WSMsgType.TEXT)

    wrap_receiving(connection, "receive", tap, on_message)
    wrap_sending(connection, "send_str", tap, lambda data, *_, **__: tap.sent(data, is_text=True))
    wrap_sending(connection, "send_bytes", tap, lambda data, *_, **__: tap.sent(data))
    if inspect.iscoroutinefunction(getattr(connection, "send_frame", None)):
        wrap_sending(connection, "send_frame", tap, on_frame)
    wrap_closing(connection, tap)


# FastAPI, Starlette


def wrap_starlette(connection: Any, tap: CallMemory) -> None:
    """Wrap a websocket of Starlette or FastAPI: ASGI messages pass `receive` and `send`."""

    def on_received(message: Mapping[str, Any]) -> None:
        if message["type"] == "websocket.receive":
            tap.received(*data_of(message))
        elif message["type"] == "websocket.disconnect":
            tap.closed(message.get("code", 1005) in CLEAN_CODES)

    def on_sent(message: Mapping[str, Any]) -> None:
        if message["type"] == "websocket.send":
            tap.sent(*data_of(message))
        elif message["type"] == "websocket.close":
            tap.closed(by_app=True)

    wrap_receiving(connection, "receive", tap, on_received)
    wrap_sending(connection, "send", tap, on_sent)


def data_of(message: Mapping[str, Any]) -> tuple[str | bytes, bool]:
    """Return the data of an ASGI message, and whether it is text."""
    text = message.get("text")
    return (message["bytes"], False) if text is None else (text, True)
