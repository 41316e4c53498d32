"""Secret: base64 data, `stringData` merged into it, an immutable type."""

import base64

from machinery.apiserver.http.status_errors import invalid_value, too_long
from machinery.apiserver.kinds.core import BYTES, LARGEST, TEXT, TEXTS, encoded_size, immutable_violations, key_violations
from machinery.apiserver.read.tables import AGE
from machinery.apiserver.resource import Column, Resource
from machinery.apiserver.storage import Document
from machinery.errors import Cause

OPAQUE = "Opaque"


def _folded(new: Document) -> Document:
    """The object with `stringData` merged into `data`."""
    kept = {name: part for name, part in new.items() if name != "stringData"}
    texts = new.get("stringData") or {}
    if not texts:
        return kept
    data = {key: base64.b64encode(str(text).encode()).decode() for key, text in texts.items()}
    return {**kept, "data": {**(new.get("data") or {}), **data}}


def _complete(new: Document) -> Document:
    folded = _folded(new)
    return {**folded, "type": folded.get("type") or OPAQUE}


def _violations(new: Document, old: Document | None) -> list[Cause]:
    causes = [*key_violations(new, "data"), *immutable_violations(new, old)]
    if encoded_size(new.get("data", {})) > LARGEST:
        causes.append(too_long("data", LARGEST))
    if old is not None and new.get("type") != old.get("type"):
        causes.append(invalid_value("type", new.get("type"), "field is immutable"))
    return causes


SECRET = Resource(
    group="",
    version="v1",
    name="secrets",
    kind="Secret",
    namespaced=True,
    custom=False,
    unconditional_update=True,
    schema={
        "description": "Secret holds secret data of a certain type.",
        "type": "object",
        "properties": {"data": BYTES, "stringData": TEXTS, "type": TEXT, "immutable": {"type": "boolean"}},
    },
    complete=_complete,
    validate=_violations,
    selectable=lambda document: {"type": document.get("type", "")},
    selectable_names=("type",),
    columns=(
        Column("Type", lambda row: row.document.get("type", "")),
        Column("Data", lambda row: len(row.document.get("data", {})), type="integer"),
        AGE,
    ),
)
