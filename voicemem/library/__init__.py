"""voicemem without a server: the same use cases, from Python."""
