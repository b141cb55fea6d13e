"""The batch is told by its settings how long an answer is kept and when a node counts as dead."""

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict


class BatchSettings(BaseSettings):
    """What the batch can be told."""

    model_config = SettingsConfigDict(env_prefix="PARTWAY_BATCH_")

    # A caller whose connection broke comes back within a minute, or not at all. Never less than the
    # node that closed it needs to read the answer: it would be billed, and its caller told 410.
    retention_seconds: float = Field(
        60,
        ge=1,
        le=86_400,
        description="How long a closed request can be read before it is settled.",
    )
    # A node that lives has answered long before.
    grace_seconds: float = Field(
        5,
        ge=0,
        le=3600,
        description="How long after its deadline an active request is closed as abandoned.",
    )
    idle_seconds: float = Field(
        1, gt=0, le=3600, description="The longest idle wait between two passes."
    )
