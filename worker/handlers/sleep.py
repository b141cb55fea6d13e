"""Trying and soaking need a handler that takes a known time, so this one only waits."""

import asyncio
import math

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from partway.worker.handler import Context, Reject
from partway.worker.handlers import read_settings


class SleepSettings(BaseSettings):
    """How long it waits for a request that does not say."""

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
        """Read the settings; ValueError names what is wrong."""
        self.settings = read_settings(SleepSettings)

    async def __call__(self, text: str, ctx: Context) -> str:
        """The text, later."""
        seconds = ctx.params.get("seconds", self.settings.seconds)
        # JSON's true is a number to Python.
        is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
        if not is_number or not math.isfinite(seconds) or seconds < 0:
            raise Reject("bad_params", "seconds must be a number from 0 up")
        await asyncio.sleep(seconds)
        return text
