"""Long lists, read page by page."""

from collections.abc import Iterator, Mapping
from typing import Any

from hubctl.client.http import JSON, ApiClient

PAGE = 500
PAGING = ("continue", "remainingItemCount")
"""Fields in the metadata of a list that concern the remaining pages."""


def pages(
    client: ApiClient, path: str, query: Mapping[str, str], *, accept: str = JSON, limit: int | None = None
) -> Iterator[dict[str, Any]]:
    """Yield the pages, with at most `limit` objects in total. Raises CommandError."""
    left, place = limit, ""
    while True:
        size = PAGE if left is None else min(PAGE, left)
        answer = client.get(path, accept=accept, **query, **{"limit": str(size), "continue": place})
        yield answer
        place = str((answer.get("metadata") or {}).get("continue") or "")
        if left is not None:
            left -= len(answer.get("items") or answer.get("rows") or ())
        if not place or left == 0:
            return


def items(client: ApiClient, path: str, query: Mapping[str, str], *, accept: str = JSON) -> Iterator[dict[str, Any]]:
    """Yield the objects of a long list. Raises CommandError."""
    for page in pages(client, path, query, accept=accept):
        yield from page.get("items") or ()


def join_pages(answers: Iterator[dict[str, Any]]) -> dict[str, Any]:
    """Return all pages as one answer, with the revision of the first page. Raises CommandError."""
    found = next(answers)
    for answer in answers:
        for part in ("items", "rows"):
            if answer.get(part):
                found[part] = [*(found.get(part) or ()), *answer[part]]
    metadata = {name: value for name, value in (found.get("metadata") or {}).items() if name not in PAGING}
    return {**found, "metadata": metadata} if "metadata" in found else found
