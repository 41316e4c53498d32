"""An assembled hub."""

from dataclasses import dataclass

from hub.composition.access import Access
from hub.composition.agents import AgentsDoor
from hub.composition.certificates import CertificateSection
from hub.composition.context import BuildContext
from hub.composition.operators import OperatorsDoor
from hub.composition.resources import Resources
from hub.replica.leader_election import Leading


@dataclass(frozen=True, slots=True)
class Hub:
    """The sections of a hub. `run` opens its doors. `context.settings` has the ports of the doors."""

    context: BuildContext
    resources: Resources
    certificates: CertificateSection
    access: Access
    agents: AgentsDoor
    leading: Leading
    operators: OperatorsDoor

    async def run(self) -> None:
        """Serve until the stop is requested, then stop in order. Raises StartError, HookError, TaskEndedError."""
        await self.context.server.prepare().run(self.context.process.shutdown.wait)
