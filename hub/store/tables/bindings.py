"""The attested issuer that each cluster name is bound to."""

from sqlalchemy import Connection, bindparam, delete, insert, select

from hub.api.bootstrapcredentials import Binding
from hub.ports import Bindings
from hub.store import schema
from hub.store.engine.instants import from_micros, to_micros
from hub.store.engine.statements import Statement
from machinery.identity import ClusterName

_column = schema.attestations.c
_OF = Statement(select(schema.attestations).where(_column.cluster == bindparam("name")))
_BIND = Statement(insert(schema.attestations))
_RELEASE = Statement(delete(schema.attestations).where(_column.cluster == bindparam("name")))


class SqlBindings(Bindings):
    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def of(self, cluster: ClusterName) -> Binding | None:
        row = _OF.row(self._connection, {"name": cluster})
        if row is None:
            return None
        name, issuer, subject, key, bound_at = row
        return Binding(ClusterName(name), issuer, subject, key, from_micros(bound_at))

    def bind(self, binding: Binding) -> None:
        values = {
            "cluster": binding.cluster,
            "issuer": binding.issuer,
            "subject": binding.subject,
            "key": binding.key,
            "bound_at": to_micros(binding.bound_at),
        }
        _BIND.run(self._connection, values)

    def release(self, cluster: ClusterName) -> None:
        _RELEASE.run(self._connection, {"name": cluster})
