"""Events of the agent for operators, as Kubernetes Events."""

from dataclasses import dataclass

from machinery.meta.conditions import TRUE, Condition

NORMAL, WARNING = "Normal", "Warning"


@dataclass(frozen=True, slots=True)
class AgentEvent:
    """One Event about the cluster, or about one of its add-ons."""

    reason: str
    message: str
    type: str = NORMAL
    addon: str = ""


def news_of(condition: Condition, addon: str = "") -> AgentEvent:
    """The Event about a condition; a Warning unless the condition is True."""
    return AgentEvent(condition.reason, condition.message, NORMAL if condition.status == TRUE else WARNING, addon)


def left_out(claims: int, maximum: int) -> AgentEvent:
    """The Event about custom cluster claims that are not reported."""
    message = f"{claims} custom cluster claims are left out: at most {maximum} are reported (--max-custom-cluster-claims)"
    return AgentEvent("CustomClusterClaimsTruncated", message, WARNING)
