"""The controllers: the serving certificate's on every replica, all others on the leader."""

from hub.audit import DecisionAudit
from hub.composition.access import Access
from hub.composition.agents import AgentsDoor
from hub.composition.certificates import CertificateSection
from hub.composition.context import BuildContext
from hub.composition.resources import Resources
from hub.controllers.manager.manager import ControllerManager, OwnControllers
from hub.ports import Store
from hub.replica.authorities import rotation_of
from hub.replica.leader_election import Leading, leadership
from machinery.runtime.scheduler import Scheduler
from machinery.runtime.tasks import GuardedTasks


async def start_controllers(
    context: BuildContext,
    resources: Resources,
    certificates: CertificateSection,
    access: Access,
    agents: AgentsDoor,
    *,
    leads: bool,
) -> Leading:
    """Starts the controllers of every replica now. A hook starts the election when the doors are open, if this hub `leads`."""
    settings, clock, stack, server = context.settings, context.clock, context.stack, context.server
    failed = context.process.shutdown.failed
    own = OwnControllers(certificates.doors.renew)
    working = await stack.enter_async_context(GuardedTasks("own controllers", on_end=failed))
    own.start(working)
    timetable = await stack.enter_async_context(Scheduler())
    own.wake(timetable)
    rotation = rotation_of(resources.issuer, resources.ring, settings, context.lifetimes, clock)

    def controllers_of_term(fenced: Store) -> ControllerManager:
        certificates.host.lead(fenced)
        return ControllerManager(
            fenced,
            certificates.signing,
            settings,
            context.lifetimes,
            clock=clock,
            since=agents.hearing.since,
            decisions=DecisionAudit(access.auditor),
            rotation=rotation,
        )

    leading = await stack.enter_async_context(
        leadership(
            settings,
            settings.store_url,
            resources.replica,
            resources.store,
            controllers_of_term,
            clock=clock,
            timetable=timetable,
            on_end=failed,
        )
    )
    if leads:
        server.post_start.add("controllers", leading.begin)
        server.pre_shutdown.add("controllers", leading.stop)
    return leading
