"""The kubeconfig files that hubctl reads."""
