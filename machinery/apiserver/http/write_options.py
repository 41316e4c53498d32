"""Options of writes, from query parameters or DeleteOptions, validated as by kube-apiserver."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from machinery.apiserver.http.paths import is_true
from machinery.apiserver.http.status_errors import forbidden, invalid_options, invalid_value, not_supported, required, too_long
from machinery.errors import BadRequestError

LONGEST_MANAGER = 128
"""Longest name of a field manager in bytes."""


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """Options of a write."""

    dry_run: bool
    validation: str
    manager: str = ""
    """Field manager; "" if the request does not name one."""
    force: bool | None = None
    """For an apply: whether conflicts are overridden; None if not given."""


def write_options(kind: str, query: Mapping[str, str], dry_runs: list[str]) -> WriteOptions:
    """Parse the options of a write; `kind` is CreateOptions, UpdateOptions or PatchOptions. Raises InvalidError."""
    dry_run = [value for value in dry_runs if value]
    if dry_run and dry_run != ["All"]:
        raise invalid_options(kind, not_supported("dryRun", dry_run, ("All",)))
    validation = query.get("fieldValidation", "") or "Warn"
    if validation not in ("Ignore", "Warn", "Strict"):
        raise invalid_options(kind, not_supported("fieldValidation", validation, ("", "Ignore", "Strict", "Warn")))
    manager = query.get("fieldManager", "")
    if len(manager.encode()) > LONGEST_MANAGER:
        raise invalid_options(kind, too_long("fieldManager", LONGEST_MANAGER))
    at = next((index for index, letter in enumerate(manager) if not letter.isprintable()), None)
    if at is not None:
        why = f"should only contain printable characters (at position {at})"
        raise invalid_options(kind, invalid_value("fieldManager", manager, why))
    return WriteOptions(bool(dry_run), validation, manager, _force(query))


def _force(query: Mapping[str, str]) -> bool | None:
    text = query.get("force", "")
    return is_true(text) if text else None


def check_patch_options(options: WriteOptions, *, applies: bool) -> None:
    """An apply patch needs a field manager; only an apply patch may be forced. Raises InvalidError."""
    if applies and not options.manager:
        raise invalid_options("PatchOptions", required("fieldManager", "is required for apply patch"))
    if not applies and options.force is not None:
        raise invalid_options("PatchOptions", forbidden("force", "may not be specified for non-apply patch"))


def agent_manager(user_agent: str) -> str:
    """Default field manager: the User-Agent up to the first `/`."""
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
    """DeleteOptions without nulls and unknown fields. Raises BadRequestError for a wrong type."""
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
