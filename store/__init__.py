"""What all programs share: how they reach the database, and the one statement that closes."""
