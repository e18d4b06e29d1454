"""What a run writes and shows: log, metrics, status, terminal."""
