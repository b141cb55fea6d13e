"""A figure is worth what its command is: run it, and what is said here is measured again."""
