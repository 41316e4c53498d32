"""All settings of a hub, in one flat list of names."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hub.settings.capacity import CapacitySettings, RetentionSettings
from hub.settings.certificates import AuthoritySettings, LifetimeSettings
from hub.settings.clusters import Attestations, AvailabilitySettings, Clusters
from hub.settings.doors import Entrances, Places
from hub.settings.fields import ENVIRONMENT_PREFIX
from hub.settings.kubernetes_ca import KubernetesCa
from hub.settings.process import Election, ProcessSettings, Seeing, Telemetry
from machinery.settings import load_settings


class HubSettings(
    ProcessSettings,
    Seeing,
    Telemetry,
    Election,
    AvailabilitySettings,
    CapacitySettings,
    RetentionSettings,
    LifetimeSettings,
    Attestations,
    Clusters,
    KubernetesCa,
    Entrances,
    AuthoritySettings,
    Places,
):
    """All settings of a hub. The help lists the last group first."""

    @property
    def store_url(self) -> str:
        """URL of the database: without a setting SQLite in the data directory."""
        return f"sqlite:///{self.data_dir / 'hub.db'}" if self.database_url is None else self.database_url.get_secret_value()

    @property
    def is_alone(self) -> bool:
        """Whether no other replica can exist: an SQLite database serves one hub process."""
        return self.store_url.startswith("sqlite")


def load(flags: Mapping[str, Any], file: Path | None = None, environment: Mapping[str, str] | None = None) -> HubSettings:
    """The settings from all three sources; `environment` None: the process's own. Raises InvalidError with every problem."""
    return load_settings(HubSettings, ENVIRONMENT_PREFIX, flags, file, environment)
