"""The rows of a batch: dropped or kept as late, waiting in the log, given windows or cells."""
