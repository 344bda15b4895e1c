"""The proxy forwards another stack's websocket, and records both directions in the memory.

It is a process of its own, `voicemem proxy` (docs/proxy.md). Bytes are forwarded as they come, and read afterwards, so
no fault of the memory, or of reading, affects the call.
"""
