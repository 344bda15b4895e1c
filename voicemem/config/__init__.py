"""Configuration of a session, its memory and the service; and the secrets in a configuration."""
