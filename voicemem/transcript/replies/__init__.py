"""Replies: what was generated, what was reported about their playback, and what of them was heard."""
