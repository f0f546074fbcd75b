"""States with their arrays in device memory."""
