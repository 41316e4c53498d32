"""Completes kinds, names of objects and fields of clusters. After an error, the completion offers and prints nothing."""

import re
from collections.abc import Callable, Iterable
from functools import partial

import click
from click.shell_completion import CompletionItem

from hubctl.auth.kubeconfig import complete_words

Completion = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]

COMPLETION_TIMEOUT = 2.0
"""Seconds to wait for the hub. The time is short, because the user waits for the shell."""
MAX_NAMES = 1000
QUERY_FIELDS = (
    *("accepted", "addons", "age", "agentVersion", "allocatable", "available", "capacity", "certificateExpiresIn", "claims"),
    *("clockSynced", "conditions", "connected", "cpu", "driver", "flaps", "joined", "labels", "lastBeat", "memory", "name"),
    *("nodes", "reason", "replica", "set", "taints", "version", "version.minor"),
)
"""Names of cluster fields for the conditions of --where, and for --sort-by, --group-by and --sum."""
_QUOTED = re.compile(r""""[^"]*"|'[^']*'""")


def query_fields(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete the field name at the end of a --where condition or of a list of fields. Within quotes, complete nothing."""
    begun = re.split(r"[^\w.]", incomplete)[-1]
    before = incomplete.removesuffix(begun)
    if re.search("[\"']", _QUOTED.sub("", before)):
        return []
    return [CompletionItem(before + field) for field in QUERY_FIELDS if field.startswith(begun)]


fields_option = partial(click.option, default="", metavar="WORD,...", shell_complete=query_fields)
where_option = partial(click.option, "--where", default="", metavar="CONDITION", shell_complete=query_fields)


def target_words(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete KIND [NAME...] and KIND/NAME...: kinds first, then names of that kind."""
    given = context.params.get(parameter.name or "") or ()
    if "/" in incomplete:
        kind, _, begun = incomplete.partition("/")
        return [CompletionItem(f"{kind}/{item.value}") for item in _names(context, kind, begun)]
    if not given:
        return _kinds(context, incomplete)
    return [] if "/" in given[0] else [item for item in _names(context, given[0], incomplete) if item.value not in given]


def names_of(kind: str) -> Completion:
    def complete(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
        given = context.params.get(parameter.name or "") or ()
        return [item for item in _names(context, kind, incomplete) if item.value not in given]

    return complete


def _kinds(context: click.Context, incomplete: str) -> list[CompletionItem]:
    from hubctl.client.connection import chosen_client  # noqa: PLC0415 - only during a completion
    from hubctl.client.resources import ALL, Catalogue  # noqa: PLC0415 - likewise

    def served() -> Iterable[str]:
        known = {resource.plural for resource in ALL}
        found = Catalogue(chosen_client(context, timeout=COMPLETION_TIMEOUT, prompts=False)).served
        return (each.resource.plural for each in found if each.resource.plural not in known and "list" in each.verbs)

    offered = [word for word in (resource.words[0] for resource in ALL) if word.startswith(incomplete)]
    return [*map(CompletionItem, offered), *(item for item in complete_words(served, incomplete) if item.value not in offered)]


def _names(context: click.Context, kind: str, incomplete: str) -> list[CompletionItem]:
    def found() -> Iterable[str]:
        from hubctl.client.connection import chosen_client  # noqa: PLC0415 - only when a key was pressed
        from hubctl.client.http import PARTIAL  # noqa: PLC0415 - likewise
        from hubctl.client.resources import Catalogue  # noqa: PLC0415 - likewise

        client = chosen_client(context, timeout=COMPLETION_TIMEOUT, prompts=False)
        path = Catalogue(client).named(kind).within(str(context.params.get("namespace") or ""))
        answer = client.get(path, accept=PARTIAL, limit=str(MAX_NAMES))
        return sorted({str(item["metadata"]["name"]) for item in answer.get("items") or ()})

    return complete_words(found, incomplete)
