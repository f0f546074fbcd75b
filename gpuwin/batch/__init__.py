"""The rows of a batch: taken in, checked, given windows and cells, or put aside as late."""
