"""Engines that keep a state per key and window: triggers, lateness row by row, discarding and retracting."""
