"""Settings of the hub: flags override `HUB_*` environment variables, which override a YAML file.

All three have the same names: the setting `grpc_listen` is the flag `--grpc-listen`, the variable `HUB_GRPC_LISTEN` and the key
`grpc_listen` (or `grpc-listen`) of the file. A new setting goes into the module of its concern.
"""

from hub.settings.fields import ENVIRONMENT_PREFIX
from hub.settings.settings import HubSettings

__all__ = ["ENVIRONMENT_PREFIX", "HubSettings"]
