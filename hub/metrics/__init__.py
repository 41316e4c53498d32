"""What the hub tells Prometheus: each metric declared beside the function that reads it from the part that counts."""

from hub.metrics.all_metrics import METRICS, Counted, add_metrics
from hub.metrics.listener import told_metrics

__all__ = ["METRICS", "Counted", "add_metrics", "told_metrics"]
