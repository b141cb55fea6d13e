"""The handlers that come with Partway, and how they read their settings."""

from typing import TypeVar

from pydantic import ValidationError
from pydantic_settings import BaseSettings

from partway.store.settings import unknown_variables

Settings = TypeVar("Settings", bound=BaseSettings)


def read_settings(kind: type[Settings]) -> Settings:
    """The settings of a handler; ValueError names the variables that are wrong, never their values.

    A handler is set up in a child, which reports an error and leaves the exit status to its parent.
    """
    prefix = kind.model_config.get("env_prefix", "")
    if lines := unknown_variables(kind):
        raise ValueError("; ".join(lines))
    try:
        return kind()
    except ValidationError as error:
        faults = []
        for fault in error.errors(include_input=False, include_url=False):
            setting, *place = (str(part) for part in fault["loc"])
            within = f" ({'/'.join(place)})" if place else ""
            said = fault["msg"].removeprefix("Value error, ")
            faults.append(f"{prefix}{setting.upper()}{within}: {said}")
        raise ValueError("; ".join(faults)) from None
