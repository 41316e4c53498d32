"""The kube cert agent: fetches the CA of the hub's own Kubernetes cluster.

The hub keeps a Deployment of one pod, which is modelled on a controller-manager pod and has the same mounts, including the
cluster's CA key. The hub executes `print` in this pod and keeps the output in memory. The pod runs this package's `__main__`,
which must stay small: `__main__` and this file may import nothing of the hub.
"""
