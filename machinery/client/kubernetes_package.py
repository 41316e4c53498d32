"""The used parts of `kubernetes.aio`. Only this module imports the package.

Importing anything of `kubernetes` runs its `__init__`, which imports the synchronous client with requests and oauthlib; that of
`kubernetes.aio` imports dynamic clients, websockets and leader election. Together they cost 11 MB and a tenth of a second, and
no agent uses them. Both packages are therefore registered without running these files; each file runs on the first access to a
name that it defines, so that other users of the package see no difference.
"""

import sys
from importlib.util import find_spec, module_from_spec
from typing import Any


def _enter_without_running(name: str) -> None:
    """Make `name` importable as a parent; its `__init__` runs on the first access to a name that only it defines."""
    spec = None if name in sys.modules else find_spec(name)
    if spec is None or spec.loader is None:
        return  # it is loaded already, or missing, which the imports below report better
    loader, package = spec.loader, module_from_spec(spec)

    def run_on_demand(wanted: str) -> Any:
        if wanted.startswith("__"):
            raise AttributeError(wanted)
        if loaded := sys.modules.get(f"{name}.{wanted}"):
            return loaded  # a part that is being imported is not yet an attribute
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

from kubernetes.aio.client import ApiClient, Configuration  # noqa: E402 - only now is the package entered
from kubernetes.aio.config import ConfigException, load_kube_config_from_dict  # noqa: E402
from kubernetes.aio.config.incluster_config import InClusterConfigLoader  # noqa: E402

__all__ = ["ApiClient", "ConfigException", "Configuration", "InClusterConfigLoader", "load_kube_config_from_dict"]
