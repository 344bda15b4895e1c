"""Voice frameworks whose calls are remembered with one line; each module imports its framework when it is used."""
