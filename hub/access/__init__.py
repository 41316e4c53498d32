"""Authentication, authorization and request limits. Both doors use it before they call a service of `hub.registry`."""

from hub.access.limits import AccessLimits, LimitConfig
from hub.access.peers import Peers
from hub.access.rules import (
    check_agents_door,
    check_hub_reader,
    check_operator,
    check_recovery_view,
    check_registration,
    check_request_view,
    counted_names,
    recovering_agent,
    session_holder,
)
from hub.access.tokens import BootstrapTokens

__all__ = [
    "AccessLimits",
    "BootstrapTokens",
    "LimitConfig",
    "Peers",
    "check_agents_door",
    "check_hub_reader",
    "check_operator",
    "check_recovery_view",
    "check_registration",
    "check_request_view",
    "counted_names",
    "recovering_agent",
    "session_holder",
]
