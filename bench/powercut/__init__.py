"""Power cuts under the embedded store: what was acknowledged is there, whatever the disk did with the rest."""
