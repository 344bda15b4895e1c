"""Extraction of memories from calls by an LLM, which must cite the lines that each memory comes from."""
