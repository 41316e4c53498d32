"""Opens the data directory, the database and the keys, and registers the replica."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import TypeVar

import structlog

from hub.api.hubreplicas import Replica
from hub.composition.context import BuildContext
from hub.issuer.rotating import RotatingIssuer
from hub.metrics.fleet import add_fleet
from hub.metrics.replica import add_database
from hub.ports import Store
from hub.registry import namespaces, owners
from hub.registry.hubreplicas.service import current_log_level
from hub.replica.authorities import KeyPlaces, key_places_of, open_authorities
from hub.replica.heartbeat import register_replica, replica_name, this_replica
from hub.replica.installation import check_first_start, settle
from hub.replica.keys import KeyFolder, find_seal, keep_seal, keep_token_keys
from hub.store import SqlStore
from hub.store.engine.file_lock import database_lock
from hub.store.engine.timeouts import SessionLimits
from machinery.errors import UnavailableError
from machinery.identity import HubId
from machinery.lifecycle.process import Verbosity
from machinery.lifecycle.startup import StartupRetry, in_time
from machinery.lifecycle.usage import trim_memory
from machinery.pki import TokenKeys
from machinery.runtime.directory import DataDirectory
from machinery.runtime.event_loop import until_tick
from machinery.runtime.health import READINESS, SharedCheck

log = structlog.get_logger(__name__)

T = TypeVar("T")
LOOK_EVERY = timedelta(seconds=2)
DATABASE_EVERY = timedelta(milliseconds=900)
"""Shortest time between two queries for readiness checks. It is below their interval (1 s), so that each check queries."""


@dataclass(frozen=True, slots=True)
class Resources:
    """What all sections use. `me`: this process's row in the table of replicas. `token_keys`: keys of ServiceAccount tokens."""

    directory: DataDirectory
    replica: str
    store: SqlStore
    hub_id: HubId
    issuer: RotatingIssuer
    key_places: KeyPlaces
    token_keys: TokenKeys
    me: Replica


async def open_resources(context: BuildContext) -> Resources:
    """Open the data directory, the database and the keys, and register the replica. Raises StartError, MusterError.

    Waits while the database server is unavailable, slow or failing over. Each step can be repeated, for example after a crash.
    The stack of the context closes what is opened.
    """
    settings, clock, stack = context.settings, context.clock, context.stack
    # lock of the data directory
    directory = stack.enter_context(DataDirectory(settings.data_dir, "hub"))
    # replica name and shared keys
    replica = replica_name(settings, directory)
    keys = KeyFolder.of(directory, settings.keys_dir, alone=settings.is_alone)
    # lock of an SQLite database
    stack.enter_context(database_lock(settings.store_url))
    # the database
    seal, is_new = find_seal(keys, settings.secrets_key_file)
    held = SessionLimits.of_lease(settings.leader_elect_lease_duration)
    alone = settings.is_alone
    made = SqlStore(settings.store_url, seal, group_suffix=settings.api_group_suffix, session=held, alone=alone)
    stack.push_async_callback(made.close)
    # With a database server, failed steps are retried. A failure of SQLite is permanent.
    then = "is the database there and not overloaded? (--start-timeout)"
    retry = StartupRetry(settings.start_timeout, then=then, stop=context.process.shutdown.requested)

    async def step(what: str, work: Callable[[], Awaitable[T]]) -> T:
        return await (in_time(what, work(), settings.start_timeout, then=then) if alone else retry(what, work))

    await step("opening and migrating the database", made.open)
    # the hub's identity
    await step("checking that the database is not another one", partial(check_first_start, made, directory, settings))
    hub_id = await step("reading the identity of the hub", partial(made.run, settle, settings.api_group_suffix))
    # the CAs
    places = await key_places_of(settings, keys, made, seal, stack)
    in_files = settings.ca_key_place == "file"
    found = partial(
        open_authorities, keys, made, places, in_files=in_files, lifetimes=context.lifetimes, clock=clock, replica=replica
    )
    same_seal = partial(keep_seal, keys, made, seal, is_new=is_new)
    if not in_files:  # the seal must be checked before it opens the CA's key
        await step("checking the key for Secrets", same_seal)
    issuer, follower = await step("loading the CA", found)
    if in_files:
        await step("checking the key for Secrets", same_seal)
    token_keys = await step("checking the keys of tokens", partial(keep_token_keys, keys, made, clock.now()))
    # namespaces for objects that belong to no cluster
    await step("creating the predefined namespaces", partial(made.run, namespaces.ensure_predefined))
    # an epoch that was recorded while a clock was ahead would lock out its agent
    lowered = await step("lowering epochs", partial(made.run, owners.lower_epochs))
    if lowered:
        log.warning("epochs of agents were too far ahead and are lowered to the present", clusters=lowered)
    # registration, before any session
    me = this_replica(replica, settings, directory)
    await step("registering this replica", partial(register_replica, made, me, alone=settings.is_alone))
    context.server.health.add("database", SharedCheck(made.check, clock, every=DATABASE_EVERY), endpoints=READINESS)
    context.add_task("certificate authorities", follower.run)
    context.add_task("memory", trim_memory)
    context.add_task("log level", partial(follow_log_level, made, context.process.verbosity))
    add_database(context.metrics, made)
    add_fleet(context.metrics, made, clock, reserve=settings.disk_reserve)
    return Resources(directory, replica, made, hub_id, issuer, places, token_keys, me)


async def follow_log_level(store: Store, verbosity: Verbosity) -> None:
    """Until cancelled, apply the log level that an operator has set. While the database is unavailable, the level stays."""
    while True:
        with suppress(UnavailableError):
            order = await store.look(current_log_level)
            verbosity.order(None if order is None else order.level)
        await asyncio.sleep(until_tick(LOOK_EVERY))
