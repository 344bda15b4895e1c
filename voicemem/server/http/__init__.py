"""Everything that every HTTP route needs: listening, reading requests, problem documents, documentation."""
