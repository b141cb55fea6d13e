"""A request from its text to its answer, without a word of HTTP."""
