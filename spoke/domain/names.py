"""Rules for the cluster name and the agent id.

The agent uses the first name that exists: the option, the name in the owner's secret or its mirror, the name to which the
bootstrap kubeconfig is bound, the name in a slot (for example with a pending request), a new random name. The caller must store
a new name before the first request, so that an agent that restarts before the approval uses the same cluster name.
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
    cluster: ClusterName
    agent: AgentId

    @property
    def subject(self) -> CertificateSubject:
        return agent_subject(self.cluster, self.agent)


@dataclass(frozen=True, slots=True)
class AgentIdentity:
    """The identity of this agent at its hubs: its names, and the UID of its cluster's kube-system namespace."""

    names: AgentNames
    cluster_uid: str

    @property
    def cluster(self) -> ClusterName:
        return self.names.cluster

    @property
    def agent(self) -> AgentId:
        return self.names.agent


def choose_names(*, options: tuple[str, str], stored: tuple[str, str], fresh: tuple[str, str]) -> AgentNames:
    """Return cluster name and agent id, each from the first source with a name that is not empty.

    Each source is a pair of cluster name and agent id. Raises InvalidError with the rule that a name violates.
    """
    cluster, agent = (next(text for text in candidates if text) for candidates in zip(options, stored, fresh, strict=True))
    return AgentNames(cluster_name(cluster), agent_id(agent))


def fresh_agent_id(entropy: int) -> str:
    """Derive an agent id with OCM's alphabet and length from a random number."""
    letters = []
    for _ in range(AGENT_ID_LENGTH):
        entropy, index = divmod(entropy, len(AGENT_ID_ALPHABET))
        letters.append(AGENT_ID_ALPHABET[index])
    return "".join(letters)
