"""Whether an address can stand in a kubeconfig for another machine."""

import ipaddress

SETTINGS = {"grpc": ("--grpc-advertised", "--grpc-server"), "https": ("--https-advertised", "--server")}


def refusal(host: str, port_name: str, *, pod_addresses: tuple[str, ...] = ()) -> str | None:
    """Why `host` will not do for another machine, with the setting and the flag that change it; None: it will.

    `port_name` is `grpc` or `https`; `pod_addresses` are those the hub says it has as a pod.
    """
    what = _trouble(host, pod_addresses)
    if what is None:
        return None
    setting, flag = SETTINGS[port_name]
    return (
        f"the hub's {port_name} address {host} is {what}, which no other machine can reach: "
        f"start the hub with {setting} HOST:PORT, give {flag} here, or --allow-loopback for an agent on this machine"
    )


def _trouble(host: str, pod_addresses: tuple[str, ...]) -> str | None:
    if host in {"", "localhost"} or host.endswith(".localhost"):
        return "a loopback address"
    if host.endswith((".svc", ".cluster.local")):
        return "a name inside a Kubernetes cluster"
    try:
        address = ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return None
    kinds = (
        ("a loopback address", address.is_loopback),
        ("the unspecified address", address.is_unspecified),
        ("a link-local address", address.is_link_local),
        ("a pod address", address in {ipaddress.ip_address(pod) for pod in pod_addresses}),
    )
    return next((kind for kind, applies in kinds if applies), None)
