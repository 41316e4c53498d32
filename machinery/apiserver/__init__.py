"""A Kubernetes-style API server. It stores objects through an interface, the class `storage.Storage`."""
