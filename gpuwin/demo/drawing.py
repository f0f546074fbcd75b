"""SVG drawings as text: shapes, a title for readers of the screen, and axes with round numbers.

Colours are classes of the page's style sheet, so that a drawing is light or dark with the page.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from itertools import pairwise
from typing import Final

Point = tuple[float, float]
_TICKS: Final = 4


@dataclass(frozen=True)
class Axis:
    """A scale of round numbers, which stand beside it, that has 0 and some values on it."""

    ticks: tuple[float, ...]

    @staticmethod
    def of(values: Sequence[float]) -> Axis:
        most, least = max([0.0, *values]), min([0.0, *values])
        if most == least:
            return Axis((0.0, 1.0))
        rough = (most - least) / _TICKS
        power = 10.0 ** math.floor(math.log10(rough))
        step = next(s * power for s in (1, 2, 2.5, 5, 10) if s * power >= rough * 0.999)
        count = range(math.floor(least / step + 1e-9), math.ceil(most / step - 1e-9) + 1)
        return Axis(tuple(i * step for i in count))

    def share(self, value: float) -> float:
        """Height of a value on the scale, from 0 to 1."""
        return (value - self.ticks[0]) / (self.ticks[-1] - self.ticks[0])

    def label(self, tick: float) -> str:
        """The number beside a line, with as many digits as the steps need."""
        step = self.ticks[1] - self.ticks[0]
        digits = next(d for d in range(12) if math.isclose(round(step, d), step, rel_tol=1e-6))
        return f"{tick:,.{digits}f}"


@dataclass(frozen=True)
class Frame:
    """The rectangle that values are drawn in."""

    left: float
    top: float
    width: float
    height: float

    @property
    def bottom(self) -> float:
        return self.top + self.height

    def y(self, value: float, axis: Axis) -> float:
        return self.bottom - axis.share(value) * self.height


@dataclass
class Drawing:
    """An SVG picture that grows; `title` and `description` are for those who cannot see it."""

    width: int
    height: int
    title: str
    description: str
    _parts: list[str] = field(default_factory=list)

    def rect(self, x: float, y: float, width: float, height: float, kind: str, *, round_by: float = 0) -> None:
        corner = f' rx="{round_by:g}"' if round_by else ""
        self._parts.append(
            f'<rect class="{kind}" x="{x:.1f}" y="{y:.1f}" width="{max(width, 0):.1f}" '
            f'height="{max(height, 0):.1f}"{corner}/>'
        )

    def line(self, a: Point, b: Point, kind: str) -> None:
        self._parts.append(f'<line class="{kind}" x1="{a[0]:.1f}" y1="{a[1]:.1f}" x2="{b[0]:.1f}" y2="{b[1]:.1f}"/>')

    def path(self, points: Sequence[Point], kind: str) -> None:
        """A line through points, and a dot at each."""
        if len(points) > 1:
            d = " ".join(f"{'M' if i == 0 else 'L'}{x:.1f} {y:.1f}" for i, (x, y) in enumerate(points))
            self._parts.append(f'<path class="line {kind}-line" d="{d}"/>')
        for x, y in points:
            self._parts.append(f'<circle class="{kind}" cx="{x:.1f}" cy="{y:.1f}" r="2.6"/>')

    def arrow(self, a: Point, b: Point) -> None:
        """A vertical arrow from a to b."""
        self.line(a, b, "arrow")
        tip = 6 if b[1] > a[1] else -6
        self.line((b[0] - 4, b[1] - tip), b, "arrow")
        self.line((b[0] + 4, b[1] - tip), b, "arrow")

    def text(self, x: float, y: float, text: str, kind: str = "", anchor: str = "start") -> None:
        self._parts.append(f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>')

    def axis(self, frame: Frame, axis: Axis, unit: str) -> None:
        """Lines at round numbers, the numbers, and their unit above them."""
        for tick in axis.ticks:
            y = frame.y(tick, axis)
            self.line((frame.left, y), (frame.left + frame.width, y), "grid" if tick else "base")
            self.text(frame.left - 8, y + 4, axis.label(tick), "tick", "end")
        self.text(frame.left - 8, frame.top - 12, unit, "tick", "end")

    def legend(self, x: float, y: float, entries: Sequence[tuple[str, str]]) -> None:
        """Squares of (kind, words), from left to right."""
        for kind, words in entries:
            self.rect(x, y - 10, 12, 12, kind, round_by=2)
            self.text(x + 18, y, words)
            x += 18 + 7.2 * len(words) + 24

    def svg(self) -> str:
        return (
            f'<svg role="img" viewBox="0 0 {self.width} {self.height}" width="{self.width}" height="{self.height}">'
            f"<title>{escape(self.title)}</title><desc>{escape(self.description)}</desc>{''.join(self._parts)}</svg>"
        )


def runs_of(points: Sequence[Point | None]) -> list[list[Point]]:
    """The stretches of points without a gap."""
    found: list[list[Point]] = [[]]
    for before, point in pairwise([None, *points]):
        if point is None:
            continue
        if before is None and found[-1]:
            found.append([])
        found[-1].append(point)
    return [f for f in found if f]
