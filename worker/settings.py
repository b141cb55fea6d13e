"""One worker process is told by its settings what it computes, how much at once and how long."""

import os
import socket
from typing import Self

from pydantic import Field, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict


class WorkerSettings(BaseSettings):
    """What one worker process can be told."""

    model_config = SettingsConfigDict(env_prefix="PARTWAY_WORKER_")

    handler: str = Field(
        description="What computes a segment: package.module:name, or apertium, http, sleep."
    )
    concurrency: int = Field(
        1, ge=1, le=1000, description="How many segments this process computes at once."
    )
    # A killed worker's segment comes back after a lease and a rest of backoff_seconds: within 15 s.
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
    # Two tries and a breath fit into most deadlines.
    retry_seconds: float = Field(
        1, ge=0, le=3600, description="How long a segment waits after a failed attempt."
    )
    # A fleet shares its looks: only one of more than a hundred workers rests so long.
    idle_seconds: float = Field(
        2, gt=0, le=60, description="The longest idle wait between two polls for work."
    )
    # Less than the 30 s that a container is given to end.
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
    def _rest_is_shorter_than_a_lease(self) -> Self:
        # A memory as long as a lease would hide a segment that came back.
        if self.backoff_seconds >= self.lease_seconds:
            raise ValueError(
                f"backoff_seconds ({self.backoff_seconds:g}) must be less than "
                f"lease_seconds ({self.lease_seconds:g})"
            )
        return self
