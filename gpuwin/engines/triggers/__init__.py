"""Engines that keep a ledger per key and window: triggers, lateness row by row, discarding and retracting."""
