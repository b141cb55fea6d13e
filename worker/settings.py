"""The settings of one worker process: what it computes, how much at once, and how long."""

import os
import socket
from typing import Self

from pydantic import Field, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict


class WorkerSettings(BaseSettings):
    """The settings of one worker process."""

    model_config = SettingsConfigDict(env_prefix="PARTWAY_WORKER_")

    handler: str = Field(
        description="What computes a segment: package.module:name, or apertium, http, sleep."
    )
    concurrency: int = Field(
        1, ge=1, le=1000, description="How many segments this process computes at once."
    )
    # The segment of a killed worker is claimed again after a lease and a back-off: within 15 s.
    lease_seconds: float = Field(
        10, ge=2, le=3600, description="How long a claim is valid without a renewal."
    )
    backoff_seconds: float = Field(
        3,
        gt=0,
        le=3600,
        description="How long a worker does not ask a request again that had nothing to claim; "
        "less than a lease.",
    )
    max_attempts: int = Field(
        3, ge=1, le=100, description="After how many attempts a segment fails."
    )
    time_limit_seconds: float = Field(
        60, gt=0, le=86_400, description="How long one attempt at a segment can take."
    )
    max_output_characters: int = Field(
        100_000, ge=1, le=4_000_000, description="The longest result, in Unicode code points."
    )
    # Short enough for two attempts within most deadlines.
    retry_seconds: float = Field(
        1, ge=0, le=3600, description="How long a segment waits after a failed attempt."
    )
    # A fleet shares its polls: a worker waits so long only among more than a hundred workers.
    idle_seconds: float = Field(
        2, gt=0, le=60, description="The longest idle wait between two polls for work."
    )
    # Less than the 30 s that a container usually has to stop.
    grace_seconds: float = Field(
        20,
        ge=0,
        le=3600,
        description="How long running segments can continue after SIGTERM; "
        "then they are given back.",
    )
    name: str = Field(
        default_factory=lambda: f"{socket.gethostname()[:50]}-{os.getpid()}",
        pattern=r"^[!-~]{1,64}$",
        description="Who holds a lease, for operators; "
        "by default the host name and the process number.",
    )

    @model_validator(mode="after")
    def _backoff_is_shorter_than_a_lease(self) -> Self:
        # A longer back-off would hide a segment whose lease has expired.
        if self.backoff_seconds >= self.lease_seconds:
            raise ValueError(
                f"backoff_seconds ({self.backoff_seconds:g}) must be less than "
                f"lease_seconds ({self.lease_seconds:g})"
            )
        return self
