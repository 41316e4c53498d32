"""The settings of a hub without extensions, in one flat list of names."""

from hub.settings.capacity import CapacitySettings, RetentionSettings
from hub.settings.certificates import AuthoritySettings, LifetimeSettings
from hub.settings.clusters import AvailabilitySettings, Clusters
from hub.settings.doors import ExternalTrustSettings, Places
from hub.settings.process import Election, MetricsSettings, ProcessSettings, Telemetry


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
    Places,
):
    """The settings of a hub without extensions. The help lists the last group first."""

    @property
    def store_url(self) -> str:
        """URL of the database: without a setting SQLite in the data directory."""
        return f"sqlite:///{self.data_dir / 'hub.db'}" if self.database_url is None else self.database_url.get_secret_value()

    @property
    def is_alone(self) -> bool:
        """Whether no other replica can exist: an SQLite database serves one hub process."""
        return self.store_url.startswith("sqlite")
