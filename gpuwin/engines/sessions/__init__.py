"""Engines of sessions that are emitted when they close, when they change, or after each row."""
