"""Tasks that run while a hub serves. A task that fails stops the hub."""

from hub.composition.hub import Hub
from hub.composition.observation import register_metrics
from hub.replica.admin_secret import admin_secret
from hub.replica.debug_endpoints import follow_orders, keep_log
from hub.replica.heartbeat import HeartbeatCallbacks, ReplicaHeartbeat, ReplicaStats
from machinery.lifecycle.health import LoopProgress
from machinery.runtime.tasks import GuardedTasks


async def start_background_tasks(hub: Hub, log_progress: LoopProgress) -> None:
    """`log_progress`: reported by the task that flushes the log. Raises InvalidError for settings that match no cluster."""
    context, resources, certificates, access, agents = hub.context, hub.resources, hub.certificates, hub.access, hub.agents
    settings, stack, parts, failed = context.settings, context.stack, agents.parts, context.process.shutdown.failed
    measure_loop, presence = register_metrics(hub), _register_presence(hub)
    tasks = await stack.enter_async_context(GuardedTasks("hub", on_end=failed))
    tasks.start("revocations", access.peers.run())
    tasks.start("certificate authorities", resources.follower.run())
    tasks.start("serving certificate", certificates.doors.run())
    tasks.start("admin kubeconfig", certificates.admin_kubeconfig.run())
    secret = await admin_secret(settings, certificates.admin_kubeconfig, resources.issuer, stack)
    tasks.start("admin secret", secret.run())
    tasks.start("heartbeats", parts.beats.run())
    tasks.start("hearing", agents.hearing.run())
    tasks.start("clocks", agents.clocks.run())
    tasks.start("streams", parts.feed.run())
    tasks.start("trust", agents.trusting.run())
    tasks.start("sessions", parts.sessions.run())
    tasks.start("presence", presence.run())
    tasks.start("cordon", parts.cordon.run())
    if not settings.is_alone:
        tasks.start("sessions elsewhere", parts.sessions.follow_others())
    tasks.start("watches", hub.operators.door.run())
    tasks.start("log", keep_log(log_progress))
    tasks.start("event loop", measure_loop())
    tasks.start("log level", follow_orders(resources.store, context.process.verbosity))
    await certificates.host.start(resources.store, lambda: hub.leading.leadership.term is not None, stack, failed)


def _register_presence(hub: Hub) -> ReplicaHeartbeat:
    """This replica's heartbeat, and the last writes when the hub stops: audit records, then the row."""
    context, resources, parts, watches = hub.context, hub.resources, hub.agents.parts, hub.operators.door.server.watches
    measures = ReplicaStats(context.clock, sessions=lambda: len(parts.sessions), watches=lambda: len(watches))
    heard = HeartbeatCallbacks(given_up=parts.sessions.say_again, drained=parts.cordon.order)
    presence = ReplicaHeartbeat(resources.store, resources.me, context.server.signals, measures, heard)
    context.server.flush.add("audit", hub.access.auditor.flush)
    context.server.flush.add("replica", presence.leave)
    return presence
