"""Configured authenticators of the operators' door besides the hub's own credentials."""

from collections.abc import Awaitable, Callable, Sequence

from hub.composition.access import Access
from hub.composition.certificates import CertificateSection
from hub.composition.context import BuildContext
from hub.https_door.callers.aggregation import Aggregation
from hub.https_door.callers.authenticator_chain import ExternalAuthenticator
from hub.https_door.callers.client_ca import ClientAuthorityFile

ExternalAuthenticators = Callable[[BuildContext, CertificateSection, Access], Awaitable[Sequence[ExternalAuthenticator]]]


async def external_authenticators(
    context: BuildContext, certificates: CertificateSection, access: Access
) -> Sequence[ExternalAuthenticator]:
    """Those that are enabled: client CAs in a file, the front proxy of a kube-apiserver, the CA of the host cluster."""
    settings, serving = context.settings, certificates.doors.serving
    files = (
        ()
        if settings.client_ca_file is None
        else (ClientAuthorityFile(settings.client_ca_file, settings.client_ca_groups, serving, context.clock),)
    )
    host = certificates.host.external_authenticators(serving, access.peers.identify, access.peers.former)
    return (*files, *await _aggregation(context, certificates), *host)


async def _aggregation(context: BuildContext, certificates: CertificateSection) -> Sequence[ExternalAuthenticator]:
    """Authenticates the users of a kube-apiserver that aggregates this hub's API."""
    settings = context.settings
    if settings.management_cluster is None:
        return ()
    from hub.management import ManagementCluster  # noqa: PLC0415 - 60 MB that only such a hub needs

    namespace, _, name = (settings.aggregation_service or "").partition("/")
    connected = await ManagementCluster.connected(settings.management_cluster, (namespace, name) if name else None)
    cluster = await context.stack.enter_async_context(connected)
    return (Aggregation(cluster, certificates.doors.serving, context.clock),)
