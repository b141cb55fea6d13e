"""People watch a document in a browser, and operators watch the whole service."""
