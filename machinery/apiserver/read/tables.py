"""Server-side tables (meta.k8s.io Table) and partial metadata from stored documents."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec

from machinery.apiserver.http.negotiation import ResponseForm
from machinery.apiserver.http.responses import Convert, item_bytes
from machinery.apiserver.resource import AGE, Column, Groups, Resource, TableRow
from machinery.errors import BadRequestError
from machinery.meta.objects import Document, StoredObject
from machinery.runtime.clock import Clock

NAME_DESCRIPTION = (
    "Name must be unique within a namespace. Is required when creating resources, although some resources may allow a client "
    "to request the generation of an appropriate name automatically. Name is primarily intended for creation idempotence and "
    "configuration definition. Cannot be updated. More info: "
    "https://kubernetes.io/docs/concepts/overview/working-with-objects/names#names"
)


def partial(document: Document, version: str) -> dict[str, Any]:
    """The object as PartialObjectMetadata."""
    kind, api_version = "PartialObjectMetadata", f"meta.k8s.io/{version}"
    return {"kind": kind, "apiVersion": api_version, "metadata": document["metadata"]}


INCLUDED = ("", "Metadata", "Object", "None")


class TableWriter:
    """Tables of one resource. `include` is the request's includeObject: Metadata, Object or None."""

    def __init__(
        self, resource: Resource, clock: Clock, form: ResponseForm, include: str = "", convert: Convert | None = None
    ) -> None:
        if include not in INCLUDED:
            raise BadRequestError(f'unrecognized includeObject value: "{include[:40]}"')
        self._convert = convert
        self._resource = resource
        self._clock = clock
        self._form = form
        self._include = include or "Metadata"

    @property
    def _columns(self) -> tuple[Column, ...]:
        return (AGE,) if self._resource.columns is None else self._resource.columns

    @property
    def _named_by_itself(self) -> bool:
        """Whether a column has the format `name`, as for Events, so that no Name column is added."""
        return any(column.format == "name" for column in self._columns)

    async def table(
        self, items: Sequence[StoredObject], metadata: Mapping[str, Any], *, defined: bool = True
    ) -> dict[str, Any]:
        """The table. `defined` False omits the column definitions, as after the first event of a watch."""
        extras = await self._resource.extras([item.key for item in items]) if self._resource.extras is not None else {}
        now = self._clock.now()
        return {
            "kind": "Table",
            "apiVersion": f"meta.k8s.io/{self._form.version}",
            "metadata": metadata,
            "columnDefinitions": self._definitions() if defined else None,
            "rows": [self._row(item, extras.get(item.key, {}), now) for item in items],
        }

    def _definitions(self) -> list[dict[str, Any]]:
        name = Column("Name", lambda _row: None, format="name", description=NAME_DESCRIPTION)
        return [
            {
                "name": column.name,
                "type": column.type,
                "format": column.format,
                "description": column.description,
                "priority": column.priority,
            }
            for column in (*(() if self._named_by_itself else (name,)), *self._columns)
        ]

    def _row(self, item: StoredObject, extras: Mapping[str, Any], now: datetime) -> dict[str, Any]:
        document = msgspec.json.decode(item.encoded)
        row = TableRow(document, now, extras)
        named = () if self._named_by_itself else (item.key.name,)
        cells = [*named, *(column.cell(row) for column in self._columns)]
        shown: dict[str, Any] = {"cells": cells}
        if self._include == "Object":
            shown["object"] = msgspec.Raw(item_bytes(item, self._convert))
        elif self._include == "Metadata":
            shown["object"] = partial(document, self._form.version)
        else:
            shown["object"] = None
        return shown


GROUP_BY = "groupBy"


def counts_table(words: Sequence[str], groups: Groups, revision: int) -> dict[str, Any]:
    """One row per group: its values (null: no value), then the count. The rows have no objects."""
    columns = [{"name": word, "type": "string", "format": "", "description": word, "priority": 0} for word in words]
    count = {"name": "Count", "type": "integer", "format": "", "description": "How many there are.", "priority": 0}
    return {
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": {"resourceVersion": str(revision)},
        "columnDefinitions": [*columns, count],
        "rows": [{"cells": [*values, number], "object": None} for values, number in groups],
    }
