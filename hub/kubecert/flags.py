"""Finds the cluster's CA files in a controller-manager's flags."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from hub.api.meta import document as doc
from machinery.meta.objects import Document

CERTIFICATE_FLAGS = ("cluster-signing-cert-file", "cluster-signing-kube-apiserver-client-cert-file")
KEY_FLAGS = ("cluster-signing-key-file", "cluster-signing-kube-apiserver-client-key-file")
"""The first flag that is set wins: the general CA before the one for clients only."""
CERTIFICATE_PATH, KEY_PATH = "/etc/kubernetes/ca/ca.pem", "/etc/kubernetes/ca/ca.key"
"""Kubernetes' defaults from before these flags."""


@dataclass(frozen=True, slots=True)
class CaPaths:
    """Paths inside the controller-manager's container."""

    certificate: str
    key: str


def paths_of(pod: Document) -> CaPaths:
    """The paths from its containers' command lines."""
    return CaPaths(_first(pod, CERTIFICATE_FLAGS, CERTIFICATE_PATH), _first(pod, KEY_FLAGS, KEY_PATH))


def _first(pod: Document, flags: Sequence[str], default: str) -> str:
    return next((found for flag in flags if (found := flag_of(pod, flag))), default)


def flag_of(pod: Document, flag: str) -> str:
    """The value in the first container with the flag (`--flag=value` or `--flag value`); "" if none has it."""
    for container in doc.sequence(pod, "spec", "containers"):
        words = [str(word) for part in ("command", "args") for word in container.get(part) or ()]
        if found := next(_values(words, flag), ""):
            return found
    return ""


def _values(words: Sequence[str], flag: str) -> Iterator[str]:
    for number, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name not in (f"--{flag}", f"-{flag}"):
            continue
        yield value if equals else "".join(words[number + 1 : number + 2])
