"""The agent's list of hubs: bootstrap kubeconfigs in files and secrets, in the order they were given, all of them watched.

A hub is on the list while a source names it. A source that cannot be read is told and passed over: the hub that it named last
stays where it was, because a file may be looked at while it is being written. A source that is gone, or names another hub,
takes its hub off the list.
"""

from spoke.bootstraps.listing import BootstrapListing, Bootstraps
from spoke.bootstraps.sources import Bootstrap, BootstrapFile, BootstrapSecret, MissingBootstrapError
from spoke.bootstraps.watch import BootstrapChangedError, BootstrapWatch

__all__ = [
    "Bootstrap",
    "BootstrapChangedError",
    "BootstrapFile",
    "BootstrapListing",
    "BootstrapSecret",
    "BootstrapWatch",
    "Bootstraps",
    "MissingBootstrapError",
]
