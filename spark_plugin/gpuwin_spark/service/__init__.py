"""The device service: one process per executor, holding window state between micro-batches."""
