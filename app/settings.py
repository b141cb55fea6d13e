"""One node of the door is told by its settings where it listens and what it takes in."""

import re
from ipaddress import ip_address

from pydantic import Field, Json, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

# The name of a host, or an IPv6 address as a URL has it.
HOST_NAME = re.compile(r"[A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\]")


class AppSettings(BaseSettings):
    """What one HTTP node can be told."""

    model_config = SettingsConfigDict(env_prefix="PARTWAY_APP_")

    host: str = Field("127.0.0.1", description="The address to listen on.")
    port: int = Field(8000, ge=1, le=65535, description="The port to listen on.")
    # Only where nobody else reaches the port: whoever does is everybody.
    keyless: bool = Field(
        False,
        description="Whether calls need no key: everybody is one tenant, on a loopback address.",
    )
    # A browser is told other names for an address by whoever owns the name.
    hosts: str = Field(
        "",
        description="The names by which browsers call this node, comma separated, "
        "besides loopback names and the address that it listens on.",
    )
    # Only whoever chose the handler knows what it can be asked for.
    page_params: Json[dict[str, dict[str, str]]] = Field(
        {},
        validate_default=False,
        description="What the page lets people choose for the handler: JSON, "
        'such as {"target": {"spa": "Spanish"}}.',
    )
    target_segments: int = Field(
        100,
        ge=1,
        le=10_000,
        description="Into how many segments a document is split at most, "
        "unless they would be too long.",
    )
    # MariaDB takes no packet over 16 MiB by default, and the separators are stored as one value.
    max_body_bytes: int = Field(
        2_097_152, ge=1024, le=8_388_608, description="The largest body of a request, in bytes."
    )
    max_segments: int = Field(
        1000, ge=1, le=100_000, description="How many segments one request has at most."
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
        description="How many requests are active at most, on all nodes; "
        "then new ones are refused.",
    )
    # Some hundred megabytes of rows. A single body may be larger than this and is still taken.
    max_waiting_characters: int = Field(
        100_000_000,
        ge=1,
        description="How many code points the segments of active requests have together at most; "
        "then new requests are refused.",
    )
    # Half of max_active_requests: a single tenant never shuts the others out.
    tenant_active_requests: int = Field(
        500,
        ge=0,
        le=1_000_000,
        description="How many requests of one tenant are active at most, on all nodes; "
        "0 for no limit.",
    )
    # As much as may wait at all: it ends a loop that has gone wild, and no honest day's work.
    tenant_characters_per_minute: int = Field(
        100_000_000,
        ge=0,
        le=1_000_000_000_000,
        description="How many code points one tenant can send in a minute, to all nodes; "
        "0 for no limit.",
    )
    # Proxies and load balancers end a silent call after 60 s by default.
    max_deadline_ms: int = Field(
        55_000, ge=1, le=86_400_000, description="The longest deadline, in milliseconds."
    )
    # At most 2 s, since a node that stops answers its open calls at their next look.
    poll_seconds: float = Field(
        0.5, gt=0, le=2, description="The longest time between two polls for a waiting call."
    )
    # Longer than most handlers take for a segment, shorter than the 30 s that a container is given.
    drain_seconds: float = Field(
        25,
        ge=0,
        le=86_400,
        description="How long open calls can continue after SIGTERM; then each is answered.",
    )
    # Longer than the idle time of common load balancers, which otherwise meet a closed socket.
    keep_alive_seconds: int = Field(
        75, ge=1, le=86_400, description="How long an idle connection is kept open."
    )

    @field_validator("hosts")
    @classmethod
    def _are_names(cls, hosts: str) -> str:
        for name in filter(None, map(str.strip, hosts.split(","))):
            if HOST_NAME.fullmatch(name) is None:
                raise ValueError("must be names such as partway.example, without scheme and port")
        return hosts

    @model_validator(mode="after")
    def _keyless_is_for_this_machine(self) -> "AppSettings":
        if self.keyless and not is_loopback(self.host):
            raise ValueError(
                "PARTWAY_APP_KEYLESS is on, which PARTWAY_APP_HOST allows on a loopback address "
                "only, such as 127.0.0.1"
            )
        return self

    def host_names(self) -> frozenset[str]:
        """The names in `hosts`, in lower case; empty when there are none."""
        return frozenset(filter(None, (name.strip().lower() for name in self.hosts.split(","))))


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach that address."""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False
