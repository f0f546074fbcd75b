"""The states of this package with their arrays in device memory."""
