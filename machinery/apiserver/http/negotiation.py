"""Content negotiation: media type, and objects, their metadata only, or a table."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from machinery.errors import NotAcceptableError

JSON, YAML, PROTOBUF = "application/json", "application/yaml", "application/vnd.kubernetes.protobuf"
ACCEPTED = f"{JSON}, {YAML}, {PROTOBUF}"


class ResponseShape(StrEnum):
    OBJECT = ""
    TABLE = "Table"
    PARTIAL = "PartialObjectMetadata"
    PARTIAL_LIST = "PartialObjectMetadataList"


@dataclass(frozen=True, slots=True)
class ResponseForm:
    """Form of the response. `version` is that of the table or partial metadata."""

    media: str = JSON
    shape: ResponseShape = ResponseShape.OBJECT
    version: str = "v1"
    pretty: bool = False


@dataclass(frozen=True, slots=True)
class Clause:
    """One entry of an Accept header."""

    media: str
    parameters: Mapping[str, str] = field(default_factory=dict)
    quality: float = 1.0


def clauses(accept: str) -> Iterator[Clause]:
    """Entries of the header by descending quality; an empty header accepts everything."""
    found = _entries(accept) or [Clause("*/*")]
    yield from sorted((clause for clause in found if clause.quality > 0), key=lambda clause: -clause.quality)


def _entries(header: str) -> list[Clause]:
    return [_clause(part) for part in header.split(",") if part.strip()]


def _clause(text: str) -> Clause:
    media, *pairs = (part.strip() for part in text.split(";"))
    parameters = {name.strip(): value.strip() for name, _, value in (pair.partition("=") for pair in pairs)}
    try:
        quality = float(parameters.pop("q", "1"))
    except ValueError:
        quality = 1.0
    return Clause(media.lower(), parameters, quality)


def _served(media: str) -> str | None:
    match media:
        case "*/*" | "application/*" | "application/json":
            return JSON
        case "application/yaml" | "application/x-yaml" | "text/yaml":
            return YAML
    return None


def negotiate(accept: str, *, pretty: bool = False, shapes: bool = True) -> ResponseForm:
    """The first form of the header that can be served. Raises NotAcceptableError.

    `shapes`: whether tables and partial metadata are available; otherwise clauses that request them are skipped.
    """
    for clause in clauses(accept):
        media = _served(clause.media)
        if media is None:
            continue
        wanted = clause.parameters.get("as", "")
        if not wanted:
            return ResponseForm(media, pretty=pretty)
        version = clause.parameters.get("v", "")
        known = wanted in set(ResponseShape) and clause.parameters.get("g") == "meta.k8s.io" and version in ("v1", "v1beta1")
        if shapes and known:
            return ResponseForm(media, ResponseShape(wanted), version, pretty)
    raise NotAcceptableError(f"only the following media types are accepted: {ACCEPTED}")


_FOR_PEOPLE = ("curl", "Wget", "Mozilla/5.0")
_FALSE = ("0", "f", "F", "false", "False", "FALSE")


def is_pretty(asked: str | None, user_agent: str) -> bool:
    """Whether to indent: by `?pretty=`, and without it for browsers, curl and wget."""
    if asked:
        return asked not in _FALSE
    return asked == "" or user_agent.startswith(_FOR_PEOPLE)


def takes_gzip(accept_encoding: str) -> bool:
    """Whether a client accepts gzip, by name or by `*`, with a quality above 0."""
    wanted = {part.media: part.quality for part in _entries(accept_encoding)}
    return wanted.get("gzip", wanted.get("*", 0)) > 0


def etag_matches(if_none_match: str, etag: str) -> bool:
    """Whether If-None-Match contains `etag`, weak or strong, or `*`."""
    known = [entry.strip().removeprefix("W/") for entry in if_none_match.split(",")]
    return etag in known or "*" in known
