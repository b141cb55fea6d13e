"""Callers need one synchronous HTTP API that splits, waits, answers and cancels."""
