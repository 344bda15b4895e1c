"""The observer: listens to calls at vendors that allow it, and records their events (docs/observer.md)."""
