"""What is computed must cost next to nothing, so that what is measured is the cost of Partway."""

from partway.worker.handler import Context

RESULT_CHARACTERS = 1024


async def trivial(text: str, _: Context) -> str:
    """A result of 1 KB for a source of 500 characters."""
    return (text * 3)[:RESULT_CHARACTERS]
