"""Calls of a real Pipecat pipeline, offline: a scripted caller, LLM and TTS, and a device that keeps what it played."""
