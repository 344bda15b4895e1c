"""The protocol voicemem.v1: bytes to typed, checked events, and frames back."""
