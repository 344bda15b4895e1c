"""Fuzzers that can be run as long as one likes: what they find stops them, with a traceback and the input in a file.

    python -m tests.fuzz.codec -max_total_time=600
    python -m tests.fuzz.fold -max_total_time=600
    python -m tests.fuzz.codec crash-0123abcd        runs one input again

Arguments are libFuzzer's. They need atheris, which there is for Python 3.11 only.
"""
