"""The handlers that come with Partway, and the way in which they read their settings."""

from typing import TypeVar

from pydantic import ValidationError
from pydantic_settings import BaseSettings

from partway.store.settings import unknown_variables

Settings = TypeVar("Settings", bound=BaseSettings)


def read_settings(kind: type[Settings]) -> Settings:
    """Read the settings of a handler; ValueError names wrong variables, but never their values.

    A handler is set up in a child. The child reports the error; its parent sets the exit status.
    """
    prefix = kind.model_config.get("env_prefix", "")
    if lines := unknown_variables(kind):
        raise ValueError("; ".join(lines))
    try:
        return kind()
    except ValidationError as error:
        lines = []
        for detail in error.errors(include_input=False, include_url=False):
            setting, *path = (str(part) for part in detail["loc"])
            place = f" ({'/'.join(path)})" if path else ""
            message = detail["msg"].removeprefix("Value error, ")
            lines.append(f"{prefix}{setting.upper()}{place}: {message}")
        raise ValueError("; ".join(lines)) from None
