"""Use cases about Leases: the one write path of the kind."""

from typing import Any

from hub.domain.change import StoredObject
from hub.ports import Transaction, Written


def put(tx: Transaction, new: dict[str, Any], old: StoredObject | None, actor: str) -> Written:
    """Creates (`old` None) or updates. Raises InvalidError, AlreadyExistsError, ConflictError."""
    raise NotImplementedError


def remove(tx: Transaction, old: StoredObject, actor: str) -> Written:
    raise NotImplementedError
