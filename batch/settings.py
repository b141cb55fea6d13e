"""The settings of the batch: how long answers are kept, and when a request counts as abandoned."""

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict


class BatchSettings(BaseSettings):
    """The settings of the batch."""

    model_config = SettingsConfigDict(env_prefix="PARTWAY_BATCH_")

    # A caller whose connection broke usually retries within a minute. At least as long as a node
    # needs to read the answer after the close: otherwise it is billed, and the caller gets 410.
    retention_seconds: float = Field(
        60,
        ge=1,
        le=86_400,
        description="How long a closed request can be read before it is settled.",
    )
    # A running node closes a request much sooner.
    grace_seconds: float = Field(
        5,
        ge=0,
        le=3600,
        description="How long after its deadline an active request is closed as abandoned.",
    )
    idle_seconds: float = Field(
        1, gt=0, le=3600, description="The longest idle wait between two passes."
    )
