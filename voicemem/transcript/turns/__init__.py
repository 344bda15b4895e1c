"""The turns of a call: their causes and latencies, when their parts were, and all of them as one small picture."""
