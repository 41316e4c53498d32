"""Selects pods: the newest running one, for controller-managers preferably on a schedulable node."""

from collections.abc import Collection, Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

from hub.api.meta import document as doc
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
