"""What an operator may decide about a hub: flags over `HUB_*` environment variables over a YAML file.

One flat list of names for all three: the setting `grpc_listen` is the flag `--grpc-listen`, the variable `HUB_GRPC_LISTEN` and
the key `grpc_listen` (or `grpc-listen`) of the file. A new setting goes into the module of its concern.
"""

from hub.settings.group import ENVIRONMENT_PREFIX
from hub.settings.loading import SettingsError, load
from hub.settings.settings import HubSettings

__all__ = ["ENVIRONMENT_PREFIX", "HubSettings", "SettingsError", "load"]
