"""The HTTP node: requests, the HTTP API and the pages."""
