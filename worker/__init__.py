"""Compute takes seconds and scales on its own, so idle workers come to the work."""
