"""Callers need one synchronous door: it splits, waits, answers and cancels."""
