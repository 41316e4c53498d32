"""Creates the controllers and connects each to the change log and the timetable."""

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

from hub.access.authenticator_conditions import examine
from hub.api.certificates import Lifetimes
from hub.api.certificatesigningrequests.request import RequestRetention
from hub.api.events import EventRecord
from hub.api.hubreplicas import LOST_AFTER
from hub.api.meta.change import MANAGED_CLUSTERS, NAMESPACES, REQUESTS, REVOCATIONS, Kind
from hub.api.objects.history import Keeping
from hub.controllers.batch import TOGETHER, Batched
from hub.controllers.certificates import authenticators, cleanup, issuance
from hub.controllers.certificates import rotation as rotations
from hub.controllers.certificates import serving as serving_certificate
from hub.controllers.certificates.authenticators import AuthenticatorStatus
from hub.controllers.certificates.cleanup import RequestCleanup
from hub.controllers.certificates.issuance import Issuance
from hub.controllers.certificates.rotation import Rotation
from hub.controllers.certificates.serving import ServingCertificate
from hub.controllers.clock_guard import Steadiness
from hub.controllers.clusters import namespaces, removal
from hub.controllers.clusters.availability import Since
from hub.controllers.clusters.namespaces import Namespaces
from hub.controllers.clusters.removal import Removal
from hub.controllers.deletion_watcher import DeletionWatcher
from hub.controllers.feed import EventHandler, Feed
from hub.controllers.hub import compaction, replicas
from hub.controllers.hub import event_recorder as recorder
from hub.controllers.hub import leader_events as succession
from hub.controllers.hub.compaction import Compaction
from hub.controllers.hub.event_recorder import Recorder
from hub.controllers.hub.leader_events import LeaderEvents
from hub.controllers.hub.replicas import LostReplicas
from hub.controllers.hub.transition_recorder import TransitionRecorder
from hub.controllers.manager.approval import Deciding, DecisionRecorder
from hub.controllers.manager.availability import AvailabilityControllers
from hub.controllers.manager.fleet import FleetControllers, Gates
from hub.ports import Issuer, Store
from hub.settings import HubSettings
from machinery.apiserver.authn.issuer_keys import HttpsDocuments
from machinery.lifecycle.startup import in_time
from machinery.meta.objects import Document, Key
from machinery.runtime.clock import Clock
from machinery.runtime.controller import Controller
from machinery.runtime.scheduler import Timetable
from machinery.runtime.tasks import GuardedTasks

PERIODIC = "all"
"""The only key of a periodic controller."""
PERIOD = timedelta(minutes=5)
HOUSES = 4
"""Namespaces handled concurrently, so that emptying one does not block others."""
SYNCED_WITHIN = timedelta(seconds=60)


class ControllerManager:
    """The controllers of the leading replica in one term.

    `store` is fenced (`hub.election.fence`): it always reads, and writes only while this replica leads in that term.
    Controllers use it as any store, and stop when the term ends. Each term has new controllers, which begin by examining every
    object. `since`: returns since when beats could be stored. `decisions`: audits the decisions of rules. `rotation`: makes the
    controller of CA changes; None: there is none.
    """

    def __init__(
        self,
        store: Store,
        issuer: Issuer,
        settings: HubSettings,
        lifetimes: Lifetimes,
        *,
        clock: Clock,
        since: Since,
        decisions: DecisionRecorder | None = None,
        rotation: Callable[[Store, Callable[[EventRecord], None]], Rotation] | None = None,
    ) -> None:
        # the hub's own Events
        self._recording = Recorder(store)
        self._events = Controller(recorder.NAME, self._recording)
        # Events of leader terms
        self._terms = LeaderEvents(store)
        self._succession = Controller(succession.NAME, self._terms)
        # acceptance and approval, by operators and by rules
        self._deciding = Deciding(store, settings.auto_approve, clock, tell=self.tell, decisions=decisions)
        # approved -> certificate
        issuing = Issuance(store, issuer, lifetimes)
        self._issuance = Controller(issuance.NAME, issuing)
        # namespaces of accepted clusters; emptying of deleted ones
        housing = Namespaces(store)
        self._namespaces = Controller(namespaces.NAME, housing, workers=HOUSES)
        # deletion of everything that belongs to a deleted cluster
        removing = Removal(store, settings.deletion_deadline, self.tell)
        self._removal = Controller(removal.NAME, removing, workers=HOUSES)
        # retention
        ends = RequestRetention(settings.finished_requests, settings.pending_requests)
        expiring = RequestCleanup(store, ends, settings.ended_credentials, Steadiness(clock))
        self._cleanup = Controller(cleanup.NAME, expiring)
        self.keeping = Compaction(store, keeping_of(settings), Steadiness(clock), self.tell)
        """Its `standing` has retention and sizes."""
        self._compaction = Controller(compaction.NAME, self.keeping)
        # sessions of lost replicas
        self._replicas = Controller(replicas.NAME, LostReplicas(store, since=since))
        # reachability of authenticators
        looking = AuthenticatorStatus(store, lambda kind, document: examine(kind, document, HttpsDocuments.trusting))
        self._authenticators = Controller(authenticators.NAME, looking, workers=HOUSES, grace=authenticators.GRACE)
        # sets, bindings, add-ons, profiles
        gates = Gates(default_cluster_set=settings.default_cluster_set, cluster_profiles=settings.cluster_profiles)
        self._fleet = FleetControllers(store, gates, self.tell)
        # change of the CA
        self._rotation = [] if rotation is None else [Controller(rotations.NAME, rotation(store, self.tell))]
        # availability and its effects
        self._silence = AvailabilityControllers(store, settings, clock, since, self.tell)
        # transitions in the log
        self.chronicle = TransitionRecorder(self.tell)
        # the source of keys
        self._feed = Feed(
            store,
            (
                # first, so that existing namespaces of clusters are known
                EventHandler(NAMESPACES, self._house, housing.wanted),
                *self._fleet.routes,
                EventHandler(MANAGED_CLUSTERS, self._house, housing.wanted_of),
                EventHandler(MANAGED_CLUSTERS, lambda key: self._removal.enqueue(key.name), removal.wanted),
                *self._deciding.routes,
                # observed only
                EventHandler(REVOCATIONS, lambda _key: None),
                _together(REQUESTS, issuing, self._issuance, issuance.wanted),
                *self._silence.routes,
                *(EventHandler(kind, partial(self._look, kind), looking.wanted(kind)) for kind in authenticators.WORDS),
            ),
            self.chronicle,
            self._fleet.observer,
            DeletionWatcher(
                (housing.waiting, lambda name: self._namespaces.queue.add_after(name, namespaces.LOOK_AGAIN)),
                (removing.waiting, lambda name: self._removal.queue.add_after(name, removal.LOOK_AGAIN)),
            ),
            relisting=(housing.relisting, self._fleet.begin),
        )

    def _house(self, key: Key) -> None:
        self._namespaces.enqueue(key.name)

    def _look(self, kind: Kind, key: Key) -> None:
        self._authenticators.enqueue((kind, key.name))

    def wake(self, timetable: Timetable) -> None:
        """Add the periodic work to the timetable."""
        for controller in (self._cleanup, self._compaction):
            timetable.every(PERIOD, partial(controller.enqueue, PERIODIC), name=controller.name, jitter=0.25, at_once=True)
        timetable.every(LOST_AFTER / 2, partial(self._replicas.enqueue, PERIODIC), name=self._replicas.name)
        for controller in self._rotation:
            timetable.every(rotations.PERIOD, partial(controller.enqueue, PERIODIC), name=controller.name, at_once=True)
        self._silence.wake(timetable)

    def rest(self, timetable: Timetable) -> None:
        """Remove it from the timetable."""
        for controller in (self._cleanup, self._compaction, self._replicas, *self._rotation):
            timetable.drop(controller.name)
        self._silence.rest(timetable)

    def tell(self, record: EventRecord) -> None:
        """Record an Event. It waits in the recorder, whose queue holds one key for all."""
        self._recording.wants(record)
        self._events.queue.add_after(recorder.TOGETHER, recorder.GATHER)

    def begin(self, term: int, ours: EventRecord) -> None:
        """Record Events of the term that begins and of earlier unreported ones."""
        self._terms.begins(term, ours)
        self._succession.enqueue(succession.UP_TO_NOW)

    async def start(self, tasks: GuardedTasks) -> None:
        """Return when every object was examined once. Raises StartError when that takes too long."""
        for controller in self.everyone:
            tasks.start(controller.name, controller.run())
        tasks.start("feed", self._feed.run())
        then = "is the database overloaded?"
        await in_time("the controllers' first look at every object", self._feed.synced.wait(), SYNCED_WITHIN, then=then)

    def waiting(self) -> Mapping[str, int]:
        """Keys in each controller's queue."""
        return {controller.name: len(controller.queue) for controller in self.everyone}

    @property
    def everyone(self) -> Sequence[Controller[Any]]:
        """All controllers of this term."""
        return (
            *self._deciding.controllers,
            self._issuance,
            self._namespaces,
            self._removal,
            self._cleanup,
            self._compaction,
            self._replicas,
            self._events,
            self._succession,
            *self._rotation,
            self._authenticators,
            *self._fleet.controllers,
            *self._silence.controllers,
        )


class OwnControllers:
    """Controllers that run on every replica. `renew`: renews the doors' certificate."""

    def __init__(self, renew: Callable[[], None]) -> None:
        # renewal of the serving certificate
        self._serving = Controller(serving_certificate.NAME, ServingCertificate(renew))

    def wake(self, timetable: Timetable) -> None:
        """Add the periodic work to the timetable."""
        renewal = partial(self._serving.enqueue, PERIODIC)
        timetable.every(serving_certificate.PERIOD, renewal, name=self._serving.name, jitter=0.25)

    def start(self, tasks: GuardedTasks) -> None:
        tasks.start(self._serving.name, self._serving.run())


def keeping_of(settings: HubSettings) -> Keeping:
    """The retention settings."""
    return Keeping(
        window=settings.watch_window,
        history=settings.history_retention,
        history_bytes=settings.history_size,
        events=settings.event_lifetime,
        records=settings.audit_retention,
        transitions=settings.transition_retention,
        reserve=settings.disk_reserve,
        records_bytes=settings.audit_size,
    )


def _together(kind: Kind, reconciler: Batched, controller: Controller[str], wanted: Callable[[Document], bool]) -> EventHandler:
    """Event handler for a batched reconciler: names wait there, and the queue holds one key for all."""

    def enqueue(key: Key) -> None:
        reconciler.wants(key.name)
        controller.enqueue(TOGETHER)

    return EventHandler(kind, enqueue, wanted)
