"""Settings of the extensions, and of a hub with all of them."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator

from hub.settings import ENVIRONMENT_PREFIX, HubSettings
from hub.settings.fields import Count, SettingsGroup, Words
from machinery.meta.urls import AllowedUrls, https_url_error
from machinery.settings import load_settings

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_PAIR = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_./]*[A-Za-z0-9])?)=([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?")
MAX_LABEL = 63
RESERVED = "system:"
_SERVICE = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?/[a-z0-9]([-a-z0-9]*[a-z0-9])?")


class KubeCertAgentSettings(SettingsGroup):
    """Off, unless an operator says so: it needs rights in kube-system that are as good as the cluster's."""

    kube_cert_agent: bool = Field(
        default=False,
        description="Sign operators' logins with the CA of the Kubernetes cluster that the hub runs in (or that "
        "--management-cluster names), so that they open that cluster too. Its key is fetched through a pod beside the "
        "controller-manager, which works only where the control plane is the cluster's own.",
    )
    kube_cert_agent_image: str | None = Field(None, description="Image of that pod: the hub's. Needed with --kube-cert-agent.")
    kube_cert_agent_namespace: str | None = Field(
        None, description="Where that pod is. Without it: POD_NAMESPACE, as the downward API gives it."
    )
    kube_cert_agent_name: str = Field(
        "hub-kube-cert-agent", description="Name of that pod's Deployment; each hub of a namespace needs one of its own."
    )
    kube_cert_agent_service_account: str = Field(
        "default", description="ServiceAccount of that pod. It gets no token, and needs no rights."
    )
    kube_cert_agent_labels: Words = Field((), description="Labels of that Deployment, as KEY=VALUE.")
    kube_cert_agent_pull_secrets: Words = Field((), description="Names of Secrets that its image is pulled with.")
    kube_cert_agent_priority_class: str | None = Field(None, description="PriorityClass of that pod.")
    kube_cert_agent_server: str | None = Field(
        None, description="How operators reach that cluster's API. Without it: as kube-public/cluster-info says."
    )
    kubernetes_ca_groups: Words = Field(
        (),
        description="The groups that count in certificates of that CA at the HTTPS door; without any they open nothing here. "
        "Names that begin with system: are refused.",
    )

    @field_validator("kube_cert_agent_name")
    @classmethod
    def _names_a_deployment(cls, name: str) -> str:
        if len(name) > MAX_LABEL or not _LABEL.fullmatch(name):
            raise ValueError(f'"{name[:80]}" names no Deployment: use 1 to 63 lower-case letters, digits and "-"')
        return name

    @field_validator("kube_cert_agent_labels")
    @classmethod
    def _are_labels(cls, labels: tuple[str, ...]) -> tuple[str, ...]:
        wrong = [label for label in labels if not _PAIR.fullmatch(label)]
        if wrong:
            raise ValueError(f'"{wrong[0][:80]}" is no label: write KEY=VALUE')
        return labels

    @field_validator("kubernetes_ca_groups")
    @classmethod
    def _are_nobody_elses(cls, groups: tuple[str, ...]) -> tuple[str, ...]:
        reserved = [group for group in groups if group.startswith(RESERVED)]
        if reserved:
            raise ValueError(f'"{reserved[0][:80]}" cannot count: groups that begin with {RESERVED} are Kubernetes\' own')
        return groups

    @model_validator(mode="after")
    def _can_be_deployed(self) -> Self:
        if self.kube_cert_agent and not self.kube_cert_agent_image:
            raise ValueError("kube_cert_agent needs kube_cert_agent_image: the image of its pod, which is the hub's own")
        if self.kubernetes_ca_groups and not self.kube_cert_agent:
            raise ValueError("kubernetes_ca_groups needs kube_cert_agent: without it no CA of a cluster is known")
        return self


class AggregationSettings(SettingsGroup):
    """The hub as an aggregated API server of --management-cluster."""

    aggregation_service: str | None = Field(
        None,
        description="NAMESPACE/NAME of the Service by which --management-cluster reaches the hub: the caBundle of its "
        "APIServices is kept right.",
    )

    @field_validator("aggregation_service")
    @classmethod
    def _names_a_service(cls, service: str | None, seen: ValidationInfo) -> str | None:
        if service is not None and not _SERVICE.fullmatch(service):
            raise ValueError(f'"{service}" names no Service: write NAMESPACE/NAME')
        if service is not None and seen.data.get("management_cluster") is None:
            raise ValueError("needs management_cluster too: the cluster whose APIServices are kept right")
        return service


class AttestationSettings(SettingsGroup):
    """A token of the managed cluster's own issuer, which binds a cluster's name to it."""

    attestation: Literal["by-credential", "required"] = Field(
        "by-credential",
        description="Whether a cluster proves who it is where its bootstrap credential demands it, or at every first "
        "registration. Agents that come over the Kubernetes API alone cannot, and are shut out by `required`.",
    )
    attestation_issuers: Path | None = Field(
        None,
        description="A YAML file with the issuers (OpenID Connect) of managed clusters, for credentials that name none; read "
        "at each registration. See docs/how-to/bootstrap-credentials.md.",
    )
    attestation_allowed_issuers: Words = Field(
        (),
        description="Issuers whose keys the hub fetches when a bootstrap credential names them without keys: whole https:// "
        "addresses, or https://HOST[:PORT] for all of a host, with *. before it for its subdomains. Keys come from the same "
        "host or a listed one. Issuers of --attestation-issuers need no entry. Empty: none is fetched.",
    )
    attestation_audience: str = Field(
        "", description="For whom clusters' tokens must be. Empty: urn:uuid:<the hub's id>, so that no other hub can use them."
    )

    @field_validator("attestation_allowed_issuers")
    @classmethod
    def _are_addresses(cls, entries: tuple[str, ...]) -> tuple[str, ...]:
        for entry in entries:
            if not AllowedUrls((entry,)).allow(entry.replace("//*.", "//any.", 1)) or https_url_error(entry) is not None:
                examples = "https://oidc.example.org/edge1 or https://*.example.org"
                raise ValueError(f'"{entry[:200]}" is not an https:// address, such as {examples}')
        return entries


class TokenLoginSettings(SettingsGroup):
    """Tokens of other issuers that are exchanged for client certificates."""

    login_rate: Count = Field(
        20, description="Tokens a second that one address may have exchanged for certificates (TokenCredentialRequest). 0: any."
    )
    login_burst: Count = Field(200, description="Tokens of one address that may come at once.")
    audit_login_names: bool = Field(
        default=False,
        description="Whether audit records of logins name the user and groups of the token, also of one that failed.",
    )


class Settings(KubeCertAgentSettings, AggregationSettings, AttestationSettings, TokenLoginSettings, HubSettings):
    """Settings of a hub with all extensions."""


def load(flags: Mapping[str, Any], file: Path | None = None, environment: Mapping[str, str] | None = None) -> Settings:
    """The settings from all three sources; `environment` None: the process's own. Raises InvalidError with every problem."""
    return load_settings(Settings, ENVIRONMENT_PREFIX, flags, file, environment)
