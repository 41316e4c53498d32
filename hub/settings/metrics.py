"""What a hub shows of itself to those who look after it."""

from pydantic import Field, field_validator

from hub.settings.fields import Address, ListenAddress
from hub.settings.group import SettingsGroup


class Seeing(SettingsGroup):
    """Metrics."""

    metrics_listen: ListenAddress | None = Field(
        None,
        description="Where Prometheus may scrape /metrics in plain HTTP, without credentials: host:port. Without it: only on "
        "the HTTPS door, where the group system:monitoring may.",
    )
    metrics_per_cluster: bool = Field(
        False,  # noqa: FBT003 - a field's default
        description="true: also metrics that have a series for each cluster; their number grows with the fleet.",
    )

    @field_validator("metrics_listen")
    @classmethod
    def _metrics_port(cls, address: Address | None) -> Address | None:
        if address is not None and not address.port:
            raise ValueError("a listening address needs a port between 1 and 65535, as in 127.0.0.1:9090")
        return address
