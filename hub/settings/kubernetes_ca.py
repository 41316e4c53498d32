"""The CA of the Kubernetes cluster that the hub runs in, as one that signs operators' logins."""

import re
from typing import Self

from pydantic import Field, field_validator, model_validator

from hub.settings.fields import SettingsGroup, Words

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_PAIR = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_./]*[A-Za-z0-9])?)=([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?")
MAX_LABEL = 63
RESERVED = "system:"


class KubernetesCa(SettingsGroup):
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
