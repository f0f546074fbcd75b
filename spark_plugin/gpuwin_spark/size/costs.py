"""Measured costs, by which an estimate multiplies the quantities of a load: seconds of processor time, and bytes.

They come from ``benchmarks/scaling.py``, which fits them to queries that were run, and checks them with others.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib.resources import files


@dataclass(frozen=True)
class Costs:
    """Costs of quantities (`estimate.quantities`), by their names, for each figure of an estimate.

    Attributes:
        jvm_seconds: processor time of Spark's tasks in a batch.
        service_seconds: processor time of the device service on the CPU in a batch.
        shuffle_bytes: of a batch, as Spark writes them, compressed.
        log_bytes: of a batch, into the state store, where no segments are merged.
        service_memory: bytes that a service has resident at most.
        measured: on what, and when.
    """

    jvm_seconds: Mapping[str, float]
    service_seconds: Mapping[str, float]
    shuffle_bytes: Mapping[str, float]
    log_bytes: Mapping[str, float]
    service_memory: Mapping[str, float]
    measured: str

    def as_json(self) -> str:
        """The file that `measured_costs` reads."""
        return json.dumps(asdict(self), indent=1) + "\n"


def measured_costs() -> Costs:
    """The costs that come with this version."""
    return Costs(**json.loads((files(__package__) / "measured.json").read_text()))
