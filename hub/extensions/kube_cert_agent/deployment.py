"""The cert agent's Deployment: its desired state, comparison and update.

The value of the selector label is the version of the pod's form. Change this value when pods of the old form no longer work.
The hub then replaces existing Deployments, because selectors are immutable.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from hub.api.meta import document as doc
from hub.extensions.kube_cert_agent.__main__ import CERT_PATH, KEY_PATH
from machinery.meta.objects import Document

CERTIFICATE_FLAGS = ("cluster-signing-cert-file", "cluster-signing-kube-apiserver-client-cert-file")
KEY_FLAGS = ("cluster-signing-key-file", "cluster-signing-kube-apiserver-client-key-file")
"""Flags that name the CA. The first flag that is set counts: the general CA before the CA for clients only."""
DEFAULT_CERTIFICATE, DEFAULT_KEY = "/etc/kubernetes/ca/ca.pem", "/etc/kubernetes/ca/ca.key"
"""Paths for a pod without these flags: former defaults of kube-controller-manager."""


def flag_of(pod: Document, flags: Sequence[str], default: str) -> str:
    """Return the value of the first of these flags in a command line (`--flag=value` or `--flag value`), or `default`."""
    for flag, container in product(flags, doc.sequence(pod, "spec", "containers")):
        words = [str(word) for part in ("command", "args") for word in container.get(part) or ()]
        pairs = zip((word.partition("=") for word in words), [*words[1:], ""], strict=True)
        given = (
            value if equals else following for (name, equals, value), following in pairs if name in (f"--{flag}", f"-{flag}")
        )
        if found := next(given, ""):
            return found
    return default


SELECTOR_PREFIX = "kube-cert-agent.muster/"
SCHEMA = "v1"
CONTAINER = "sleeper"
PROGRAM = ("python", "-m", "hub.extensions.kube_cert_agent")
FOREIGN_SELECTORS = ("app", "app.kubernetes.io/name")
"""Labels by which Services and older Deployments select pods. An agent's pod must not have these labels."""
TOKEN_SOURCE = "serviceAccountToken"  # noqa: S105 - the name of a field


@dataclass(frozen=True, slots=True)
class AgentDeploymentShape:
    """An operator's configuration of the Deployment. Its pods get `labels` except for FOREIGN_SELECTORS."""

    namespace: str
    name: str
    image: str
    service_account: str
    labels: Mapping[str, str]
    pull_secrets: tuple[str, ...] = ()
    priority_class: str = ""

    @property
    def selector(self) -> dict[str, str]:
        """The only label that selects the pods. It is unique to this Deployment."""
        return {f"{SELECTOR_PREFIX}{self.name}": SCHEMA}

    @property
    def pod_labels(self) -> dict[str, str]:
        return {key: value for key, value in self.labels.items() if key not in FOREIGN_SELECTORS} | self.selector


def deployment(shape: AgentDeploymentShape, manager: Document, owner: Document | None = None) -> dict[str, Any]:
    """Return the Deployment, modelled on the pod `manager`. The Deployment is deleted with `owner` (an owner reference)."""
    metadata: dict[str, Any] = {"name": shape.name, "namespace": shape.namespace, "labels": dict(shape.labels)}
    if owner is not None:
        metadata["ownerReferences"] = [dict(owner)]
    spec = {
        "replicas": 1,
        "selector": {"matchLabels": shape.selector},
        "template": {"metadata": {"labels": shape.pod_labels}, "spec": _pod_spec(shape, manager)},
        "minReadySeconds": 10,
    }
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": spec}


def _pod_spec(shape: AgentDeploymentShape, manager: Document) -> dict[str, Any]:
    spec = doc.mapping(manager, "spec")
    volumes = [volume for volume in spec.get("volumes") or () if not _is_token(volume)]
    return {
        "containers": [_container(shape, manager, {str(volume.get("name")) for volume in volumes})],
        "volumes": volumes,
        "nodeSelector": dict(spec.get("nodeSelector") or {}),
        "nodeName": spec.get("nodeName") or "",
        "tolerations": list(spec.get("tolerations") or ()),
        "hostNetwork": bool(spec.get("hostNetwork")),
        "priorityClassName": shape.priority_class,
        "imagePullSecrets": [{"name": name} for name in shape.pull_secrets],
        "serviceAccountName": shape.service_account,
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": 0,
        # the CA's files belong to root
        "securityContext": {"runAsUser": 0, "runAsGroup": 0},
    }


def _container(shape: AgentDeploymentShape, manager: Document, volumes: set[str]) -> dict[str, Any]:
    first: Mapping[str, Any] = next(iter(doc.sequence(manager, "spec", "containers")), {})
    mounts = [{**mount, "readOnly": True} for mount in first.get("volumeMounts") or () if mount.get("name") in volumes]
    return {
        "name": CONTAINER,
        "image": shape.image,
        "imagePullPolicy": "IfNotPresent",
        "command": [*PROGRAM, "sleep"],
        "env": [
            {"name": CERT_PATH, "value": flag_of(manager, CERTIFICATE_FLAGS, DEFAULT_CERTIFICATE)},
            {"name": KEY_PATH, "value": flag_of(manager, KEY_FLAGS, DEFAULT_KEY)},
        ],
        "volumeMounts": mounts,
        # explicit 0: a LimitRange's default would replace a missing request
        "resources": {"limits": {"cpu": "20m", "memory": "32Mi"}, "requests": {"cpu": "0", "memory": "32Mi"}},
        # the container may read files of any user, and has no other capability
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"], "add": ["DAC_READ_SEARCH"]},
        },
    }


def _is_token(volume: Mapping[str, Any]) -> bool:
    """Whether the volume holds the controller-manager's own credential, which the agent must not have."""
    sources = (volume.get("projected") or {}).get("sources") or ()
    return any(TOKEN_SOURCE in source for source in sources)


def is_as_wanted(existing: Document, wanted: Document) -> bool:
    """Whether no write is needed. Selector, pod labels and priority must be equal, because `is_within` permits extra values."""
    exactly = (("spec", "selector"), ("spec", "template", "metadata", "labels"))
    if any(doc.mapping(existing, *path) != doc.mapping(wanted, *path) for path in exactly):
        return False
    priorities = [doc.mapping(each, "spec", "template", "spec").get("priorityClassName") or "" for each in (existing, wanted)]
    if priorities[0] != priorities[1]:
        return False
    if not set(_owners(wanted)).issubset(_owners(existing)):
        return False
    labels = is_within(wanted["metadata"]["labels"], doc.labels(existing))
    return labels and is_within(wanted["spec"], existing.get("spec"))


def _owners(document: Document) -> list[tuple[str, str, str]]:
    """Return kind, name and uid of each owner, without other fields, which a server may add."""
    references = doc.sequence(document, "metadata", "ownerReferences")
    return [(str(each.get("kind")), str(each.get("name")), str(each.get("uid"))) for each in references]


def is_within(wanted: Any, there: Any) -> bool:
    """Whether `there` contains `wanted`. Mappings may have more keys; empty equals absent."""
    if not wanted:
        return not there
    if isinstance(wanted, Mapping):
        return isinstance(there, Mapping) and all(is_within(value, there.get(key)) for key, value in wanted.items())
    if isinstance(wanted, Sequence) and not isinstance(wanted, str):
        same_length = isinstance(there, Sequence) and not isinstance(there, str) and len(there) == len(wanted)
        return same_length and all(map(is_within, wanted, there))
    return bool(wanted == there)


def updated(existing: Document, wanted: Document) -> dict[str, Any]:
    """Return the existing object with the wanted spec. Other labels, annotations and owners stay.

    A new owner replaces an earlier one of the same kind and name, which no longer exists.
    """
    metadata = {**existing["metadata"]}
    if labels := {**doc.labels(existing), **doc.labels(wanted)}:
        metadata["labels"] = labels
    ours = doc.sequence(wanted, "metadata", "ownerReferences")
    names = {(each.get("kind"), each.get("name")) for each in ours}
    others = doc.sequence(existing, "metadata", "ownerReferences")
    if owners := [*(each for each in others if (each.get("kind"), each.get("name")) not in names), *ours]:
        metadata["ownerReferences"] = owners
    return {**existing, "metadata": metadata, "spec": wanted["spec"]}
