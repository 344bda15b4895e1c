"""What every HTTP route needs: listening, reading requests, problem documents, documentation."""
