"""voicemem without a server: the use cases of the service, from Python."""
