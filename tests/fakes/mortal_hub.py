"""A hub that kills itself with -9 at a named moment of issuing: `python -m tests.fakes.mortal_hub MOMENT serve ...`."""

import os
import signal
import sys
from datetime import timedelta
from typing import Any

from hub.__main__ import main
from hub.controllers.issuance import Issuance
from hub.domain.certificate import IssuedCertificate, Purpose
from hub.services import certificates

BEFORE, SIGNED, COMMITTED = "before-the-signature", "after-the-signature", "after-the-commit"


def arm(moment: str) -> None:
    """From now on the first agent's certificate is the end."""
    sign, reconcile = certificates.sign, Issuance.reconcile
    made = False

    def signing(tx: Any, issuer: Any, profile: Any, holder: Any) -> IssuedCertificate:
        nonlocal made
        if profile.purpose is not Purpose.AGENT:
            return sign(tx, issuer, profile, holder)
        if moment == BEFORE:
            die()
        issued = sign(tx, issuer, profile, holder)
        made = True
        if moment == SIGNED:
            die()
        return issued

    async def reconciling(self: Issuance, key: str) -> timedelta | None:
        again = await reconcile(self, key)
        if made and moment == COMMITTED:
            die()
        return again

    certificates.sign = signing
    Issuance.reconcile = reconciling  # type: ignore[method-assign, assignment]


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    arm(sys.argv.pop(1))
    main()
