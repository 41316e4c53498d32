"""What the hub tells Prometheus: each metric declared beside the function that reads it from the part that counts."""

from hub.metrics.everything import METRICS, Counted, add_metrics
from hub.metrics.listening import told_metrics

__all__ = ["METRICS", "Counted", "add_metrics", "told_metrics"]
