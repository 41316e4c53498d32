"""A kind with a field of every form, and writers that write it: what tests of field ownership stand on."""

from collections.abc import Mapping
from typing import Any

import yaml

from machinery.meta.managedfields import ownership
from machinery.meta.managedfields.applying import Applied, apply, field_conflict_error
from machinery.meta.managedfields.fieldset import in_order, minus
from machinery.meta.managedfields.structure import Structure, structure
from tests.checks import CASE_FILES, present

V1 = "example.com/v1"
SCHEMA: dict[str, Any] = yaml.safe_load((CASE_FILES / "schema.yaml").read_text())
STRUCTURE = structure(SCHEMA)


class OneVersion:
    """A kind written in one version."""

    def __init__(self, only: Structure) -> None:
        self._only = only

    def structure(self, _api_version: str) -> Structure:
        return self._only

    def converted(self, document: Any, _api_version: str) -> Any:
        return document


class World:
    """One object and who holds what of it. `tick` is the time of the writes that follow."""

    def __init__(self, versions: ownership.Versions | None = None) -> None:
        self.versions = versions or OneVersion(STRUCTURE)
        self.live: dict[str, Any] = {}
        self.holdings: ownership.Holdings = {}
        self.tick = 0

    def update(self, manager: str, new: Mapping[str, Any], *, api_version: str = V1, subresource: str = "") -> None:
        """A create or an update by which the object becomes `new`."""
        self.tick += 1
        document = {"apiVersion": api_version, **new}
        changed, writer = (
            ownership.comparisons(self.versions, self.live, document),
            ownership.updater(manager, api_version, subresource),
        )
        taken = {writer: minus(present(changed(api_version)).written, ownership.NOBODYS)}
        self.holdings = ownership.updated(changed, ownership.current(self.versions, self.holdings), taken, self._time)
        self.live = document

    def apply(self, manager: str, config: Mapping[str, Any], *, force: bool = False, api_version: str = V1) -> Applied:
        """A server-side apply. Raises ConflictError."""
        self.tick += 1
        document = {"apiVersion": api_version, **config}
        live = self.versions.converted(self.live, api_version) if self.live else {}
        result = apply(self.versions, live, document, self.holdings, ownership.applier(manager), time=self._time)
        if result.conflicts and not force:
            raise field_conflict_error(result.conflicts)
        self.live, self.holdings = dict(result.document), result.holdings
        return result

    @property
    def content(self) -> dict[str, Any]:
        """The object without its envelope."""
        return {name: value for name, value in self.live.items() if name != "apiVersion"}

    @property
    def shares(self) -> dict[str, dict[str, Any]]:
        """Who holds what: by manager, with `!` after the name of an applier."""
        return {_name(writer): in_order(holding.fields) for writer, holding in self.holdings.items()}

    def holding(self, manager: str) -> ownership.FieldHolding:
        return self.holdings[next(writer for writer in self.holdings if _name(writer) == manager)]

    @property
    def _time(self) -> str:
        return f"2026-11-21T00:{self.tick // 60:02}:{self.tick % 60:02}Z"


def _name(writer: ownership.FieldWriter) -> str:
    return f"{writer.manager}!" if writer.operation is ownership.Operation.APPLY else writer.manager
