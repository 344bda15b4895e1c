"""Needs of every HTTP route: listening, reading requests, problem documents, documentation."""
