"""The kube-cert-agent: how the CA of the Kubernetes cluster that the hub runs in comes to the hub.

A Deployment of one pod is kept that is shaped after a controller-manager pod and mounts what that mounts, the cluster's CA with
its key among it. The hub executes `print` in it and keeps what it says in memory. The program of that pod is this package's
`__main__`, which must stay small: it imports nothing of the hub, and neither may this file.
"""
