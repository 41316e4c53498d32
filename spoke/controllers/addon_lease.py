"""Reports whether each add-on is available, according to the Lease that its agent renews."""

from collections.abc import Iterable
from datetime import timedelta

from machinery.errors import NotFoundError
from machinery.identity import AddOnName
from machinery.meta.conditions import Condition
from machinery.runtime.clock import Clock
from machinery.runtime.controller import Reconciler
from spoke.domain.addon import CUSTOMIZED, GRACE, AddOn, lease_condition
from spoke.ports import Cluster, HubSession


class AddOnLeaseController(Reconciler[AddOnName]):
    """Reports the Available condition of add-ons on one session, when it changes."""

    def __init__(
        self, session: HubSession, spoke: Cluster, management: Cluster, clock: Clock, *, grace: timedelta = GRACE
    ) -> None:
        self._grace = grace
        self._session = session
        self._spoke = spoke
        self._management = management
        self._clock = clock
        self._addons: dict[AddOnName, AddOn] = {}
        self._told: dict[AddOnName, Condition] = {}

    def set_addons(self, addons: Iterable[AddOn]) -> None:
        """Set the add-ons that the hub has for this cluster."""
        self._addons = {addon.name: addon for addon in addons}
        self._told = {name: condition for name, condition in self._told.items() if name in self._addons}

    @property
    def names(self) -> tuple[AddOnName, ...]:
        return tuple(self._addons)

    async def reconcile(self, key: AddOnName) -> timedelta | None:
        addon = self._addons.get(key)
        if addon is None or addon.health_check_mode == CUSTOMIZED:
            return None
        where = self._management if addon.hosted else self._spoke
        renewed_at = await where.lease_renewed_at(addon.namespace, addon.name)
        condition = lease_condition(addon, renewed_at, self._clock.now(), self._grace)
        if self._told.get(key) != condition:
            try:
                await self._session.report_addon(key, (condition,))
            except NotFoundError:  # removed meanwhile, which the hub will report
                return None
            self._told[key] = condition
        return None
