"""Who comes in besides those whom the hub itself knows, and by which names it is called."""

import re
from ipaddress import ip_network
from pathlib import Path

from pydantic import Field, ValidationInfo, field_validator

from hub.settings.fields import Count, Words
from hub.settings.group import SettingsGroup
from machinery.product import GROUP_SUFFIX

_DOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)+")
MAX_SUFFIX = 200
_SERVICE = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?/[a-z0-9]([-a-z0-9]*[a-z0-9])?")


class Entrances(SettingsGroup):
    """Names of the hub, and credentials of others that it believes."""

    client_ca_file: Path | None = Field(
        None,
        description="CAs of others, in PEM, whose client certificates open the HTTPS door too: for people and tools, never for "
        "agents. Read again whenever it changes.",
    )
    client_ca_groups: Words = Field(
        (),
        description="The groups (O) that count in certificates of --client-ca-file; all others in them are left out. "
        "Names that begin with system: never count.",
    )
    api_group_suffix: str = Field(
        GROUP_SUFFIX,
        description="What the hub's API groups end in: cluster., addon. and hub. come before it. Fixed at the first start; "
        "another one than the default lets several hubs' groups be told apart, and shuts out OCM's own agents.",
    )
    management_cluster: str | None = Field(
        None,
        description="The Kubernetes cluster that has the hub as an aggregated API server: a kubeconfig for it, or the word "
        "in-cluster. Its front proxy is believed, its tokens and its rights count for those whom it knows.",
    )
    aggregation_service: str | None = Field(
        None,
        description="NAMESPACE/NAME of the Service by which --management-cluster reaches the hub: the caBundle of its "
        "APIServices is kept right.",
    )
    login_rate: Count = Field(
        20, description="Tokens a second that one address may have exchanged for certificates (TokenCredentialRequest). 0: any."
    )
    login_burst: Count = Field(200, description="Tokens of one address that may come at once.")
    audit_login_names: bool = Field(
        default=False,
        description="Whether audit records of logins name the user and groups of the token, also of one that failed.",
    )
    https_proxies: Words = Field(
        (),
        description="Networks (CIDR) of balancers before the HTTPS door that send the PROXY protocol, version 1 or 2: the "
        "addresses that they name count in limits and audit records. A header from anybody else ends the connection.",
    )
    serving_names: Words = Field((), description="More host names and addresses for the serving certificate.")

    @field_validator("api_group_suffix")
    @classmethod
    def _is_a_domain(cls, suffix: str) -> str:
        if len(suffix) > MAX_SUFFIX or not _DOMAIN.fullmatch(suffix):
            raise ValueError(f'"{suffix}" can end no API group: write a domain of two labels or more, such as hub.example.com')
        return suffix

    @field_validator("https_proxies")
    @classmethod
    def _are_networks(cls, networks: tuple[str, ...]) -> tuple[str, ...]:
        for network in networks:
            try:
                ip_network(network)
            except ValueError:
                raise ValueError(f'"{network[:80]}" is no network: write 10.0.0.0/8, fd00::/8 or one address') from None
        return networks

    @field_validator("aggregation_service")
    @classmethod
    def _names_a_service(cls, service: str | None, seen: ValidationInfo) -> str | None:
        if service is not None and not _SERVICE.fullmatch(service):
            raise ValueError(f'"{service}" names no Service: write NAMESPACE/NAME')
        if service is not None and seen.data.get("management_cluster") is None:
            raise ValueError("needs management_cluster too: the cluster whose APIServices are kept right")
        return service
