"""Shell completion of kinds, and of names from the hub. Errors offer no completion and print nothing."""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import click
from click.shell_completion import CompletionItem

from hubctl.auth.kubeconfig import complete_words, option_of

if TYPE_CHECKING:
    from hubctl.client.http import ApiClient
    from hubctl.client.resources import ResourceKind

Completion = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]

PATIENCE = 2.0
"""Seconds for an answer of the hub, because the user waits for the shell."""
MOST = 1000
"""Largest number of offered names."""


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
    """Completion of names of one kind."""

    def complete(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
        given = context.params.get(parameter.name or "") or ()
        return [item for item in _names(context, kind, incomplete) if item.value not in given]

    return complete


def names_of_kind_before(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete names of the kind in the preceding argument `kind`."""
    del parameter
    return _names(context, str(context.params.get("kind") or ""), incomplete)


def kinds(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete the words of the kinds that the hub serves."""
    del parameter
    return _kinds(context, incomplete)


def _kinds(context: click.Context, incomplete: str) -> list[CompletionItem]:
    from hubctl.client.resources import ALL  # noqa: PLC0415 - only when a key was pressed

    known = [resource.words[0] for resource in ALL]

    def served() -> Iterable[str]:
        from hubctl.client.resources import Catalogue  # noqa: PLC0415 - likewise

        plurals = {resource.plural for resource in ALL}
        catalogue = Catalogue(_client(context))
        return (
            each.resource.plural for each in catalogue.served if each.resource.plural not in plurals and "list" in each.verbs
        )

    offered = [word for word in known if word.startswith(incomplete)]
    return [*map(CompletionItem, offered), *(item for item in complete_words(served, incomplete) if item.value not in offered)]


def _names(context: click.Context, kind: str, incomplete: str) -> list[CompletionItem]:
    def found() -> Iterable[str]:
        from hubctl.client.resources import Catalogue  # noqa: PLC0415 - only when a key was pressed

        client = _client(context)
        return _listed(client, Catalogue(client).named(kind), str(context.params.get("namespace") or ""))

    return complete_words(found, incomplete)


def _listed(client: "ApiClient", resource: "ResourceKind", namespace: str) -> list[str]:
    from hubctl.client.http import PARTIAL  # noqa: PLC0415 - only when a key was pressed

    answer = client.get(resource.within(namespace), accept=PARTIAL, limit=str(MOST))
    return sorted({str(item["metadata"]["name"]) for item in answer.get("items") or ()})


def _client(context: click.Context) -> "ApiClient":
    from hubctl.client.connection import client_of  # noqa: PLC0415 - only when a key was pressed

    given = option_of(context, "kubeconfig"), option_of(context, "context_name")
    return client_of(*given, patience=PATIENCE, unseen=True)
