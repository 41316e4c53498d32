"""What the agent has to tell people: Kubernetes' Events, in words of its own."""

from dataclasses import dataclass

from machinery.meta.conditions import TRUE, Condition

NORMAL, WARNING = "Normal", "Warning"


@dataclass(frozen=True, slots=True)
class News:
    """One Event about the cluster, or about one of its add-ons."""

    reason: str
    message: str
    type: str = NORMAL
    addon: str = ""


def news_of(condition: Condition, addon: str = "") -> News:
    """A condition as news: what is not True is a warning."""
    return News(condition.reason, condition.message, NORMAL if condition.status == TRUE else WARNING, addon)


def left_out(claims: int, maximum: int) -> News:
    """Custom cluster claims that are not reported."""
    message = f"{claims} custom cluster claims are left out: at most {maximum} are reported (--max-custom-cluster-claims)"
    return News("CustomClusterClaimsTruncated", message, WARNING)
