"""A caller can read its limits, and what is left of them, before it sends a request."""

from pydantic import BaseModel, Field

from partway.app.requests.admission import read_active_totals
from partway.app.requests.allowance import left_characters, read_tat_microseconds, to_seconds
from partway.app.settings import AppSettings
from partway.store.database import Database


class ActiveLimit(BaseModel):
    """How many requests may be active at once."""

    allowed: int | None = Field(description="null when there is no limit.")
    active: int
    left: int | None


class CharacterLimit(BaseModel):
    """How many Unicode code points may be sent in a minute. The allowance fills up evenly."""

    allowed: int | None = Field(description="null when there is no limit.")
    left: int | None
    full_in_seconds: int = Field(description="In how many seconds the allowance is full again.")


class RequestLimit(BaseModel):
    """How large one request may be."""

    body_bytes: int
    segments: int
    segment_characters: int
    params_bytes: int
    deadline_ms: int


class LimitsAnswer(BaseModel):
    """What the tenant may send, and what is left of it."""

    active_requests: ActiveLimit
    characters_per_minute: CharacterLimit
    request: RequestLimit


async def read_limits(db: Database, tenant: str, settings: AppSettings) -> LimitsAnswer:
    """What is allowed now, and what is left of it."""
    active = await read_active_totals(db, tenant, settings.max_active_requests)
    most, per_minute = settings.tenant_active_requests, settings.tenant_characters_per_minute
    tat = await read_tat_microseconds(db, tenant) or 0 if per_minute else 0
    return LimitsAnswer(
        active_requests=ActiveLimit(
            allowed=most or None,
            active=active.of_the_tenant,
            left=max(most - active.of_the_tenant, 0) if most else None,
        ),
        characters_per_minute=CharacterLimit(
            allowed=per_minute or None,
            left=left_characters(tat, per_minute) if per_minute else None,
            full_in_seconds=to_seconds(tat),
        ),
        request=RequestLimit(
            body_bytes=settings.max_body_bytes,
            segments=settings.max_segments,
            segment_characters=settings.max_segment_characters,
            params_bytes=settings.max_params_bytes,
            deadline_ms=settings.max_deadline_ms,
        ),
    )
