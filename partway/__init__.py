"""Send a document and a deadline; get back what is done by then; pay for exactly that."""

# Type checkers and editors read this as true; an import of `typing` would cost time at each start.
TYPE_CHECKING = False

if TYPE_CHECKING:
    from partway.client import (
        Accepted,
        Answer,
        AsyncPartway,
        Counts,
        End,
        Event,
        FieldError,
        Metered,
        NotPartway,
        Options,
        Partway,
        PartwayError,
        Problem,
        Segment,
        ServerUnavailable,
        Usage,
        Working,
    )
    from partway.worker.handler import Context, Reject, Retry

    __version__: str

__all__ = [
    "Accepted",
    "Answer",
    "AsyncPartway",
    "Context",
    "Counts",
    "End",
    "Event",
    "FieldError",
    "Metered",
    "NotPartway",
    "Options",
    "Partway",
    "PartwayError",
    "Problem",
    "Reject",
    "Retry",
    "Segment",
    "ServerUnavailable",
    "Usage",
    "Working",
]

FOR_HANDLERS = ("Context", "Reject", "Retry")


if not TYPE_CHECKING:
    # Hidden from type checkers, which would accept every name.

    def __getattr__(name: str) -> object:
        """Import a public name at its first use: the process of a handler needs no HTTP client."""
        if name == "__version__":
            from importlib.metadata import version

            return version("partway")
        if name not in __all__:
            raise AttributeError(f"module 'partway' has no attribute {name!r}")
        from importlib import import_module

        module = import_module(
            "partway.worker.handler" if name in FOR_HANDLERS else "partway.client"
        )
        value = globals()[name] = getattr(module, name)
        return value


def __dir__() -> list[str]:
    """All public names, imported or not."""
    return sorted([*globals(), *__all__, "__version__"])
