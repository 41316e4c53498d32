"""Adapters: the hub kubeconfig secrets in the management cluster, and the directory they are mirrored to."""

from spoke.secrets.directory import AtomicDirectory
from spoke.secrets.kubernetes_secrets import KubeSecrets, OwnedSecrets
from spoke.secrets.leftovers import KubeRemains

__all__ = ["AtomicDirectory", "KubeRemains", "KubeSecrets", "OwnedSecrets"]
