"""Add-ons of this cluster, as the hub describes them."""

from dataclasses import dataclass

from machinery.identity import AddOnName


@dataclass(frozen=True, slots=True)
class AddOnRegistration:
    signer_name: str
    user: str
    groups: tuple[str, ...] = ()
    organization_units: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class AddOn:
    name: AddOnName
    install_namespace: str
    hosting_cluster_name: str = ""
    health_check_mode: str = "Lease"
    registrations: tuple[AddOnRegistration, ...] = ()
    deleting: bool = False
