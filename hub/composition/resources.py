"""What a hub opens first: its data directory, its database, its keys, and its place among the replicas."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Protocol, TypeVar

import structlog

from hub.api.hubreplicas.replica import Replica
from hub.composition.context import BuildContext
from hub.issuer import RotatingIssuer
from hub.registry.core import namespaces
from hub.registry.multihub import owners
from hub.replica.authorities import AuthorityFollower, KeyRing, open_authorities, ring_of
from hub.replica.heartbeat import is_alone, replica_name, take_place, this_replica
from hub.replica.installation import settle
from hub.replica.keys import KeyFolder, find_seal, keep_seal, keep_token_keys
from hub.settings import HubSettings
from hub.settings.database_url import database_url
from hub.store import SqlStore
from hub.store.engine.file_lock import sole_user
from hub.store.engine.timeouts import SessionLimits
from machinery.identity import HubId
from machinery.lifecycle.starting import StartupRetry, in_time
from machinery.pki import TokenKeys
from machinery.runtime.directory import DataDirectory

log = structlog.get_logger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Resources:
    """`me`: this process as the other replicas see it; `token_keys`: as ServiceAccounts' tokens are signed."""

    directory: DataDirectory
    replica: str
    store: SqlStore
    hub_id: HubId
    issuer: RotatingIssuer
    ring: KeyRing
    follower: AuthorityFollower
    token_keys: TokenKeys
    me: Replica


async def open_resources(context: BuildContext) -> Resources:
    """Open everything, to be closed with the stack. Raises StartError, MusterError.

    A database server that is away, slow or just failing over is waited for; each step can be made twice, as after a crash.
    """
    settings, clock, stack = context.settings, context.clock, context.stack
    # all its files, and the proof that no other hub uses them
    directory = stack.enter_context(DataDirectory(settings.data_dir, "hub"))
    # which replica it is, and the keys that it shares with the others
    replica = replica_name(settings, directory)
    keys = KeyFolder.of(directory, settings.keys_dir, alone=is_alone(settings))
    # the proof that no other hub uses its database, where that is a file
    stack.enter_context(sole_user(database_url(settings)))
    # the only truth
    seal, is_new = find_seal(keys, settings.secrets_key_file)
    held = SessionLimits.of_lease(settings.leader_elect_lease_duration)
    alone = is_alone(settings)
    made = SqlStore(database_url(settings), seal, group_suffix=settings.api_group_suffix, session=held, alone=alone)
    stack.push_async_callback(made.close)
    step = _steps(settings, context.process.shutdown.requested)
    await step("opening the database and bringing its schema up to date", made.open)
    # who this hub is
    hub_id = await step("finding out which hub this is", partial(made.run, settle, settings.api_group_suffix))
    # what it signs with
    ring = await ring_of(settings, keys, made, seal, stack)
    in_files = settings.ca_key_place == "file"
    found = partial(
        open_authorities, keys, made, ring, in_files=in_files, lifetimes=context.lifetimes, clock=clock, replica=replica
    )
    same_seal = partial(keep_seal, keys, made, seal, is_new=is_new)
    if not in_files:  # what a CA's key may be sealed with has to be the right one by then
        await step("comparing the key of Secrets", same_seal)
    issuer, follower = await step("finding its CA", found)
    if in_files:
        await step("comparing the key of Secrets", same_seal)
    token_keys = await step("comparing the keys of tokens", partial(keep_token_keys, keys, made, clock.now()))
    # where objects that belong to no cluster lie
    await step("making the standing namespaces", partial(made.run, namespaces.ensure_standing))
    # epochs that an earlier version has taken and that would shut an agent out
    lowered = await step("lowering epochs", partial(made.run, owners.lower_epochs))
    if lowered:
        log.warning("epochs of agents were too far ahead and are lowered to the present", clusters=lowered)
    # nobody is connected yet
    me = this_replica(replica, settings, directory)
    await step("taking its place among the replicas", partial(take_place, made, me, alone=is_alone(settings)))
    return Resources(directory, replica, made, hub_id, issuer, ring, follower, token_keys, me)


class Steps(Protocol):
    async def __call__(self, what: str, step: Callable[[], Awaitable[T]], /) -> T: ...


def _steps(settings: HubSettings, stop: asyncio.Event) -> Steps:
    """How a step is made that needs the database. An embedded one is nobody else's: what ails it stays."""
    then = "is the database there and not overloaded? (--start-timeout)"
    if is_alone(settings):
        return partial(_once, settings.start_timeout, then)
    return StartupRetry(settings.start_timeout, then=then, stop=stop)


async def _once(limit: timedelta, then: str, what: str, step: Callable[[], Awaitable[T]]) -> T:
    return await in_time(what, step(), limit, then=then)
