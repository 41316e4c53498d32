"""The write queue and its transactions."""
