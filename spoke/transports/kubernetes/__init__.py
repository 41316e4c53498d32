"""A hub over the Kubernetes API (driver `csr`): the same port as `spoke.transports.grpc`, used as OCM's agent uses its hub.

For our own HTTPS door, a hub of Open Cluster Management, or any kube-apiserver with its CRDs. Not for rules: what is reported,
when to renew and whom to believe is the same for both drivers and known to neither.

    documents   what is sent, and what is read out of what comes back: functions of values
    api         one API server as one identity, its time and its errors
    clusters    ManagedCluster: made while joining, kept later
    requests    CertificateSigningRequests: submitted, followed
    watch       what the hub wants, by list and watch
    session     beats, reports, and the end of it
    client      the port
"""
