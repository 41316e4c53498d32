"""Query parameters of list, watch and writes, validated as by kube-apiserver."""

import base64
import json
import re
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from machinery.apiserver.access import is_true
from machinery.apiserver.http.status_errors import invalid_options_error
from machinery.apiserver.resource import Resource
from machinery.errors import BadRequestError, forbidden, invalid_value, not_supported, required, too_long
from machinery.meta.objects import Key, Query, SortPosition
from machinery.meta.selectors import Operator, Requirement, parse_field_selector, parse_label_selector

Parameters = Mapping[str, str]
METADATA_FIELDS = ("metadata.name", "metadata.namespace")
LATEST = -1
"""Revision in a continue token that continues an expired list at the current state, which makes the list inconsistent."""
EXACT, NOT_OLDER = "Exact", "NotOlderThan"
LONGEST_MANAGER = 128
"""Longest name of a field manager in bytes."""
MAX_NUMBER = 2**31 - 2
"""A page also reads one object more than its limit, and PostgreSQL's integers have 32 bits."""
NO_TOKEN = "invalid continue token: continue key is not valid"  # noqa: S105 - no secret
MAX_DIGITS = 19
"""Revisions with fewer digits fit into 64 bits."""
_DURATION = re.compile(r"([0-9]+\.?[0-9]*|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h)")
_LONGEST = 2**63 / 1e9
"""Longest duration of Go in seconds."""
_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}


@dataclass(frozen=True, slots=True)
class ListOptions:
    """Options of a list. `query.at` comes from a continue token, or from resourceVersion.

    resourceVersion sets `query.at` with resourceVersionMatch=Exact, and with a limit without resourceVersionMatch.
    `revision`: wait until this revision is visible; None: no wait. `place`: sort position of the previous page's last object.
    """

    query: Query
    revision: int | None = None
    place: SortPosition = ()


@dataclass(frozen=True, slots=True)
class WatchOptions:
    """Options of a watch. `initial`: send existing objects first. `mark_initial`: then a bookmark. `revision` None: newest."""

    query: Query
    revision: int | None
    initial: bool
    mark_initial: bool
    bookmarks: bool
    timeout: timedelta | None


def duration(text: str) -> timedelta:
    """Parse a duration in Go's notation: `1m30s`, `500ms`, `-1.5h`, `0`. Raises BadRequestError."""
    unsigned = text[1:] if text.startswith(("-", "+")) else text
    if unsigned == "0":
        return timedelta()
    seconds = _LONGEST
    if len(text) <= MAX_DIGITS and re.fullmatch(f"(?:{_DURATION.pattern})+", unsigned):
        seconds = sum(float(number) * _SECONDS[unit] for number, unit in _DURATION.findall(unsigned))
    if seconds >= _LONGEST:
        raise BadRequestError(f'invalid timeout specified in the request URL - time: invalid duration "{text[:80]}"')
    return timedelta(seconds=-seconds if text.startswith("-") else seconds)


def request_timeout(query: Parameters, most: timedelta) -> timedelta:
    """Return the time limit of a request: its parameter `timeout`, at most `most`. Zero and negative values mean `most`."""
    asked = duration(query["timeout"]) if query.get("timeout") else timedelta()
    return asked if timedelta() < asked < most else most


def _number(text: str) -> int:
    try:
        return min(int(text), MAX_NUMBER)
    except ValueError:
        raise BadRequestError(f'strconv.ParseInt: parsing "{text[:80]}": invalid syntax') from None


def revision(text: str) -> int | None:
    """Parse a parameter resourceVersion; None: absent. Raises BadRequestError."""
    if not text:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) < MAX_DIGITS):
        shown = text[:80]
        raise BadRequestError(
            f'invalid resource version: resourceVersion: Invalid value: "{shown}": strconv.ParseUint: parsing "{shown}": '
            "invalid syntax"
        )
    return int(text)


def selection(resource: Resource, namespace: str, query: Parameters, name: str = "") -> Query:
    """Return the query for a URL's selectors in a namespace ("": all), or for the object `name`. Raises BadRequestError."""
    labels, fields = list(parse_label_selector(query.get("labelSelector", "")).requirements), []
    for term in parse_field_selector(query.get("fieldSelector", "")):
        field = term.name if term.name in METADATA_FIELDS else resource.selectable_name(term.name)
        if label := resource.selectable_label(term.name):
            of_label = replace(term, name=label)
            if term.values == ("",):  # an empty value of a field means that the label is absent
                operator = Operator.NOT_EXISTS if term.operator is Operator.EQUALS else Operator.EXISTS
                of_label = Requirement(label, operator, ())
            labels.append(of_label)
        elif field is None:
            raise BadRequestError(f"field label not supported: {term.name}")
        else:
            fields.append(replace(term, name=field))
    if name:
        fields.append(Requirement("metadata.name", Operator.EQUALS, (name,)))
    return Query(namespace or None, tuple(labels), tuple(fields))


def _asked(resource: Resource, query: Parameters, now: datetime, *, watched: bool = False) -> Hashable | None:
    text = query.get("where", "").strip()
    if text and resource.where is None:
        raise BadRequestError(f"{resource.name} do not support where: use labelSelector or fieldSelector")
    return resource.where(text, now, watched) if text and resource.where is not None else None


def _ordered(resource: Resource, query: Parameters, place: SortPosition | None = None) -> Hashable | None:
    text = query.get("sortBy", "").strip()
    if text and resource.order is None:
        raise BadRequestError(f"{resource.name} do not support sortBy: sort the list yourself")
    return resource.order(text, place) if text and resource.order is not None else None


def _check_match(query: Parameters, *, watched: bool = False) -> None:
    match, initial = query.get("resourceVersionMatch", ""), query.get("sendInitialEvents", "")
    field, known = "resourceVersionMatch", query.get("resourceVersion")
    if match and match not in (EXACT, NOT_OLDER):
        raise invalid_options_error("ListOptions", not_supported(field, match, (EXACT, NOT_OLDER)))
    broken: Mapping[str, object]
    if watched:
        broken = {
            "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan": initial and match != NOT_OLDER,
            "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided": match and not initial,
        }
    else:
        broken = {
            "resourceVersionMatch is forbidden when continue is provided": match and query.get("continue"),
            "resourceVersionMatch is forbidden unless resourceVersion is provided": match and not known,
            'resourceVersionMatch "exact" is forbidden for resourceVersion "0"': match == EXACT and known == "0",
        }
    for why, is_broken in broken.items():
        if is_broken:
            raise invalid_options_error("ListOptions", forbidden(field, why))


def list_options(resource: Resource, namespace: str, query: Parameters, now: datetime) -> ListOptions:
    """Parse the options of a list. Raises BadRequestError and InvalidError."""
    chosen = replace(selection(resource, namespace, query), where=_asked(resource, query, now), order=_ordered(resource, query))
    limit = _number(query["limit"]) if query.get("limit") else 0
    limited = limit if limit > 0 else None
    if is_true(query.get("sendInitialEvents", "")):
        raise invalid_options_error("ListOptions", forbidden("sendInitialEvents", "sendInitialEvents is forbidden for list"))
    _check_match(query)
    known = revision(query.get("resourceVersion", ""))
    chosen = replace(chosen, limit=limited)
    if token := query.get("continue"):
        if known:
            raise BadRequestError("specifying resource version is not allowed when using continue")
        started = read_continue(token, query.get("sortBy", "").strip())
        if namespace and started.after.namespace != namespace:
            raise BadRequestError(NO_TOKEN)
        order = None if chosen.order is None else _ordered(resource, query, started.place)
        return ListOptions(replace(chosen, after=started.after, at=started.at, order=order), place=started.place)
    match = query.get("resourceVersionMatch")
    exact = match == EXACT or (not match and limited is not None)  # all pages of a list have one revision
    return ListOptions(replace(chosen, at=known if exact and known else None), revision=known)


def watch_options(resource: Resource, namespace: str, name: str, query: Parameters, now: datetime) -> WatchOptions:
    """Parse the options of a watch. Raises BadRequestError and InvalidError."""
    if query.get("sortBy"):
        raise BadRequestError("sortBy is for lists: a watch returns changes in the order of their revisions")
    chosen = replace(selection(resource, namespace, query, name), where=_asked(resource, query, now, watched=True))
    asked = query.get("sendInitialEvents", "")
    _check_match(query, watched=True)
    known = revision(query.get("resourceVersion", ""))
    seconds = _number(query["timeoutSeconds"]) if query.get("timeoutSeconds") else 0
    mark = is_true(asked)
    return WatchOptions(
        query=chosen,
        revision=known,
        initial=mark if asked else not known,
        mark_initial=mark,
        bookmarks=is_true(query.get("allowWatchBookmarks", "")),
        timeout=timedelta(seconds=seconds) if seconds > 0 else None,
    )


@dataclass(frozen=True, slots=True)
class Started:
    """The start of a page: after key `after`; in a sorted list also after `place`. `at`: the list's revision; None: newest."""

    after: Key
    at: int | None
    place: SortPosition = ()


def write_continue(after: Key, at: int, sort_by: str = "", place: SortPosition = ()) -> str:
    """Return the continue token for the page after key `after` at revision `at`. With `sort_by`, the token also has `place`."""
    content: dict[str, Any] = {"v": "meta.k8s.io/v1", "rv": at, "start": f"{after.namespace}/{after.name}"}
    if sort_by:
        content |= {"sortBy": sort_by, "place": place}
    return base64.urlsafe_b64encode(json.dumps(content, separators=(",", ":")).encode()).rstrip(b"=").decode()


def read_continue(token: str, sort_by: str = "") -> Started:
    """Decode a result of `write_continue` for the same `sort_by`. Raises BadRequestError."""
    try:
        content = json.loads(base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)))
        namespace, _, name = content["start"].rpartition("/")
        place = tuple(content.get("place", ()))
        at = None if content["rv"] == LATEST else revision(str(content["rv"])) or 0
        is_sound = content.get("sortBy", "") == sort_by and all(value is None or type(value) in (str, int) for value in place)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, BadRequestError):
        is_sound = False
    if not is_sound:
        raise BadRequestError(NO_TOKEN) from None
    return Started(Key(namespace, name), at, place)


@dataclass(frozen=True, slots=True)
class WriteOptions:
    dry_run: bool
    validation: str
    manager: str = ""
    """Field manager; "" if the request does not name one."""
    force: bool | None = None
    """For an apply: whether it overrides conflicts; None: not given."""


def write_options(kind: str, query: Mapping[str, str], dry_runs: list[str]) -> WriteOptions:
    """Parse the options of a write. `kind`: CreateOptions, UpdateOptions or PatchOptions; `dry_runs`: all values of dryRun.

    Raises InvalidError.
    """
    dry_run = [value for value in dry_runs if value]
    if dry_run and dry_run != ["All"]:
        raise invalid_options_error(kind, not_supported("dryRun", dry_run, ("All",)))
    validation = query.get("fieldValidation", "") or "Warn"
    if validation not in ("Ignore", "Warn", "Strict"):
        raise invalid_options_error(kind, not_supported("fieldValidation", validation, ("", "Ignore", "Strict", "Warn")))
    manager = query.get("fieldManager", "")
    if len(manager.encode()) > LONGEST_MANAGER:
        raise invalid_options_error(kind, too_long("fieldManager", LONGEST_MANAGER))
    at = next((index for index, letter in enumerate(manager) if not letter.isprintable()), None)
    if at is not None:
        why = f"should only contain printable characters (at position {at})"
        raise invalid_options_error(kind, invalid_value("fieldManager", manager, why))
    force = query.get("force", "")
    return WriteOptions(bool(dry_run), validation, manager, is_true(force) if force else None)


def check_patch_options(options: WriteOptions, *, applies: bool) -> None:
    """Check that an apply patch has a field manager, and that no other patch is forced. Raises InvalidError."""
    if applies and not options.manager:
        raise invalid_options_error("PatchOptions", required("fieldManager", "is required for apply patch"))
    if not applies and options.force is not None:
        raise invalid_options_error("PatchOptions", forbidden("force", "may not be specified for non-apply patch"))


def agent_manager(user_agent: str) -> str:
    """Return the default field manager of a request: its User-Agent up to the first `/`."""
    letters = "".join(letter for letter in user_agent.partition("/")[0] if letter.isprintable())
    return letters.encode()[:LONGEST_MANAGER].decode(errors="ignore")


_OPTION_TYPES: Mapping[str, type] = {
    "dryRun": list,
    "gracePeriodSeconds": int,
    "orphanDependents": bool,
    "preconditions": dict,
    "propagationPolicy": str,
}


def delete_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the DeleteOptions without nulls and unknown fields. Raises BadRequestError for a wrong type."""
    options = {name: given[name] for name in _OPTION_TYPES if given.get(name) is not None}
    wrong = [name for name, value in options.items() if type(value) is not _OPTION_TYPES[name]]
    if not wrong:
        preconditions = options.get("preconditions", {})
        texts = [*options.get("dryRun", ()), *(preconditions.get(name) or "" for name in ("uid", "resourceVersion"))]
        wrong = [] if all(isinstance(text, str) for text in texts) else ["dryRun or preconditions"]
    if wrong:
        named = ", ".join(wrong)
        raise BadRequestError(f'DeleteOptions in version "v1" cannot be handled as a DeleteOptions: wrong type of {named}')
    return options
