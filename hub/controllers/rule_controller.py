"""Base class of controllers in which rules decide instead of an operator: those of the settings and ApprovalRules."""

from collections.abc import Callable, Sequence

from hub.api.approvalrules import ApprovalRule
from hub.controllers.batch import Batched, Committed
from hub.ports import Store, Transaction
from hub.registry.approvalrules import approval as approving
from hub.registry.approvalrules.approval import ApprovalOutcome

Record = Callable[[Transaction, ApprovalOutcome], ApprovalOutcome]


def unrecorded(_tx: Transaction, outcome: ApprovalOutcome) -> ApprovalOutcome:
    """For hubs that do not audit decisions."""
    return outcome


class Ruled(Batched):
    """`globs`: cluster names that need no operator. `are_there_rules`: whether ApprovalRules may exist.

    `record`: writes the audit records of each outcome in its transaction.
    """

    def __init__(
        self,
        store: Store,
        globs: tuple[str, ...],
        *,
        are_there_rules: Callable[[], bool] = lambda: False,
        committed: Committed | None = None,
        record: Record = unrecorded,
    ) -> None:
        super().__init__(store, committed)
        self._record = record
        self._globs = globs
        self._are_there_rules = are_there_rules

    @property
    def has_rules(self) -> bool:
        return bool(self._globs) or self._are_there_rules()

    def rules_in(self, tx: Transaction) -> tuple[ApprovalRule, ...]:
        """The rules; the store is read only if there may be any."""
        return approving.rules_in(tx, self._globs) if self.has_rules else ()

    def _steps(self, tx: Transaction, names: Sequence[str]) -> list[object]:
        results = super()._steps(tx, names)
        return [self._record(tx, result) if isinstance(result, ApprovalOutcome) else result for result in results]
