"""What all programs share: the database, settings, logs, the close and the start."""
