"""Power cuts under the embedded store: what was acknowledged is there, whatever the disk made of the rest."""
