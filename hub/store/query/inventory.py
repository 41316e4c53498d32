"""The narrow row of each ManagedCluster: the values of most queries, so that a query over all clusters takes milliseconds.

Triggers derive it from `objects`, `fields` and `labels`, whichever release writes those. Except for `reindex`, no code writes
it, and backups leave it out.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Column, Table, Text

from hub.api.managedclustersets import LABEL as SET_LABEL
from hub.api.meta.field_sources import FieldSource
from hub.api.query.selectable_fields import AGENT_VERSION, CAPACITY, CLUSTER_ALIASES, HUB_ACCEPTS, VERSION
from hub.store.schema import Counter, KeyText, metadata

inventory = Table(
    "inventory",
    metadata,
    Column("uid", Text, primary_key=True),
    Column("namespace", KeyText, nullable=False),
    Column("name", KeyText, nullable=False),
    Column("created_at", Counter, nullable=False),
    Column("cluster_set", KeyText),
    Column("version", KeyText),
    Column("version_order", KeyText),
    Column("agent_version", KeyText),
    Column("agent_order", KeyText),
    Column("accepted", KeyText),
    Column("joined", KeyText),
    Column("available", KeyText),
    Column("clock_synced", KeyText),
    Column("cpu", KeyText),
    Column("memory", KeyText),
    Column("nodes", KeyText),
    sqlite_with_rowid=False,
)


@dataclass(frozen=True, slots=True)
class InventoryColumns:
    """Columns of a value: its text, and its comparison key. None: not in the inventory."""

    text: Column[Any] | None = None
    order: Column[Any] | None = None


_column = inventory.c
KEPT: Mapping[tuple[FieldSource, str], InventoryColumns] = {
    (FieldSource.LABELS, SET_LABEL): InventoryColumns(_column.cluster_set),
    (FieldSource.FIELDS, VERSION): InventoryColumns(_column.version, _column.version_order),
    (FieldSource.FIELDS, AGENT_VERSION): InventoryColumns(_column.agent_version, _column.agent_order),
    (FieldSource.FIELDS, HUB_ACCEPTS): InventoryColumns(_column.accepted),
    (FieldSource.FIELDS, CLUSTER_ALIASES["status.joined"]): InventoryColumns(_column.joined),
    (FieldSource.FIELDS, CLUSTER_ALIASES["status.available"]): InventoryColumns(_column.available),
    (FieldSource.FIELDS, CLUSTER_ALIASES["status.clockSynced"]): InventoryColumns(_column.clock_synced),
    (FieldSource.FIELDS, f"{CAPACITY}cpu"): InventoryColumns(order=_column.cpu),
    (FieldSource.FIELDS, f"{CAPACITY}memory"): InventoryColumns(order=_column.memory),
    (FieldSource.FIELDS, f"{CAPACITY}nodes"): InventoryColumns(order=_column.nodes),
}
"""The values that the migration's triggers copy."""
