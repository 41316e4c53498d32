"""What a hub stands on before it opens a door: its files, its database, its keys, and its place among the replicas."""

from contextlib import AsyncExitStack
from dataclasses import dataclass

from hub.auditing import database_url
from hub.domain.certificate import Lifetimes
from hub.domain.replica import Replica
from hub.installation import settle
from hub.issuer import LocalIssuer
from hub.keys import KeyFolder, find_seal, keep_authority, keep_seal, keep_token_keys
from hub.replica import is_alone, replica_name, take_place, this_replica
from hub.services import namespaces
from hub.settings import Settings
from hub.store import SqlStore
from hub.store.bounds import SessionLimits
from hub.store.sole import sole_user
from machinery.clock import Clock
from machinery.directory import DataDirectory
from machinery.identity import HubId
from machinery.lifecycle.starting import in_time
from machinery.pki import TokenKeys


@dataclass(frozen=True, slots=True)
class Foundation:
    """`me`: this process as the other replicas see it; `token_keys`: as ServiceAccounts' tokens are signed."""

    directory: DataDirectory
    replica: str
    store: SqlStore
    hub_id: HubId
    issuer: LocalIssuer
    token_keys: TokenKeys
    me: Replica


async def laid(settings: Settings, lifetimes: Lifetimes, clock: Clock, stack: AsyncExitStack) -> Foundation:
    """Whatever is opened for it closes with `stack`. Raises StartError, MusterError."""
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
    made = SqlStore(database_url(settings), seal, group_suffix=settings.api_group_suffix, session=held)
    store = await _opened(made, settings, stack)
    # who this hub is
    hub_id = await store.run(settle, settings.api_group_suffix)
    # what it signs with
    issuer = await keep_authority(keys, store, lifetimes, clock.now())
    await keep_seal(keys, store, seal, is_new=is_new)
    token_keys = await keep_token_keys(keys, store, clock.now())
    # where objects that belong to no cluster lie
    await store.run(namespaces.ensure_standing)
    # nobody is connected yet
    me = this_replica(replica, settings, directory)
    await take_place(store, me, alone=is_alone(settings))
    return Foundation(directory, replica, store, hub_id, issuer, token_keys, me)


async def _opened(store: SqlStore, settings: Settings, stack: AsyncExitStack) -> SqlStore:
    stack.push_async_callback(store.close)
    opening = "opening the database and bringing its schema up to date"
    then = "is the database there and not overloaded? (--start-timeout)"
    await in_time(opening, store.open(), settings.start_timeout, then=then)
    return store
