"""gpuwin for PySpark: ``gpuwin.spark`` hands these names on."""

from .configure import configure
from .explain import explain
from .jar import JarError, jar_path
from .java import JavaError

__all__ = ["JarError", "JavaError", "configure", "explain", "jar_path"]
