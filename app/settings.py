"""One node of the door is told by its settings where it listens and what it takes in."""

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict


class AppSettings(BaseSettings):
    """What one HTTP node can be told."""

    model_config = SettingsConfigDict(env_prefix="PARTWAY_APP_")

    host: str = Field("127.0.0.1", description="The address to listen on.")
    port: int = Field(8000, ge=1, le=65535, description="The port to listen on.")
    target_segments: int = Field(
        100,
        ge=1,
        le=10_000,
        description="How many segments a document is split into, or more where they were too long.",
    )
    # MariaDB takes no packet over 16 MiB unless told to, and the gaps of a document are one value.
    max_body_bytes: int = Field(
        2_097_152, ge=1024, le=8_388_608, description="The largest body of a request, in bytes."
    )
    max_segments: int = Field(
        1000, ge=1, le=100_000, description="How many segments one request may have."
    )
    max_segment_characters: int = Field(
        5000, ge=10, le=1_000_000, description="The longest segment, in Unicode code points."
    )
    max_params_bytes: int = Field(
        16_384, ge=2, le=1_048_576, description="The largest params of a request, in bytes of JSON."
    )
    # A worker's list of active requests is this long: what is beyond it is found late.
    max_active_requests: int = Field(
        1000,
        ge=1,
        le=1_000_000,
        description="How many requests may be active, on all nodes together.",
    )
    # Some hundred megabytes of rows. A single body may be larger than this and is still taken.
    max_waiting_characters: int = Field(
        100_000_000,
        ge=1,
        description="How many code points the segments of active requests may have together.",
    )
    # Proxies and load balancers end a silent call after 60 s by default.
    max_deadline_ms: int = Field(
        55_000, ge=1, le=86_400_000, description="The longest deadline, in milliseconds."
    )
    # At most 2 s, since a node that stops answers its open calls at their next look.
    poll_seconds: float = Field(
        0.5, gt=0, le=2, description="How often a waiting call looks for finished segments."
    )
    # Longer than most handlers take for a segment, shorter than the 30 s that a container is given.
    drain_seconds: float = Field(
        25, ge=0, le=86_400, description="How long open calls may go on after SIGTERM."
    )
    # Longer than the idle time of common load balancers, which otherwise meet a closed socket.
    keep_alive_seconds: int = Field(
        75, ge=1, le=86_400, description="How long an idle connection is kept open."
    )
