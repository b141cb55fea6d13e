"""Runs a whole deployment on one machine: a private database server, and the programs."""
