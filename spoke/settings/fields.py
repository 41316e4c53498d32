"""Types of the agent's settings, with their error messages, and feature gates.

Feature gates have Open Cluster Management's names and defaults:

ClusterClaim         on    ClusterClaims are reported
ClusterProperty      off   ClusterProperties (about.k8s.io) are reported; for equal names the property overrides the claim
AddonManagement      on    add-ons get certificates and tokens, and their leases are checked
MultipleHubs         off   without effect: an agent with several bootstrap kubeconfigs has several hubs
V1beta1CSRAPICompatibility  off   cannot be switched on: no supported API server serves that version
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from machinery.durations import format_duration, parse_duration
from machinery.errors import InvalidError
from machinery.meta.selectors import valid_label_key, valid_label_value
from machinery.observability import telemetry

DEFAULT_NAMESPACE = "open-cluster-management-agent"
SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_PORT = re.compile(r"[0-9]{1,5}")
_SECONDS = re.compile(r"-?[0-9]+(\.[0-9]+)?")
_FIELDS = {"ClusterClaim": "cluster_claim", "ClusterProperty": "cluster_property", "AddonManagement": "addon_management"}
_WITHOUT_EFFECT = ("MultipleHubs",)
_GONE = ("V1beta1CSRAPICompatibility",)
KNOWN = (*_FIELDS, *_WITHOUT_EFFECT, *_GONE)
_WORDS = {"true": True, "t": True, "1": True, "false": False, "f": False, "0": False}


@dataclass(frozen=True, slots=True)
class FeatureGates:
    cluster_claim: bool = True
    cluster_property: bool = False
    addon_management: bool = True


def gates_of(overrides: Mapping[str, str]) -> FeatureGates:
    """Return the default gates, changed by `overrides`. Raises InvalidError for an unknown gate or an invalid value."""
    gates = FeatureGates()
    for name, text in overrides.items():
        if name not in KNOWN:
            raise InvalidError(f'there is no feature gate "{name}" of an agent; there are {", ".join(KNOWN)}')
        value = _WORDS.get(text.strip().lower())
        if value is None:
            raise InvalidError(f'feature gate {name} is "{text}", not true or false')
        if name in _GONE and value:
            raise InvalidError(
                f"feature gate {name} cannot be switched on: no supported API server has that version of the API"
            )
        if name in _FIELDS:
            gates = replace(gates, **{_FIELDS[name]: value})
    return gates


def _duration(value: Any) -> Any:
    """Parse `90s`, `1m30s`, `500ms`, `2h`, or a number of seconds. Raises ValueError."""
    if isinstance(value, timedelta):
        return value
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError("must be a duration, such as 60s")  # noqa: TRY004 - pydantic takes a ValueError
    text = str(value).strip()
    sign, positive = (-1, text[1:]) if text.startswith("-") else (1, text)
    return sign * parse_duration(f"{positive}s" if _SECONDS.fullmatch(text) else positive)


def _listed(value: Any) -> Any:
    """Split a comma-separated text, a path, or a list of them into parts."""
    if isinstance(value, str | Path):
        return [part.strip() for part in str(value).split(",") if part.strip()]
    if isinstance(value, list | tuple):
        return [part for each in value for part in (_listed(each) if isinstance(each, str | Path) else [each])]
    return value


def _mapped(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    return dict(part.split("=", 1) for part in _listed(value) if "=" in part)


def _labels(labels: dict[str, str]) -> dict[str, str]:
    wrong = [f"{key}={value}" for key, value in labels.items() if not (valid_label_key(key) and valid_label_value(value))]
    if wrong:
        raise ValueError(f"not labels as Kubernetes has them: {', '.join(wrong)}")
    return labels


def _account(text: str) -> str:
    namespace, _, name = text.partition("/")
    if text and (not namespace or not name or "/" in name):
        raise ValueError(f'"{text}" is not a service account: write NAMESPACE/NAME')
    return text


def _gates(gates: dict[str, str]) -> dict[str, str]:
    try:
        gates_of(gates)
    except InvalidError as error:
        raise ValueError(error.message) from None
    return gates


def _driver(name: Any) -> Any:
    """Reject `awsirsa` with an explanation, because it is a valid driver of OCM's agent."""
    if name == "awsirsa":
        raise ValueError("AWS IRSA is not served: leave it on auto, or take grpc or csr")
    return name or "auto"


def at_least(least: timedelta = timedelta()) -> Callable[[timedelta], timedelta]:
    """Return a validator for a lower bound.

    Pydantic's own bounds are not used, because their error messages print durations in Python's notation.
    """

    def checked(duration: timedelta) -> timedelta:
        if duration < least:
            raise ValueError(f"must be at least {format_duration(least)}")
        return duration

    return checked


def named_by(rule: Callable[[str], object]) -> Callable[[str], str]:
    """Return a validator that applies `rule` to a name; `rule` raises InvalidError. An empty name means: not set."""

    def checked(name: str) -> str:
        try:
            return str(rule(name)) if name else ""
        except InvalidError as error:
            raise ValueError(error.message) from None

    return checked


def _positive(duration: timedelta) -> timedelta:
    if duration <= timedelta():
        raise ValueError("must be longer than 0s")
    return duration


Duration = Annotated[timedelta, BeforeValidator(_duration), Field(title="TIME")]
NotNegative = Annotated[Duration, AfterValidator(at_least())]
Positive = Annotated[Duration, AfterValidator(_positive)]
Flag = Annotated[bool, Field(title="BOOL")]
Names = Annotated[tuple[str, ...], BeforeValidator(_listed)]
Paths = Annotated[tuple[Path, ...], BeforeValidator(_listed)]
Mapped = Annotated[dict[str, str], BeforeValidator(_mapped)]
Labels = Annotated[Mapped, AfterValidator(_labels)]
Gates = Annotated[Mapped, AfterValidator(_gates)]
ServiceAccount = Annotated[str, AfterValidator(_account)]
DriverName = Annotated[Literal["auto", "grpc", "csr"], BeforeValidator(_driver)]
TraceEndpoint = Annotated[str, AfterValidator(lambda text: telemetry.endpoint(text) if text else "")]


def own_namespace(service_account: Path = SERVICE_ACCOUNT) -> str:
    """Return the namespace of this pod. Outside of a pod, return OCM's default namespace."""
    try:
        return (service_account / "namespace").read_text().strip() or DEFAULT_NAMESPACE
    except OSError:
        return DEFAULT_NAMESPACE


def parse_address(text: str) -> tuple[str, int]:
    """Parse `host:port`. Raises ValueError."""
    host, _, port = text.rpartition(":")
    if not _PORT.fullmatch(port) or int(port) > 65535:  # noqa: PLR2004 - the largest port
        raise ValueError(f'"{text[:80]}" is not an address such as 127.0.0.1:8000')
    return host.strip("[]"), int(port)  # without a host: all interfaces, IPv4 and IPv6
