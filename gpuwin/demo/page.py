"""The page that the demo leaves: one HTML file with all of its pictures in it, that needs nothing from elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from html import escape
from pathlib import Path
from typing import Final

from . import pictures
from .busiest import BusiestDay
from .report import NO_DAY, Comparison, cells, duration, hours, sentences

#: What a page of the demo has in it, and hardly anything else: such a file is replaced.
MARK: Final = '<meta name="generator" content="gpuwin demo">'
_HEAD: Final = ("query", "rows of the result", "plain Spark", "gpuwin", "ratio", "most rows of state", "rows equal")
_STYLE: Final = """
:root { color-scheme: light dark;
  --paper: #ffffff; --card: #f5f7f9; --ink: #1b2127; --faint: #56616c; --rule: #d5dbe1;
  --plain: #b45309; --device: #0067a8; --plain-box: #fdeedd; --device-box: #e1f0fa; --good: #17703a; --bad: #b3261e;
  --airport-0: #0067a8; --airport-1: #d98200; --airport-2: #00805c; }
@media (prefers-color-scheme: dark) { :root {
  --paper: #14181c; --card: #1e242a; --ink: #e8ecf0; --faint: #a5b0ba; --rule: #3a434c;
  --plain: #f0a04b; --device: #5ab4f0; --plain-box: #3b2a18; --device-box: #16303f; --good: #6cce8d; --bad: #ff8a80;
  --airport-0: #5ab4f0; --airport-1: #f2b44c; --airport-2: #3fc79a; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
main { max-width: 960px; margin: 0 auto; padding: 32px 20px 64px; }
h1 { font-size: 30px; line-height: 1.2; margin: 0 0 8px; }
h2 { font-size: 21px; margin: 44px 0 6px; }
h3 { font-size: 16px; margin: 22px 0 4px; }
p { margin: 6px 0 12px; max-width: 76ch; }
.faint { color: var(--faint); }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(230px, 1fr)); gap: 14px; margin: 24px 0 12px; }
.figure { background: var(--card); border: 1px solid var(--rule); border-radius: 10px; padding: 14px 18px; }
.figure b { display: block; font-size: 30px; line-height: 1.25; }
.good b { color: var(--good); } .bad b { color: var(--bad); } .fast b { color: var(--device); }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; font-size: 15px; }
th, td { text-align: right; padding: 8px 10px; border-bottom: 1px solid var(--rule); vertical-align: top; }
th:first-child, td:first-child, th:last-child, td:last-child { text-align: left; }
tbody td { white-space: nowrap; } tbody td:last-child { white-space: normal; }
thead th { color: var(--faint); font-weight: 600; }
tbody th { font-weight: 600; min-width: 180px; }
pre { background: var(--card); border: 1px solid var(--rule); border-radius: 8px; padding: 12px 14px; font-size: 13px;
  white-space: pre-wrap; overflow-wrap: anywhere; }
svg { display: block; width: 100%; min-width: 640px; height: auto; font-size: 13px; margin: 4px 0 8px; }
svg text { fill: var(--ink); } svg .tick { fill: var(--faint); font-size: 12px; } svg .strong { font-weight: 600; }
.grid { stroke: var(--rule); } .base { stroke: var(--faint); }
.stop { stroke: var(--plain); stroke-dasharray: 5 4; stroke-width: 1.5; }
.arrow { stroke: var(--faint); stroke-width: 1.5; }
.plain { fill: var(--plain); } .device { fill: var(--device); } .neutral { fill: var(--ink); }
.line { fill: none; stroke-width: 2; } .plain-line { stroke: var(--plain); } .device-line { stroke: var(--device); }
.neutral-line { stroke: var(--ink); }
.box { stroke-width: 1.5; } .plain-box { fill: var(--plain-box); stroke: var(--plain); }
.device-box { fill: var(--device-box); stroke: var(--device); }
.airport-0 { fill: var(--airport-0); } .airport-1 { fill: var(--airport-1); } .airport-2 { fill: var(--airport-2); }
"""


@dataclass(frozen=True)
class Page:
    """Contents of the page; `intro` is about the flights, `machine` about what ran them."""

    intro: str
    machine: str
    when: datetime
    comparisons: tuple[Comparison, ...]
    day: BusiestDay | None


def html(page: Page) -> str:
    """The whole page: style and pictures are in it; no script, and no address of anything else."""
    title = "gpuwin demo: two PySpark queries, on plain Spark and on gpuwin"
    body = [
        f"<h1>{escape(title)}</h1>",
        _p(page.intro),
        f'<p class="faint">{escape(page.machine)}. <time>{page.when:%Y-%m-%d %H:%M %Z}</time></p>',
        f'<div class="figures">{"".join(_figures(page.comparisons))}</div>',
        "<h2>Both sides</h2>",
        _table(page.comparisons),
        *(_p(f"{c.query.title}: {' '.join(sentences(c))}") for c in page.comparisons),
        "<h2>The busiest day, by window</h2>",
        *_busiest(page.day),
        "<h2>Time of each batch</h2>",
        _p("Shorter is better. The first batch of a side also warms up its JVM."),
        *_each(page.comparisons, pictures.batch_times),
        "<h2>State</h2>",
        _p("Plain Spark keeps a row for each key and window; gpuwin one for each key and pane, of which windows are "
           "made when they close. Both report it with each batch."),
        *_each(page.comparisons, pictures.state),
        "<h2>The plan</h2>",
        _p("What stands in Spark's plan for the aggregation; rows go from the bottom up. Sources, expressions, the "
           "shuffle and the sink are Spark's on both sides."),
        *_each(page.comparisons, _plan),
    ]  # fmt: skip
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">{MARK}\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<link rel="icon" href="data:,"><title>{escape(title)}</title>\n<style>{_STYLE}</style></head>\n'
        f"<body><main>\n{chr(10).join(body)}\n</main></body></html>\n"
    )


def write(page: Page, target: Path) -> str:
    """Writes the page, and returns a sentence that says where it is, or why it is nowhere.

    A file of that name which is no page of the demo is left alone.
    """
    advice = "name another file: gpuwin demo --page FILE"
    try:
        if target.exists() and MARK not in target.read_text(errors="replace"):
            return f"{target} is there and is no page of the demo, so the pictures were not written; {advice}"
        target.write_text(html(page), encoding="utf-8")
    except OSError as e:
        return f"The pictures could not be written to {target} ({e.strerror or e}); {advice}"
    return f"The pictures: {target.resolve()}"


def _figures(comparisons: tuple[Comparison, ...]) -> list[str]:
    found = []
    for c in comparisons:
        about = "about " if c.plain.status == "stopped" else ""
        if c.ratio is not None and c.plain_seconds is not None:
            times = f"{about}{duration(c.plain_seconds)} on plain Spark, {duration(c.device.seconds)} on gpuwin"
            ratio = f"{c.ratio:.0f}" if c.ratio >= 10 else f"{c.ratio:.1f}"
            found.append(_figure("fast", f"{about}{ratio} ×", f"{c.query.title}: {times}"))
    right = all(c.right for c in comparisons)
    rows = sum(c.check.rows for c in comparisons if c.check)
    words = "rows of gpuwin compared, all of them equal" if right else "rows compared, NOT all of them right"
    found.append(_figure("good" if right else "bad", f"{rows:,}", words))
    return found


def _figure(kind: str, number: str, words: str) -> str:
    return f'<div class="figure {kind}"><b>{escape(number)}</b>{escape(words)}</div>'


def _table(comparisons: tuple[Comparison, ...]) -> str:
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in _HEAD)
    lines = []
    for c in comparisons:
        title, *rest = cells(c)
        lines.append(f'<tr><th scope="row">{escape(title)}</th>{"".join(f"<td>{escape(x)}</td>" for x in rest)}</tr>')
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{"".join(lines)}</tbody></table></div>'


def _busiest(day: BusiestDay | None) -> list[str]:
    if day is None:
        return [_p(NO_DAY)]
    said = f"{day.title}. Each bar is a window that was emitted: the last {hours(day)} hours, at each hour."
    return [_p(said), f'<div class="wide">{pictures.busiest(day)}</div>']


def _each(comparisons: tuple[Comparison, ...], draw: Callable[[Comparison], str]) -> list[str]:
    return [f'<h3>{escape(c.query.title)}</h3><div class="wide">{draw(c)}</div>' for c in comparisons]


def _plan(c: Comparison) -> str:
    said = c.device.explanation.strip() or "gpuwin did not finish, so there is no plan of it."
    return f"{pictures.plan(c)}<pre>{escape(said)}</pre>"


def _p(text: str) -> str:
    return f"<p>{escape(text)}</p>"
