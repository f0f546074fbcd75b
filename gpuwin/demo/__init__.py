"""``gpuwin demo``: two unchanged PySpark queries over real flights, on plain Spark and on gpuwin."""

from gpuwin.demo.flights import DemoError

__all__ = ["DemoError"]
