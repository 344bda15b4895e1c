"""A websocket of another stack, forwarded: both sides of it go to the memory, and the call needs neither.

A process of its own, `voicemem proxy` (docs/proxy.md). Bytes are forwarded as they come, and read afterwards, so what
becomes of the memory, and of what is read, is nothing to the call.
"""
