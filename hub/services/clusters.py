"""Use cases about ManagedClusters: the one write path of the kind."""

from typing import Any

from hub.domain.change import StoredObject
from hub.domain.cluster import Joined, Joining, StatusReport
from hub.ports import Transaction, Written
from machinery.conditions import Condition
from machinery.identity import ClusterName


def put(tx: Transaction, new: dict[str, Any], old: StoredObject | None, actor: str) -> Written:
    """Creates (`old` None) or updates; owns defaults and admission. Raises InvalidError, AlreadyExistsError, ConflictError."""
    raise NotImplementedError


def remove(tx: Transaction, old: StoredObject, actor: str) -> Written:
    """Deletes, or marks as deleting while finalizers remain."""
    raise NotImplementedError


def ensure(tx: Transaction, joining: Joining, actor: str) -> Joined:
    """Creates or finds the ManagedCluster of a join.

    A bootstrap credential is checked and admits the name at most once. AlreadyExistsError: the name belongs to a cluster with
    another uid; commit `note_duplicate` in a transaction of its own, so that operators see it.
    """
    raise NotImplementedError


def note_duplicate(tx: Transaction, joining: Joining, actor: str) -> None:
    """Sets the condition ManagedClusterDuplicated: another cluster wanted this name."""
    raise NotImplementedError


def set_accepted(tx: Transaction, name: ClusterName, accepted: bool, actor: str) -> Written | StoredObject:  # noqa: FBT001 - the field's value
    """Sets `spec.hubAcceptsClient`. Raises NotFoundError."""
    raise NotImplementedError


def auto_accept(tx: Transaction, name: ClusterName, globs: tuple[str, ...], actor: str) -> Written | None:
    """Accepts a cluster whose name matches, once: a later denial by hand stands."""
    raise NotImplementedError


def report_status(tx: Transaction, name: ClusterName, report: StatusReport, actor: str) -> Written | StoredObject:
    """Replaces what the agent owns in the status; equal content writes nothing. ForbiddenError: the hub denies the cluster."""
    raise NotImplementedError


def set_condition(tx: Transaction, name: ClusterName, condition: Condition, actor: str) -> Written | StoredObject:
    """Sets one condition that the hub owns. Raises NotFoundError."""
    raise NotImplementedError
