"""The worker: claims, fences, handlers and the processes that run them."""
