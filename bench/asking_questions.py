"""Ten questions about a fleet, as an operator asks them at the HTTPS door."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from urllib.parse import urlencode

from hub.api.meta.ordering import Facet
from hub.api.query.query_fields import where_of
from hub.api.query.sorting import groups_of, sort_of
from machinery.meta.objects import Query
from machinery.meta.selectors import parse_field_selector, parse_label_selector

PAGE = 100


@dataclass(frozen=True, slots=True)
class Question:
    """One of them: a page of the clusters that it chooses, or how many there are by some values."""

    name: str
    where: str = ""
    labels: str = ""
    fields: str = ""
    sort_by: str = ""
    group_by: str = ""

    @property
    def is_plain(self) -> bool:
        """A page of all: nothing is chosen, sorted or counted."""
        return not (self.where or self.labels or self.fields or self.sort_by or self.group_by)

    @property
    def facets(self) -> Sequence[Facet]:
        return groups_of(self.group_by)

    def query(self, now: datetime) -> Query:
        return Query(
            labels=parse_label_selector(self.labels).requirements,
            fields=parse_field_selector(self.fields).requirements,
            where=where_of(self.where, now) if self.where else None,
            order=sort_of(self.sort_by) if self.sort_by else None,
        )

    @property
    def parameters(self) -> str:
        """Of the URL."""
        asked: Mapping[str, str] = {
            "where": self.where,
            "labelSelector": self.labels,
            "fieldSelector": self.fields.replace("status.conditions.ManagedClusterConditionAvailable", "status.available"),
            "sortBy": self.sort_by,
            "groupBy": self.group_by,
            "limit": "" if self.group_by else str(PAGE),
        }
        return urlencode({name: value for name, value in asked.items() if value})


QUESTIONS = (
    Question("page"),
    Question("region", labels="region=region-07,env in (dev,prod),!edge"),
    Question("not-available", fields="status.conditions.ManagedClusterConditionAvailable!=True"),
    Question("outdated", where='version < 1.30 && available == "Unknown" && memory > 64Gi'),
    Question("cloud", where='claims.cloud == "gcp" && labels.env == "prod"'),
    Question("in-maintenance", where='"maintenance" in taints'),
    Question("sick-add-on", where='set == "set-03" && addons["search"] == "unhealthy"'),
    Question("silent", where="lastBeat > 5m && agentVersion < 0.3", sort_by="-lastBeat"),
    Question("largest", sort_by="-memory,name"),
    Question("versions", group_by="version"),
)
