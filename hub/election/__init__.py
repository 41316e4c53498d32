"""Which replica of the hub leads, and what keeps a replica that no longer leads from writing as if it did."""

from hub.election.fence import FencedStore
from hub.election.row_lock import RowLock
from hub.election.single_lock import SoleLock

__all__ = ["FencedStore", "RowLock", "SoleLock"]
