"""The edges that listen, and the one that posts: each file speaks one protocol."""
