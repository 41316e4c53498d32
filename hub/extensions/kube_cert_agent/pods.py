"""Selection of pods, and the output of `print` in the cert agent's pod. Errors contain no part of that output."""

import base64
import binascii
import json
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from hub.api.meta import document as doc
from hub.extensions.kube_cert_agent.__main__ import CERTIFICATE, KEY
from machinery.errors import InvalidError
from machinery.meta.objects import Document
from machinery.meta.timestamps import parse_time

RUNNING = "Running"


def running(pods: Iterable[Document]) -> list[Document]:
    """Running pods that are not being deleted, newest first; for equal times, the smaller name first."""
    found = [pod for pod in pods if doc.mapping(pod, "status").get("phase") == RUNNING and not doc.is_deleting(pod)]
    return sorted(sorted(found, key=doc.name), key=_made, reverse=True)


def preferred(pods: Sequence[Document], nodes: Iterable[Document]) -> Document | None:
    """The first pod on a schedulable node, else the first pod. Nodes without a name are ignored."""
    schedulable = {doc.name(node) for node in nodes if not doc.mapping(node, "spec").get("unschedulable")} - {""}
    return next((pod for pod in pods if doc.mapping(pod, "spec").get("nodeName") in schedulable), pods[0] if pods else None)


def instance(pod: Document) -> str:
    """A value that changes with the pod and with restarts of its containers."""
    statuses = doc.sequence(pod, "status", "containerStatuses")
    restarts = sum(int(status.get("restartCount") or 0) for status in statuses)
    return f"{doc.mapping(pod, 'metadata').get('uid', '')}/{restarts}"


def candidates(pods: Collection[Any]) -> str:
    """Their number in words."""
    return f"{len(pods)} candidate{'' if len(pods) == 1 else 's'}"


def _made(pod: Document) -> datetime:
    try:
        return parse_time(str(doc.mapping(pod, "metadata").get("creationTimestamp") or ""))
    except ValueError:
        return datetime.min.replace(tzinfo=UTC)


LONGEST = 1 << 20


@dataclass(frozen=True, slots=True)
class Printed:
    """Certificate and key as in the files."""

    certificate: bytes
    key: bytes = field(repr=False)


def parse_printed(output: bytes, pod: str) -> Printed:
    """`pod` is for error messages. Raises InvalidError that names the failed step."""
    try:
        document = json.loads(output)
    except ValueError:
        document = None
    if not isinstance(document, dict):
        raise InvalidError(f'agent pod "{pod}" printed no JSON object')
    return Printed(_decoded(document, CERTIFICATE, "certificate", pod), _decoded(document, KEY, "key", pod))


def _decoded(document: dict[str, object], name: str, what: str, pod: str) -> bytes:
    try:
        return base64.b64decode(str(document.get(name) or "\0"), validate=True)
    except (binascii.Error, ValueError):
        raise InvalidError(f'agent pod "{pod}" printed a {what} ({name}) that is not base64') from None
