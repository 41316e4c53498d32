"""Settings of the hub: flags override `HUB_*` environment variables, which override a YAML file.

All three have the same names: the setting `grpc_listen` is the flag `--grpc-listen`, the variable `HUB_GRPC_LISTEN` and the key
`grpc_listen` (or `grpc-listen`) of the file. Add a new setting to the module of its topic.
"""

from hub.settings.capacity import CapacitySettings, RetentionSettings
from hub.settings.certificates import AuthoritySettings, LifetimeSettings
from hub.settings.clusters import AvailabilitySettings, Clusters
from hub.settings.doors import ExternalTrustSettings, StorageSettings
from hub.settings.fields import ENVIRONMENT_PREFIX
from hub.settings.process import Election, MetricsSettings, ProcessSettings, Telemetry

__all__ = ["ENVIRONMENT_PREFIX", "HubSettings"]


class HubSettings(
    ProcessSettings,
    MetricsSettings,
    Telemetry,
    Election,
    AvailabilitySettings,
    CapacitySettings,
    RetentionSettings,
    LifetimeSettings,
    Clusters,
    ExternalTrustSettings,
    AuthoritySettings,
    StorageSettings,
):
    """The settings of a hub without extensions. The help lists the last group first."""

    @property
    def store_url(self) -> str:
        """URL of the database. Without the setting `database_url`: SQLite in the data directory."""
        return f"sqlite:///{self.data_dir / 'hub.db'}" if self.database_url is None else self.database_url.get_secret_value()

    @property
    def is_alone(self) -> bool:
        """Whether no other replica can exist: an SQLite database serves one hub process."""
        return self.store_url.startswith("sqlite")
