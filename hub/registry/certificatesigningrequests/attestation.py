"""A cluster's name is bound to the issuer that its first attested registration came from, until the cluster goes."""

from hub.api.bootstrapcredentials.attestation import AttestationError, Attested, Binding, check_binding
from hub.api.bootstrapcredentials.credential import CredentialRecord
from hub.ports import Transaction
from machinery.identity import ClusterName


def bind(tx: Transaction, record: CredentialRecord, cluster: ClusterName, attested: Attested | None) -> None:
    """Binds the name to who is attested, or holds him against who it is bound to. Raises AttestationError.

    A name that is bound is only for who brings a token, whatever the credential demands.
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
