"""Other stacks' native frames: what of them is kept, and what they say in events of `voicemem.v1`."""
