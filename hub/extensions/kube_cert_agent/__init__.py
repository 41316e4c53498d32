"""The kube cert agent: fetches the CA of the hub's own Kubernetes cluster.

The hub keeps a Deployment of one pod that is modelled on a controller-manager pod and has its mounts, including the cluster's
CA key. The hub executes `print` in it and keeps the output in memory. The program of that pod is this package's `__main__`,
which must stay small: neither it nor this file may import anything of the hub.
"""
