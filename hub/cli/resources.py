"""The kinds that hubctl knows, by the names people give them."""

from dataclasses import dataclass

from hub.cli.errors import CliError
from machinery.product import GROUP_SUFFIX


@dataclass(frozen=True, slots=True)
class Kind:
    """`path` is the collection's; `wide` shows the wide columns unless told otherwise."""

    names: tuple[str, ...]
    path: str
    noun: str
    wide: bool = False

    def object_path(self, name: str) -> str:
        return f"{self.path}/{name}"


CLUSTERS = Kind(
    ("clusters", "cluster", "managedclusters", "managedcluster", "mcl", "mcls"),
    f"/apis/cluster.{GROUP_SUFFIX}/v1/managedclusters",
    "cluster",
    wide=True,
)
REQUESTS = Kind(
    ("csr", "csrs", "certificatesigningrequests", "certificatesigningrequest"),
    "/apis/certificates.k8s.io/v1/certificatesigningrequests",
    "certificate request",
)
CREDENTIALS = Kind(
    ("bootstrap-credentials", "bootstrap-credential", "bootstrapcredentials", "bootstrapcredential"),
    f"/apis/hub.{GROUP_SUFFIX}/v1alpha1/bootstrapcredentials",
    "bootstrap credential",
)
ADDONS = Kind(
    ("addons", "addon", "managedclusteraddons", "managedclusteraddon", "mca"),
    f"/apis/addon.{GROUP_SUFFIX}/v1beta1/managedclusteraddons",
    "add-on",
)
LEASES = Kind(("leases", "lease"), "/apis/coordination.k8s.io/v1/leases", "lease")
ALL = (CLUSTERS, REQUESTS, CREDENTIALS, ADDONS, LEASES)


def kind_named(word: str) -> Kind:
    """Raises CliError with the words that are known."""
    for kind in ALL:
        if word.lower() in kind.names:
            return kind
    known = ", ".join(kind.names[0] for kind in ALL)
    raise CliError(f'there is no kind "{word}": use one of {known}', exit_code=2)
