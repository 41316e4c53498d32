"""The parts of `kubernetes.aio` that the programs use. No other module of hub, spoke or hubctl imports `kubernetes`.

An import of `kubernetes` runs its `__init__`, which imports the synchronous client with requests and oauthlib. The `__init__`
of `kubernetes.aio` imports dynamic clients, websockets and leader election. Together they cost 11 MB and a tenth of a second,
and the agent needs none of them. Therefore this module registers both packages without running their `__init__`. Each
`__init__` runs later, at the first access to a name that it defines, so that other users of the package see no difference.
"""

import sys
from importlib.util import find_spec, module_from_spec
from typing import Any


def _enter_without_running(name: str) -> None:
    """Make the package `name` importable as a parent. Its `__init__` runs at the first access to a name that it defines."""
    spec = None if name in sys.modules else find_spec(name)
    if spec is None or spec.loader is None:
        return  # already loaded, or missing; then the imports below raise a better error
    loader, package = spec.loader, module_from_spec(spec)

    def run_on_demand(wanted: str) -> Any:
        if wanted.startswith("__"):
            raise AttributeError(wanted)
        if loaded := sys.modules.get(f"{name}.{wanted}"):
            return loaded  # a submodule is not an attribute of the package while it is being imported
        del package.__dict__["__getattr__"]
        loader.exec_module(package)
        return getattr(package, wanted)

    package.__dict__["__getattr__"] = run_on_demand
    sys.modules[name] = package
    parent, _, child = name.rpartition(".")
    if parent:
        setattr(sys.modules[parent], child, package)


_enter_without_running("kubernetes")
_enter_without_running("kubernetes.aio")

from kubernetes.aio.client import ApiClient, Configuration  # noqa: E402 - after the registration of the packages
from kubernetes.aio.config import ConfigException, load_kube_config_from_dict  # noqa: E402
from kubernetes.aio.config.incluster_config import InClusterConfigLoader  # noqa: E402

__all__ = ["ApiClient", "ConfigException", "Configuration", "InClusterConfigLoader", "load_kube_config_from_dict"]
