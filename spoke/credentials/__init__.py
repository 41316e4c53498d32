"""Adapters: the hub kubeconfig secrets in the management cluster, and the directory they are mirrored to."""

from spoke.credentials.directory import AtomicDirectory
from spoke.credentials.remains import KubeRemains
from spoke.credentials.secrets import KubeSecrets, OwnedSecrets

__all__ = ["AtomicDirectory", "KubeRemains", "KubeSecrets", "OwnedSecrets"]
