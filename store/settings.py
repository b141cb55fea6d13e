"""Reads settings from the environment and flags, and names a wrong one before anything starts."""

import difflib
import os
import ssl
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeVar
from urllib.parse import parse_qsl, unquote, urlsplit

from pydantic import Field, ValidationError, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

Settings = TypeVar("Settings", bound=BaseSettings)

# The prefix of the settings that all programs share. Settings of one program have a longer prefix.
SHARED_PREFIX = "PARTWAY_"


@dataclass(frozen=True)
class Address:
    """The parts of a database URL. The database must exist already."""

    host: str
    port: int
    user: str
    password: str
    database: str
    unix_socket: str | None
    tls: ssl.SSLContext | None


class DatabaseSettings(BaseSettings):
    """How every program reaches the database."""

    model_config = SettingsConfigDict(env_prefix=SHARED_PREFIX)

    database_url: str = Field(
        description="The URL of the database: mysql://user:password@host:3306/database; add "
        "?unix_socket=/path for a socket, ?tls=on for an encrypted connection."
    )
    pool_size: int = Field(
        10, ge=1, le=1000, description="How many connections one program holds at most."
    )

    @field_validator("database_url")
    @classmethod
    def _can_be_read(cls, url: str) -> str:
        read_address(url)
        return url


class LogSettings(BaseSettings):
    """How every program writes its log."""

    model_config = SettingsConfigDict(env_prefix=SHARED_PREFIX)

    log_format: Literal["auto", "json", "text"] = Field(
        "auto",
        description="The format of log lines: json, text, or auto, which is text on a terminal and "
        "json elsewhere.",
    )


def read_address(url: str) -> Address:
    """Parse a database URL; ValueError says which part is wrong, but shows no part.

    An unescaped / ? # or @ in a password would move a piece of it into another part.
    """
    try:
        parts = urlsplit(url)
    except ValueError:
        raise ValueError("must be a URL: mysql://user:password@host:3306/database") from None
    if parts.scheme not in ("mysql", "mariadb"):
        raise ValueError("must begin with mysql:// or mariadb://")
    try:
        port = parts.port or 3306
    except ValueError:
        raise ValueError("the port must be a number up to 65535") from None
    name = parts.path.removeprefix("/")
    if not name:
        raise ValueError("must name a database after the host: mysql://user@host/database")
    if parts.fragment or "/" in name or "@" in name + parts.query:
        raise ValueError("must write / ? # @ in a user, password or path as %2F %3F %23 %40")
    query = dict(parse_qsl(parts.query, keep_blank_values=True))
    if query.keys() - {"unix_socket", "tls"}:
        raise ValueError("has an unknown option; the options are unix_socket and tls")
    if query.get("tls", "off") not in ("on", "off"):
        raise ValueError("tls must be on or off")
    return Address(
        host=parts.hostname or "localhost",
        port=port,
        user=unquote(parts.username or ""),
        password=unquote(parts.password or ""),
        database=unquote(name),
        unix_socket=query.get("unix_socket"),
        tls=ssl.create_default_context() if query.get("tls") == "on" else None,
    )


def unknown_variables(kind: type[BaseSettings]) -> list[str]:
    """An error line for each variable with this prefix that is not a setting; [] when all are.

    Otherwise the default would be used for a misspelt setting, and nobody would notice. Variables
    with only the prefix PARTWAY_ are not checked, since they can belong to something else.
    """
    prefix = kind.model_config.get("env_prefix", "")
    if prefix == SHARED_PREFIX:
        return []
    known = [f"{prefix}{name}".upper() for name in kind.model_fields]
    lines = []
    for name in sorted(os.environ):
        if name.upper().startswith(prefix) and name.upper() not in known:
            near = difflib.get_close_matches(name.upper(), known, n=1, cutoff=0.8)
            suggestion = f"; did you mean {near[0]}?" if near else ""
            lines.append(f"{name}: there is no such setting{suggestion}")
    return lines


def read_settings(
    kind: type[Settings], program: str, flags: Mapping[str, str | None] | None = None
) -> Settings:
    """Read settings from flags, else from the environment, else from their defaults.

    Exits with status 2, and one line for each wrong setting. `flags` maps each setting to the value
    of its flag, or to None. A URL with a password has no flag: every user of a machine can see the
    flags of its programs.
    """
    given = {name: value for name, value in (flags or {}).items() if value is not None}
    if lines := unknown_variables(kind):
        for line in lines:
            print(f"{program}: {line}", file=sys.stderr)
        raise SystemExit(2)
    try:
        # Pydantic converts and checks the strings.
        return kind(**given)  # type: ignore[arg-type]
    except ValidationError as error:
        prefix = kind.model_config.get("env_prefix", "")
        for detail in error.errors(include_input=False, include_url=False):
            message = detail["msg"].removeprefix("Value error, ")
            # An error about two settings together has no place, and names both itself.
            if detail["loc"]:
                name = str(detail["loc"][0])
                flag, variable = f"--{name.replace('_', '-')}", f"{prefix}{name.upper()}"
                message = f"{flag if name in given else variable}: {message}"
            print(f"{program}: {message}", file=sys.stderr)
        raise SystemExit(2) from None
