"""Starts the controllers, the leader election and the heartbeat of this replica."""

from hub.audit import DecisionAudit
from hub.composition.agents import AgentsDoor
from hub.composition.core import HubCore
from hub.composition.operators import OperatorsDoor
from hub.controllers.builder import ControllerBuilder
from hub.controllers.certificates import rotation
from hub.controllers.hub.replicas import start_serving_certificate
from hub.controllers.manager import ControllerManager
from hub.election.fence import FencedStore
from hub.metrics.replica import add_leader
from hub.replica.authorities import authority_provider
from hub.replica.heartbeat import ReplicaHeartbeat
from hub.replica.leader_election import Leading, leadership
from machinery.runtime.scheduler import SystemScheduler
from machinery.runtime.tasks import GuardedTasks


async def start_controllers(core: HubCore, agents: AgentsDoor, *, leads: bool) -> Leading:
    """Starts this replica's controllers and prepares the leader's. `leads`: join the leader election after the doors open."""
    context, resources = core.context, core.resources
    settings, clock, stack, server = context.settings, context.clock, context.stack, context.server
    failed = context.process.shutdown.failed
    working = await stack.enter_async_context(GuardedTasks("own controllers", on_end=failed))
    scheduler = await stack.enter_async_context(SystemScheduler())
    start_serving_certificate(core.certificates.doors.renew, working, scheduler)

    def controllers_of_term(fenced: FencedStore) -> ControllerManager:
        for lead in core.on_lead:
            lead(fenced)
        builder = ControllerBuilder(
            fenced,
            resources.issuer,
            settings,
            context.lifetimes,
            clock=clock,
            since=agents.coverage.since,
            decisions=DecisionAudit(core.access.auditor),
        )
        make = authority_provider(resources.issuer, resources.key_places, context.lifetimes, clock)
        rotation.register(builder, make, resources.key_places)
        return ControllerManager(builder)

    replica, store = resources.replica, resources.store
    election = leadership(settings, replica, store, controllers_of_term, clock=clock, scheduler=scheduler, on_end=failed)
    leading = await stack.enter_async_context(election)
    if leads:
        server.post_start.add("controllers", leading.begin)
        server.pre_shutdown.add("controllers", leading.stop)
    context.inspection.add("leadership", leading.snapshot)
    context.inspection.add("controller queues", leading.waiting)
    add_leader(context.metrics, leading)
    return leading


def register_heartbeat(core: HubCore, agents: AgentsDoor, operators: OperatorsDoor) -> None:
    """Adds the task that keeps this replica's row in the database current, and the hook that removes the row at the stop."""
    context, sessions, watches = core.context, agents.parts.sessions, operators.door.server.watches
    heartbeat = ReplicaHeartbeat(
        core.resources.store,
        core.resources.me,
        context.server.signals,
        context.clock,
        sessions=lambda: len(sessions),
        watches=lambda: len(watches),
        declared_lost=sessions.rewrite_all,
        drained=agents.parts.cordon.order,
    )
    context.add_task("presence", heartbeat.run)
    context.server.flush.add("replica", heartbeat.leave)
