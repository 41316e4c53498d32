"""Chooses the agent's names, which are the same at every hub of its list from the first request on."""

import secrets
import uuid
from collections.abc import Iterable, Mapping

from structlog.contextvars import bind_contextvars

from spoke.bootstraps import BootstrapListing
from spoke.credentials.kubeconfigs import stored_texts
from spoke.credentials.slot import Contents
from spoke.domain.names import AgentNames, choose_names, fresh_agent_id
from spoke.options import AgentOptions
from spoke.ports import CredentialDirectory


class Naming:
    """Remembers the names of this run."""

    def __init__(self, options: AgentOptions, directory: CredentialDirectory | None) -> None:
        self._options = options
        self._directory = directory
        self._names: AgentNames | None = None

    def choose(self, held: Contents, asked: Iterable[Contents], listing: BootstrapListing) -> AgentNames:
        """`held`: the owner's secret; `asked`: the hubs' slots in order of precedence."""
        fresh = (str(uuid.uuid4()), fresh_agent_id(secrets.randbits(64)))
        remembered = (str(self._names.cluster), str(self._names.agent)) if self._names else fresh
        mirrored: Mapping[str, bytes] = self._directory.read() if self._directory is not None else {}
        # Names of a pending request yield to a bootstrap kubeconfig that is bound to another name.
        bound = (next((hub.connection.cluster_name for hub in listing.hubs if hub.connection.cluster_name), ""), "")
        places = [stored_texts(held), stored_texts(mirrored), bound, *map(stored_texts, asked)]
        cluster, agent = (next(filter(None, texts), "") for texts in zip(*places, strict=True))
        self._names = choose_names(
            options=(self._options.cluster_name, self._options.agent_id), stored=(cluster, agent), fresh=remembered
        )
        bind_contextvars(cluster=self._names.cluster)  # for this agent's tasks: a process may hold many agents
        return self._names
