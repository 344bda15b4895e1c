"""HTTP as every route needs it: listening, reading requests, problems, documentation."""
