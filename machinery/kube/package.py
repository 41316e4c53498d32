"""The parts of `kubernetes.aio` that are used here: the one place that imports the package.

Importing anything of `kubernetes` first runs its `__init__`, which imports the synchronous client with requests, oauthlib and
websocket: 7 MB and a tenth of a second that no agent of ours needs. So the package is entered without running that file; it is
run when somebody asks for something that it defines, so that other users of the package see no difference.
"""

import sys
from importlib.util import find_spec, module_from_spec
from typing import Any

NAME = "kubernetes"


def _enter_without_running() -> None:
    if NAME in sys.modules:
        return
    spec = find_spec(NAME)
    if spec is None or spec.loader is None:
        return  # the import below says it better
    package = module_from_spec(spec)

    def run_on_demand(name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if loaded := sys.modules.get(f"{NAME}.{name}"):
            return loaded  # a part that is being imported is not yet an attribute
        del package.__dict__["__getattr__"]
        assert spec.loader  # noqa: S101 - checked above
        spec.loader.exec_module(package)
        return getattr(package, name)

    package.__dict__["__getattr__"] = run_on_demand
    sys.modules[NAME] = package


_enter_without_running()

from kubernetes.aio.client import ApiClient, Configuration  # noqa: E402 - only now is the package entered
from kubernetes.aio.config import ConfigException, load_kube_config_from_dict  # noqa: E402
from kubernetes.aio.config.incluster_config import InClusterConfigLoader  # noqa: E402

__all__ = ["ApiClient", "ConfigException", "Configuration", "InClusterConfigLoader", "load_kube_config_from_dict"]
