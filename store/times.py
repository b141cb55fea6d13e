"""A time is written in any zone by people, and kept as UTC by the database."""

from datetime import UTC, datetime


def point_in_time(text: str) -> datetime:
    """A date or a time (ISO 8601) as the database keeps it, UTC where it does not say.

    Raises ValueError when it is none.
    """
    try:
        given = datetime.fromisoformat(text)
        return given.astimezone(UTC).replace(tzinfo=None) if given.tzinfo else given
    except OverflowError as error:
        raise ValueError(str(error)) from None
