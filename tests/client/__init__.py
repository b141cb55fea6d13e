"""The Python client and `partway send`."""
