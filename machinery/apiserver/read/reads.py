"""Get and list requests, with server-side tables (meta.k8s.io Table) and partial metadata."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

import msgspec
from aiohttp import web

from machinery.apiserver.access import Attributes
from machinery.apiserver.http.options import LATEST, ListOptions, list_options, revision, write_continue
from machinery.apiserver.http.responses import (
    JSON,
    Convert,
    ResponseForm,
    ResponseShape,
    encode,
    item_bytes,
    json_answer,
    list_answer,
    portions_answer,
    value_answer,
)
from machinery.apiserver.http.status_errors import PageExpiredError, errors_about, too_new_error
from machinery.apiserver.resource import AGE, Column, Resource, ServedVersion, Subresource, TableRow
from machinery.apiserver.storage import COUNT, Actor, Storage
from machinery.errors import BadRequestError, ExpiredError
from machinery.meta.objects import Document, Key, Page, Query, StoredObject
from machinery.runtime.clock import Clock

NAME_DESCRIPTION = (
    "Name must be unique within a namespace. Is required when creating resources, although some resources may allow a client "
    "to request the generation of an appropriate name automatically. Name is primarily intended for creation idempotence and "
    "configuration definition. Cannot be updated. More info: "
    "https://kubernetes.io/docs/concepts/overview/working-with-objects/names#names"
)


def partial(document: Document, version: str) -> dict[str, Any]:
    """Return the object as PartialObjectMetadata."""
    return {"kind": "PartialObjectMetadata", "apiVersion": f"meta.k8s.io/{version}", "metadata": document["metadata"]}


INCLUDED = ("", "Metadata", "Object", "None")


class TableWriter:
    """Writes tables of one resource. `include` is the request's includeObject: Metadata, Object or None."""

    def __init__(self, resource: Resource, clock: Clock, form: ResponseForm, include: str, convert: Convert | None) -> None:
        if include not in INCLUDED:
            raise BadRequestError(f'unrecognized includeObject value: "{include[:40]}"')
        self._convert = convert
        self._extras = resource.extras
        self._clock = clock
        self._form = form
        self._include = include or "Metadata"
        self._columns = (AGE,) if resource.columns is None else resource.columns
        self._adds_name = all(column.format != "name" for column in self._columns)
        """Whether to add the column Name. Not if a column has the format `name`, as for Events."""

    async def table(
        self, items: Sequence[StoredObject], metadata: Mapping[str, Any], *, defined: bool = True
    ) -> dict[str, Any]:
        """Return `items` as a Table with this metadata. `defined` False: no column definitions, as after the first event."""
        extras = await self._extras([item.key for item in items]) if self._extras is not None else {}
        now = self._clock.now()
        return {
            "kind": "Table",
            "apiVersion": f"meta.k8s.io/{self._form.version}",
            "metadata": metadata,
            "columnDefinitions": self._definitions() if defined else None,
            "rows": [self._row(item, extras.get(item.key, {}), now) for item in items],
        }

    def _definitions(self) -> list[dict[str, Any]]:
        name = Column("Name", _none, format="name", description=NAME_DESCRIPTION)
        return [_definition(column) for column in (*((name,) if self._adds_name else ()), *self._columns)]

    def _row(self, item: StoredObject, extras: Mapping[str, Any], now: datetime) -> dict[str, Any]:
        document = msgspec.json.decode(item.encoded)
        row = TableRow(document, now, extras)
        named = (item.key.name,) if self._adds_name else ()
        shown: Any = None
        if self._include == "Object":
            shown = msgspec.Raw(item_bytes(item, self._convert))
        elif self._include == "Metadata":
            shown = partial(document, self._form.version)
        return {"cells": [*named, *(column.cell(row) for column in self._columns)], "object": shown}


def _definition(column: Column) -> dict[str, Any]:
    return {name: getattr(column, name) for name in ("name", "type", "format", "description", "priority")}


def _none(_row: TableRow) -> None:
    """Return no cell, for a column that another function fills."""


GROUP_BY = "groupBy"


@dataclass(frozen=True, slots=True)
class ResourceCall:
    """A request for a resource, after routing and content negotiation."""

    request: web.Request
    attributes: Attributes
    actor: Actor
    resource: Resource
    storage: Storage
    clock: Clock
    form: ResponseForm
    version: ServedVersion | None
    """The requested version; None: the stored version, which needs no conversion."""
    fresh_timeout: timedelta
    """Time for which a read waits for a revision that is not visible yet."""
    part: Subresource | None = None

    @property
    def key(self) -> Key:
        return Key(self.attributes.namespace if self.resource.namespaced else "", self.attributes.name)

    @property
    def namespace(self) -> str:
        """Namespace of the collection; "" for all namespaces and for cluster-scoped resources."""
        return self.attributes.namespace if self.resource.namespaced else ""

    @property
    def api_version(self) -> str:
        return self.resource.api_version(self.version.name if self.version is not None else "")

    @property
    def convert(self) -> Convert | None:
        version, api_version = self.version, self.api_version
        if version is None:
            return None
        return lambda document: {**version.from_stored(document), "apiVersion": api_version}

    def tables(self) -> TableWriter:
        """Return the TableWriter for this request. Raises BadRequestError for an unknown includeObject."""
        columns = self.version.columns if self.version is not None else None
        resource = self.resource if columns is None else replace(self.resource, columns=columns)
        return TableWriter(resource, self.clock, self.form, self.request.query.get("includeObject", ""), self.convert)


async def fresh(call: ResourceCall, wanted: int | None) -> None:
    """Wait until the revision `wanted` is visible; None: do not wait. Raises DeadlineError after `call.fresh_timeout`."""
    if not wanted:
        return
    try:
        async with asyncio.timeout(call.fresh_timeout.total_seconds()):
            await call.storage.wait_for(wanted)
    except TimeoutError:
        raise too_new_error(wanted, await call.storage.revision()) from None


async def get(call: ResourceCall) -> web.Response:
    await fresh(call, revision(call.request.query.get("resourceVersion", "")))
    with errors_about(call.resource, call.key.name):
        stored = await call.storage.get(call.resource.key, call.key)
    return await object_answer(call, stored)


async def object_answer(call: ResourceCall, stored: StoredObject, status: int = 200) -> web.Response:
    if call.form.shape is ResponseShape.TABLE:
        table = await call.tables().table((stored,), {"resourceVersion": str(stored.revision)})
        return await value_answer(call.request, table, call.form, status)
    body = item_bytes(stored, call.convert)
    if call.form.shape is ResponseShape.OBJECT:
        return await json_answer(call.request, body, call.form, status)
    return await value_answer(call.request, partial(msgspec.json.decode(body), call.form.version), call.form, status)


async def list_(call: ResourceCall) -> web.StreamResponse:
    """Respond with a collection or a page of it, composed of stored bytes, or with counts for `groupBy`."""
    request, form, portion = call.request, call.form, call.storage.portion
    if GROUP_BY in request.query:
        return await value_answer(request, await counted(call), form)
    options = list_options(call.resource, call.namespace, request.query, call.clock.now())
    is_plain, page = form.shape is not ResponseShape.TABLE and form.media == JSON and request.method != "HEAD", None
    if portion is not None and is_plain and options.query.limit is None and options.query.order is None:
        first = await list_page(call, replace(options, query=replace(options.query, limit=portion)))
        if first.after is not None and not first.moves:
            envelope = _envelope(call, {"resourceVersion": str(first.revision)})
            return await portions_answer(request, envelope, _portions(call, options.query, first))
        page = first if first.after is None else None
    page = page or await list_page(call, options)
    metadata = _list_metadata(page, options, request.query.get("sortBy", "").strip())
    if form.shape is ResponseShape.TABLE:
        return await value_answer(request, await call.tables().table(page.items, metadata), form)
    return await list_answer(request, _envelope(call, metadata), _shaped(call, page.items), form)


async def _portions(call: ResourceCall, query: Query, first: Page) -> AsyncIterator[Sequence[bytes]]:
    """Yield the items of `first` and of all later pages of the same revision. Only one portion is in memory at a time."""
    page, query = first, replace(query, limit=call.storage.portion, at=first.revision)
    while True:
        after, shaped = page.after, _shaped(call, page.items)
        del page
        yield shaped
        if after is None:
            return
        page = await call.storage.list(call.resource.key, replace(query, after=after))


def _envelope(call: ResourceCall, metadata: dict[str, Any]) -> dict[str, Any]:
    if call.form.shape is ResponseShape.OBJECT:
        return {"kind": call.resource.list_kind, "apiVersion": call.api_version, "metadata": metadata}
    return {"kind": "PartialObjectMetadataList", "apiVersion": f"meta.k8s.io/{call.form.version}", "metadata": metadata}


def _shaped(call: ResourceCall, items: Sequence[StoredObject]) -> Sequence[bytes]:
    found = [item_bytes(item, call.convert) for item in items]
    if call.form.shape is ResponseShape.OBJECT:
        return found
    version = call.form.version
    return [encode(partial(msgspec.json.decode(item), version), ResponseForm(JSON)) for item in found]


async def counted(call: ResourceCall) -> dict[str, Any]:
    """Return a Table without objects that counts the selected objects by `groupBy`. Raises BadRequestError.

    Each group of objects with the same values has a row: the values (null: no value), the count and the totals of `sum`.
    """
    asked = {name: call.request.query[name].strip() for name in call.request.query}
    if call.resource.counts is None:
        raise BadRequestError(f"{call.resource.name} do not support groupBy")
    if asked.get("continue"):
        raise BadRequestError("groupBy has no pages: leave out continue")
    selected = {name: value for name, value in asked.items() if name != "sortBy"}
    query = list_options(call.resource, call.namespace, selected, call.clock.now()).query
    if asked.get("at"):
        query = replace(query, at=await call.storage.revision(), past=True)
    found = await call.resource.counts(asked, query)
    columns = [(name, "integer", "How many there are.") if name == COUNT else (name, "string", name) for name in found.columns]
    return {
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": {"resourceVersion": str(found.revision)},
        "columnDefinitions": [_definition(Column(name, _none, kind, description=text)) for name, kind, text in columns],
        "rows": [{"cells": cells, "object": None} for cells in found.rows[: query.limit]],
    }


async def list_page(call: ResourceCall, options: ListOptions) -> Page:
    """Return the requested page. Raises ExpiredError, DeadlineError."""
    await fresh(call, options.revision)
    try:
        return await call.storage.list(call.resource.key, options.query)
    except ExpiredError as error:
        if (after := options.query.after) is not None:
            sort_by = call.request.query.get("sortBy", "").strip()
            raise PageExpiredError(write_continue(after, LATEST, sort_by, options.place)) from error
        raise ExpiredError("The resourceVersion for the provided list is too old.") from error


def _list_metadata(page: Page, options: ListOptions, sort_by: str) -> dict[str, Any]:
    metadata: dict[str, Any] = {"resourceVersion": str(page.revision)}
    if page.after is not None:
        at = page.revision if not page.moves or options.query.at is not None else LATEST
        metadata["continue"] = write_continue(page.after, at, sort_by, page.place)
        chosen = options.query
        if page.remaining is not None and not chosen.labels and not chosen.fields and not chosen.where:
            metadata["remainingItemCount"] = page.remaining
    return metadata
