"""Which cluster and which agent this is.

Rules: an option wins, then the name that an earlier run of this agent got a certificate for, then the name that the bootstrap
kubeconfig is bound to, then the name of a request that pends, then a fresh name. Fresh names are drawn by the caller (this
module draws nothing) and must be persisted before the first request, so that a restart before the approval is still the same
cluster to the hub.
"""

from dataclasses import dataclass

from machinery.identity import (
    AGENT_ID_ALPHABET,
    AGENT_ID_LENGTH,
    AgentId,
    CertificateSubject,
    ClusterName,
    agent_id,
    agent_subject,
    cluster_name,
)


@dataclass(frozen=True, slots=True)
class AgentNames:
    """What the hub knows this agent by."""

    cluster: ClusterName
    agent: AgentId

    @property
    def subject(self) -> CertificateSubject:
        """The subject that every credential of this agent has."""
        return agent_subject(self.cluster, self.agent)


def choose_names(*, options: tuple[str, str], stored: tuple[str, str], fresh: tuple[str, str]) -> AgentNames:
    """Cluster name and agent id, each from the first source that is not empty. Raises InvalidError with the rule."""
    cluster, agent = (next(text for text in candidates if text) for candidates in zip(options, stored, fresh, strict=True))
    return AgentNames(cluster_name(cluster), agent_id(agent))


def fresh_agent_id(entropy: int) -> str:
    """An agent id of OCM's alphabet and length out of a random number."""
    letters = []
    for _ in range(AGENT_ID_LENGTH):
        entropy, index = divmod(entropy, len(AGENT_ID_ALPHABET))
        letters.append(AGENT_ID_ALPHABET[index])
    return "".join(letters)
