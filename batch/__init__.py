"""The batch program: it closes what nobody closed and settles, apart from the path of requests."""
