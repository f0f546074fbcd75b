"""Kills the processes of a streaming query at each step of a batch, and compares what came out with the oracle.

    python -m tests.chaos --kills 200 --seed 7 --report benchmarks/results/kills.json

The harnesses of `tests/spark` and `tests/pipelines` and the oracle are used from where they are.
"""

import sys
from pathlib import Path

for _folder in (Path(__file__).parents[1] / name for name in ("", "spark", "pipelines")):
    if str(_folder) not in sys.path:
        sys.path.append(str(_folder))
