"""Settings come from the environment or a flag, and a wrong one is named before anything starts."""

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

# What every program reads begins with no more than this; what one alone reads has a longer prefix.
SHARED_PREFIX = "PARTWAY_"


@dataclass(frozen=True)
class Address:
    """Where the database is and who asks; `database` must exist already."""

    host: str
    port: int
    user: str
    password: str
    database: str
    unix_socket: str | None
    tls: ssl.SSLContext | None


class DatabaseSettings(BaseSettings):
    """How every program reaches the one database."""

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
    """The parts of a database URL; ValueError says which is wrong and shows none of them.

    An unwritten / ? # or @ in a password moves what follows it into another part.
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
        raise ValueError("has an option that is not known; there are unix_socket and tls")
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
    """A line for each variable that begins as these settings do and is none of them; [] as a rule.

    A misspelt one would leave the default in force and nobody the wiser. What begins with no more
    than PARTWAY_ may be anybody's.
    """
    prefix = kind.model_config.get("env_prefix", "")
    if prefix == SHARED_PREFIX:
        return []
    known = [f"{prefix}{name}".upper() for name in kind.model_fields]
    lines = []
    for name in sorted(os.environ):
        if name.upper().startswith(prefix) and name.upper() not in known:
            near = difflib.get_close_matches(name.upper(), known, n=1, cutoff=0.8)
            meant = f"; is {near[0]} meant?" if near else ""
            lines.append(f"{name}: there is no such setting{meant}")
    return lines


def read_settings(
    kind: type[Settings], program: str, flags: Mapping[str, str | None] | None = None
) -> Settings:
    """The settings of a program: from its flags, else the environment, else the defaults.

    Ends the process with status 2 and one line for each setting that is wrong, by its name. `flags`
    has the value of each setting that was given as one, and None for the others. A URL with a
    password in it has no flag: every user of a machine sees the flags of its programs.
    """
    given = {name: value for name, value in (flags or {}).items() if value is not None}
    if lines := unknown_variables(kind):
        for line in lines:
            print(f"{program}: {line}", file=sys.stderr)
        raise SystemExit(2)
    try:
        # What is in there is checked here, whatever its type says.
        return kind(**given)  # type: ignore[arg-type]
    except ValidationError as error:
        prefix = kind.model_config.get("env_prefix", "")
        for wrong in error.errors(include_input=False, include_url=False):
            said = wrong["msg"].removeprefix("Value error, ")
            # What is wrong about two of them together names both itself.
            if wrong["loc"]:
                name = str(wrong["loc"][0])
                flag, variable = f"--{name.replace('_', '-')}", f"{prefix}{name.upper()}"
                said = f"{flag if name in given else variable}: {said}"
            print(f"{program}: {said}", file=sys.stderr)
        raise SystemExit(2) from None
