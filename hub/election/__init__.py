"""Leader election of the hub's replicas, and the fence against writes of a replica that no longer leads."""

from hub.election.fence import FencedStore
from hub.election.row_lock import RowLock
from hub.election.single_lock import SoleLock

__all__ = ["FencedStore", "RowLock", "SoleLock"]
