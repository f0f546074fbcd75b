"""Vocabulary of a user: windows, aggregates, triggers, watermarks and the rest, frozen and without behaviour."""
