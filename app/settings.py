"""A node needs settings: where it listens, what it accepts, and how long it waits."""

import re
from ipaddress import ip_address

from pydantic import Field, Json, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

# The name of a host, or an IPv6 address in the form that URLs use.
HOST_NAME = re.compile(r"[A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\]")


class AppSettings(BaseSettings):
    """The settings of one node."""

    model_config = SettingsConfigDict(env_prefix="PARTWAY_APP_")

    host: str = Field("127.0.0.1", description="The address to listen on.")
    port: int = Field(8000, ge=1, le=65535, description="The port to listen on.")
    # Without keys every caller is the same tenant, so only this machine may reach the port.
    keyless: bool = Field(
        False,
        description="Accept calls without a key, as one tenant; on a loopback address only.",
    )
    # Anyone can point a name of their own at this address, so browsers may use known names only.
    hosts: str = Field(
        "",
        description="The host names by which browsers call this node, separated by commas, "
        "besides loopback names and the address that it listens on.",
    )
    # Only the operator, who chose the handler, knows which params it reads.
    page_params: Json[dict[str, dict[str, str]]] = Field(
        {},
        validate_default=False,
        description="The params of the handler that people can choose on the page: JSON, "
        'such as {"target": {"spa": "Spanish"}}.',
    )
    target_segments: int = Field(
        100,
        ge=1,
        le=10_000,
        description="The most segments that a document is split into, "
        "unless they would be too long.",
    )
    # MariaDB accepts packets of 16 MiB by default, and the separators are stored as one value.
    max_body_bytes: int = Field(
        2_097_152, ge=1024, le=8_388_608, description="The largest body of a request, in bytes."
    )
    max_segments: int = Field(
        1000, ge=1, le=100_000, description="The most segments of one request."
    )
    max_segment_characters: int = Field(
        5000, ge=10, le=1_000_000, description="The longest segment, in Unicode code points."
    )
    max_params_bytes: int = Field(
        16_384, ge=2, le=1_048_576, description="The largest params of a request, in bytes of JSON."
    )
    # A worker lists this many active requests. It would find the others late.
    max_active_requests: int = Field(
        1000,
        ge=1,
        le=1_000_000,
        description="The most active requests on all nodes; at this limit new ones are refused.",
    )
    # This is some hundred megabytes of rows. One body that alone is larger is still accepted.
    max_waiting_characters: int = Field(
        100_000_000,
        ge=1,
        description="The most code points in the segments of all active requests; "
        "at this limit new requests are refused.",
    )
    # Half of max_active_requests, so that a single tenant never shuts the others out.
    tenant_active_requests: int = Field(
        500,
        ge=0,
        le=1_000_000,
        description="The most active requests of one tenant on all nodes; 0 for no limit.",
    )
    # As much as may wait in all. It stops a loop that runs wild, and no normal use.
    tenant_characters_per_minute: int = Field(
        100_000_000,
        ge=0,
        le=1_000_000_000_000,
        description="The most code points that one tenant can send in a minute, to all nodes; "
        "0 for no limit.",
    )
    # Proxies and load balancers end a call after 60 s without bytes by default.
    max_deadline_ms: int = Field(
        55_000, ge=1, le=86_400_000, description="The longest deadline, in milliseconds."
    )
    # At most 2 s, since a node that stops answers its open calls after their next poll.
    poll_seconds: float = Field(
        0.5, gt=0, le=2, description="The longest time between two polls for a waiting call."
    )
    # Most handlers take less for a segment, and containers are killed 30 s after SIGTERM.
    drain_seconds: float = Field(
        25,
        ge=0,
        le=86_400,
        description="How long open calls can continue after SIGTERM; then each is answered.",
    )
    # Longer than the idle time of common load balancers: they may send on a connection until then.
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
