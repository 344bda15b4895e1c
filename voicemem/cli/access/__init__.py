"""Commands that say who may come in: `voicemem keys` and `voicemem hooks`."""
