"""Encodes stored documents as compact JSON that includes the revision."""

from collections.abc import Mapping
from typing import Any

import msgspec

from machinery.meta.objects import Document

_encoder = msgspec.json.Encoder()


def encode(document: Document, revision: int | None) -> bytes:
    """Encode the document as served at `revision`; None before the commit."""
    metadata = {**document["metadata"]}
    metadata.pop("resourceVersion", None)
    if revision is not None:
        metadata["resourceVersion"] = str(revision)
    return _encoder.encode({**document, "metadata": metadata})


def encode_values(values: Mapping[str, str]) -> str:
    return _encoder.encode(values).decode() if values else ""


def decode_values(text: str) -> dict[str, str]:
    return msgspec.json.decode(text, type=dict[str, str]) if text else {}


def encode_names(names: tuple[str, ...]) -> str:
    return _encoder.encode(names).decode()


def decode_names(text: str) -> tuple[str, ...]:
    return msgspec.json.decode(text, type=tuple[str, ...])


def decode(encoded: bytes) -> dict[str, Any]:
    decoded: dict[str, Any] = msgspec.json.decode(encoded)
    return decoded
