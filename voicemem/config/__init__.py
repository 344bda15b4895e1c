"""What can be configured: a session, its memory, the service; and the secrets in a configuration."""
