"""Rows of a batch: read, dropped or kept as late, held in a log, put into windows or cells."""
