"""The page with the demo's pictures: what is in it, how a browser shows it, and where it is written."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from chromium import show, sizes

from gpuwin.demo import check, page, report
from gpuwin.demo.busiest import BusiestDay, Window
from gpuwin.demo.drawing import Axis
from gpuwin.demo.queries import QUERIES
from gpuwin.demo.runs import Batch, Outcome

WEEK, HOURS = QUERIES.values()
NODES = ("StateStoreSave", "StateStoreRestore", "Expand")
EXPLAINED = "1 of 1 stateful operators on gpuwin\n+ operator 0: GpuWindow [carrier, origin], sliding runs on gpuwin"


def outcome(status: Any, milliseconds: int, batches: int, rows: int, **more: Any) -> Outcome:
    done = [
        Batch(i, 10, milliseconds + 7 * i, (i + 1) * milliseconds / 1000, rows + i, rows * 400, ("gpuwin",))
        for i in range(batches)
    ]
    return Outcome(status, (batches + 0.5) * milliseconds / 1000, tuple(done), **more)


def a_page(*, day: bool = True, week: Outcome | None = None) -> page.Page:
    slow = outcome("stopped", 4_000, 3, 150_000, nodes=NODES)
    fast = outcome("finished", 300, 27, 15_000, explanation=EXPLAINED)
    even = report.Comparison(HOURS, 26, outcome("finished", 700, 27, 8_000, nodes=NODES), fast,
                             check.Check(1_234, None), "Spark's")  # fmt: skip
    stopped = report.Comparison(WEEK, 26, week or slow, fast, check.Check(9_999, None), report.RECOMPUTED,
                                check.Check(77, None))  # fmt: skip
    windows = [Window(f"{h:02}:00", (h, 2 * h, 24 - h), h % 3, h - 8.5 if h != 5 else None) for h in range(1, 25)]
    busiest = BusiestDay(datetime(2013, 12, 2), 1_001, HOURS.size, ("EWR", "JFK", "LGA"), tuple(windows))
    when = datetime(2026, 11, 22, 12, 0, tzinfo=UTC)
    return page.Page("Flights & <more>.", "Spark 4.3.0", when, (stopped, even), busiest if day else None)


class Reader(HTMLParser):
    """What a page is made of: its elements with their attributes, and which were left open."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in ("meta", "link"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_needs_nothing_from_elsewhere() -> None:
    text = page.html(a_page())
    read = Reader(text)
    assert read.open == []
    assert not {"script", "img", "iframe", "object"} & {tag for tag, _ in read.elements}
    links = [value for _, attributes in read.elements for name, value in attributes.items() if name in ("src", "href")]
    assert links == ["data:,"]
    assert not re.search(r"https?:|url\(|@import", text)
    assert [tag for tag, _ in read.elements].count("svg") == 7
    assert "Flights &amp; &lt;more&gt;." in text


def test_it_says_what_was_measured() -> None:
    text = re.sub(r"<[^>]+>", "|", page.html(a_page()))
    for words in ("about 13 ×", "Plain Spark had done 3 of 26 batches when it was stopped after 14 s", "11,233",
                  "rows of gpuwin compared, all of them equal", "plain Spark: median 4.01 s", "Monday 2 December 2013",
                  "Expand (each row 2,016 times)", "GpuWindow [carrier, origin]", "MiB", "seconds", "minutes",
                  "flights"):  # fmt: skip
        assert words in text, words


@pytest.mark.parametrize("dark", [False, True])
def test_a_browser_shows_all_of_it(dark: bool, tmp_path: Path) -> None:
    file = tmp_path / "demo.html"
    file.write_text(page.html(a_page()), encoding="utf-8")
    shown = show(file, tmp_path, dark=dark)
    assert shown.console == ()
    assert len(sizes(shown.dom)) == 7
    assert all(width > 600 and height > 150 for width, height in sizes(shown.dom))
    assert 'data-outside="yes"' not in shown.dom, "a text is cut off"
    paper, plain, device = (0x14181C, 0xF0A04B, 0x5AB4F0) if dark else (0xFFFFFF, 0xB45309, 0x0067A8)
    assert shown.near(colour(paper), 0) > shown.pixels[:, :, 0].size // 2
    assert shown.near(colour(plain)) > 2_000
    assert shown.near(colour(device)) > 2_000


def colour(number: int) -> tuple[int, int, int]:
    return number >> 16, number >> 8 & 255, number & 255


def test_a_narrow_window_scrolls_pictures_and_not_the_page(tmp_path: Path) -> None:
    file = tmp_path / "demo.html"
    file.write_text(page.html(a_page()), encoding="utf-8")
    shown = show(file, tmp_path, width=520)
    found = re.search(r'data-width="(\d+) of (\d+)"', shown.dom)
    assert found is not None
    assert int(found[1]) <= int(found[2])


def luminance(number: int) -> float:
    """Of a colour, after WCAG 2."""
    parts = [c / 255 for c in colour(number)]
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_colours_can_be_told_from_the_paper() -> None:
    style = re.search(r"<style>(.*?)</style>", page.html(a_page()), re.DOTALL)
    assert style is not None
    schemes = [dict(re.findall(r"--([\w-]+): #(\w{6})", part)) for part in style[1].split("@media")]
    assert len(schemes) == 2
    for scheme in schemes:
        numbers = {name: luminance(int(code, 16)) for name, code in scheme.items()}

        def contrast(a: str, b: str, known: dict[str, float] = numbers) -> float:
            low, high = sorted((known[a], known[b]))
            return (high + 0.05) / (low + 0.05)

        for paper in ("paper", "card"):
            for ink in ("ink", "faint", "device", "good", "bad"):
                assert contrast(ink, paper) >= 4.5, (ink, paper)
        for shape in ("plain", "device", "airport-0", "airport-1", "airport-2"):
            assert contrast(shape, "paper") >= 2.9, shape
        for box in ("plain-box", "device-box"):
            assert contrast("ink", box) >= 7, box


def test_sides_that_failed_or_did_nothing_have_a_page_too() -> None:
    failed = Outcome("failed", 0.0, (), message="Oh.")
    text = page.html(a_page(day=False, week=failed))
    assert Reader(text).open == []
    assert "Plain Spark failed. Oh." in text
    assert "no batch ended" in text
    assert "No batch ended, so its plan is not known." in text
    assert "there is no day to show" in text


def test_an_axis_has_round_numbers_around_all_values() -> None:
    assert Axis.of([3.9, 1.0]).ticks == (0.0, 1.0, 2.0, 3.0, 4.0)
    assert Axis.of([-1.2, 17.0]).ticks == (-5.0, 0.0, 5.0, 10.0, 15.0, 20.0)
    assert Axis.of([]).ticks == (0.0, 1.0)
    assert [Axis.of([0.9]).label(t) for t in Axis.of([0.9]).ticks] == ["0.00", "0.25", "0.50", "0.75", "1.00"]
    assert [Axis.of([4_000.0]).label(t) for t in Axis.of([4_000.0]).ticks[-1:]] == ["4,000"]


def test_the_page_replaces_an_older_one_and_nothing_else(tmp_path: Path) -> None:
    target = tmp_path / "demo.html"
    assert page.write(a_page(), target) == f"The pictures: {target}"
    first = target.read_text(encoding="utf-8")
    assert page.write(a_page(day=False), target) == f"The pictures: {target}"
    assert target.read_text(encoding="utf-8") != first
    target.write_text("<p>mine</p>")
    assert "is no page of the demo, so the pictures were not written" in page.write(a_page(), target)
    assert target.read_text() == "<p>mine</p>"


def test_a_page_that_cannot_be_written_is_said_in_a_sentence(tmp_path: Path) -> None:
    said = page.write(a_page(), tmp_path / "missing" / "demo.html")
    assert said == (
        f"The pictures could not be written to {tmp_path}/missing/demo.html (No such file or directory); "
        "name another file: gpuwin demo --page FILE"
    )
    assert "(Is a directory)" in page.write(a_page(), tmp_path)
