"""Amazon Nova Sonic's bidirectional stream."""
