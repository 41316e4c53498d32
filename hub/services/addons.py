"""Use cases about ManagedClusterAddOns: the one write path of the kind."""

from collections.abc import Sequence
from typing import Any

from hub.domain.change import StoredObject
from hub.ports import Transaction, Written
from machinery.conditions import Condition
from machinery.identity import AddOnName, ClusterName


def put(tx: Transaction, new: dict[str, Any], old: StoredObject | None, actor: str) -> Written:
    """Creates (`old` None) or updates. Raises InvalidError, AlreadyExistsError, ConflictError."""
    raise NotImplementedError


def remove(tx: Transaction, old: StoredObject, actor: str) -> Written:
    raise NotImplementedError


def report(
    tx: Transaction, cluster: ClusterName, addon: AddOnName, conditions: Sequence[Condition], actor: str
) -> Written | StoredObject:
    """Sets the conditions that the agent tells; equal content writes nothing. Raises NotFoundError."""
    raise NotImplementedError
