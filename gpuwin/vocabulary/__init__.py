"""What a user says: windows, aggregates, triggers, watermarks and the rest, frozen and without behaviour."""
