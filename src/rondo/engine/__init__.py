"""A round: what the server sends, how clients train on it in cohorts, and how uploads become the next model."""
