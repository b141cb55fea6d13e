"""Converts times that people write, in any zone, to the UTC of the database."""

from datetime import UTC, datetime


def point_in_time(text: str) -> datetime:
    """Parse a date or a time (ISO 8601), in UTC unless it has a zone, and convert it to UTC.

    Raises ValueError when it is not a time.
    """
    try:
        given = datetime.fromisoformat(text)
        return given.astimezone(UTC).replace(tzinfo=None) if given.tzinfo else given
    except OverflowError as error:
        raise ValueError(str(error)) from None
