"""Dialects: other stacks' native frames, reduced to their kept parts and translated to events of `voicemem.v1`."""
