"""gpuwin on Apache Spark: an unchanged PySpark streaming query keeps its window state on the device.

Reached as ``gpuwin.spark``. Importing it imports neither Spark nor Numba.
"""

from gpuwin_spark.aggregate import aggregate
from gpuwin_spark.check_adoption import check_adoption
from gpuwin_spark.configure import configure
from gpuwin_spark.errors import CheckpointError, SparkSetupError
from gpuwin_spark.explain import explain
from gpuwin_spark.give_back_state import give_back_state
from gpuwin_spark.jar import jar_path
from gpuwin_spark.read_state import read_state
from gpuwin_spark.rescale_state import rescale_state

__all__ = [
    "CheckpointError",
    "SparkSetupError",
    "aggregate",
    "check_adoption",
    "configure",
    "explain",
    "give_back_state",
    "jar_path",
    "read_state",
    "rescale_state",
]
