"""Use cases about certificate records."""

from hub.domain.certificate import CertificateRecord
from hub.ports import Transaction
from machinery.identity import ClusterName, SerialNumber


def resolve(tx: Transaction, serial: SerialNumber) -> CertificateRecord | None:
    """The record of a certificate; None: this hub never signed it, so it opens nothing."""
    return tx.certificates.by_serial(serial)


def revoke_cluster(tx: Transaction, cluster: ClusterName, reason: str) -> int:
    """Revokes every open certificate of a cluster; returns how many."""
    raise NotImplementedError
