"""The product's name, and all names derived from it."""

from functools import cache

NAME = "muster"
TITLE = "Muster"
DISTRIBUTION = "muster-hub"
GROUP_SUFFIX = "open-cluster-management.io"
"""Default suffix of the API groups. A hub's suffix is fixed at its first start."""
OWN_GROUPS = ("addon", "cluster", "hub", "login")
"""First DNS labels of the API groups whose other labels are the suffix: `cluster` of `cluster.open-cluster-management.io`."""
METRIC_PREFIX = "muster_"
PART_OF = NAME
KUBECONFIG_EXTENSION = "muster"
"""Name of the extension, in a kubeconfig's cluster, that contains the hub's gRPC endpoint and id."""
KUBECONFIG_NAME_EXTENSION = "muster-cluster"
"""Name of the extension, in a kubeconfig's cluster, that contains only the cluster name of a bootstrap credential."""

RESERVED_DOMAINS = (GROUP_SUFFIX, "kubernetes.io", "k8s.io")


def suffixed(api_version: str, suffix: str) -> str:
    """Replace the default suffix of a group or `group/version` of OWN_GROUPS by `suffix`. Return other groups unchanged."""
    group, slash, rest = api_version.partition("/")
    name, _, ending = group.partition(".")
    own = name in OWN_GROUPS and ending == GROUP_SUFFIX
    return f"{name}.{suffix}{slash}{rest}" if own else api_version


@cache
def version() -> str:
    """Return the installed version; `0.0.0+source`: the distribution is not installed.

    The version is cached, because every Welcome contains it and reading it takes 1 ms.
    """
    from importlib import metadata  # noqa: PLC0415 - takes 20 ms, and hubctl starts without it

    try:
        return metadata.version(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        return "0.0.0+source"


def is_reserved(key: str) -> bool:
    """Return whether the hub or Kubernetes defines the labels with the prefix of `key` (a label key, or `prefix/*`)."""
    prefix, slash, _ = key.partition("/")
    return bool(slash) and any(prefix == domain or prefix.endswith(f".{domain}") for domain in RESERVED_DOMAINS)
