"""A handler that only waits: trials and load tests need one that takes a known time."""

import asyncio
import math

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from partway.worker.handler import Context, Reject
from partway.worker.handlers import read_settings


class SleepSettings(BaseSettings):
    """How long the handler waits when the request does not say."""

    model_config = SettingsConfigDict(env_prefix="PARTWAY_SLEEP_")

    seconds: float = Field(
        1.0,
        ge=0,
        allow_inf_nan=False,
        description="How many seconds the sleep handler takes for a segment.",
    )


class Sleep:
    """Returns the text unchanged after `params["seconds"]`, else PARTWAY_SLEEP_SECONDS."""

    def setup(self) -> None:
        """Read the settings; ValueError names the wrong ones."""
        self.settings = read_settings(SleepSettings)

    async def __call__(self, text: str, ctx: Context) -> str:
        """Return the text after the wait."""
        seconds = ctx.params.get("seconds", self.settings.seconds)
        # In Python, a bool is an int.
        is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
        if not is_number or not math.isfinite(seconds) or seconds < 0:
            raise Reject("bad_params", "seconds must be a number from 0 up")
        await asyncio.sleep(seconds)
        return text
