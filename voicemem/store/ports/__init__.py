"""The parts of the port, by use; `voicemem.store.port` puts them together."""
