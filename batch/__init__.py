"""Billing must never be lost and the hot path must be fast: two promises do not share a process."""
