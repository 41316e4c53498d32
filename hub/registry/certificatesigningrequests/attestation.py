"""Binding of a cluster's name to the issuer of its first attested registration, until the cluster is deleted."""

from hub.api.bootstrapcredentials import AttestationError, Attested, Binding, CredentialRecord, check_binding
from hub.ports import Transaction
from machinery.identity import ClusterName


def bind(tx: Transaction, record: CredentialRecord, cluster: ClusterName, attested: Attested | None) -> None:
    """Bind the name to the attested issuer, or check it against the existing binding. Raises AttestationError.

    A bound name requires an attestation, whatever the credential requires.
    """
    binding = tx.bindings.of(cluster)
    if attested is not None:
        check_binding(binding, attested)
        if binding is None:
            tx.bindings.bind(Binding(cluster, attested.issuer, attested.subject, attested.key, tx.now))
    elif record.bounds.attestation is not None:
        raise AttestationError(f"the bootstrap credential {record.id} demands an attestation, and there is none")
    elif binding is not None:
        raise AttestationError(f'cluster "{cluster}" is bound to issuer {binding.issuer}, and there is no attestation')
