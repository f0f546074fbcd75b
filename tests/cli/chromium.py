"""A headless Chromium that shows a page: what it said, the page as it stood then, and a screenshot as an array."""

from __future__ import annotations

import re
import shutil
import subprocess
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

#: Writes into the page how large each picture is drawn, and which of its texts is not wholly inside.
MEASURE = """
<script>
for (const svg of document.querySelectorAll("svg")) {
  const room = svg.getBoundingClientRect();
  svg.setAttribute("data-size", Math.round(room.width) + "x" + Math.round(room.height));
  for (const text of svg.querySelectorAll("text")) {
    const box = text.getBoundingClientRect();
    const inside = box.left >= room.left - 1 && box.right <= room.right + 1 &&
      box.top >= room.top - 1 && box.bottom <= room.bottom + 1;
    if (!inside || !box.width) text.setAttribute("data-outside", "yes");
  }
}
document.body.setAttribute("data-width", document.documentElement.scrollWidth + " of " + window.innerWidth);
</script>
"""


@dataclass(frozen=True)
class Shown:
    """A page that was shown: `dom` with what `MEASURE` added, `console` lines, `pixels` uint8[height, width, 3]."""

    dom: str
    console: tuple[str, ...]
    pixels: np.ndarray

    def near(self, colour: tuple[int, int, int], within: int = 6) -> int:
        """How many pixels have about this colour."""
        distance = np.abs(self.pixels.astype(int) - np.array(colour)).max(axis=2)
        return int(np.count_nonzero(distance <= within))


def show(page: Path, folder: Path, *, dark: bool = False, width: int = 1000, height: int = 3600) -> Shown:
    """Shows a page; skips the test where there is no Chromium."""
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if browser is None:
        pytest.skip("there is no chromium, chromium-browser or google-chrome on PATH to look at the page with")
    measured = folder / "measured.html"
    measured.write_text(page.read_text(encoding="utf-8").replace("</body>", MEASURE + "</body>"), encoding="utf-8")
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--enable-logging=stderr"]
    options += [f"--user-data-dir={folder / 'profile'}", f"--window-size={width},{height}"]
    options += [f"--blink-settings=preferredColorScheme={0 if dark else 1}"]
    target = folder / "screen.png"
    dumped = _run([browser, *options, "--dump-dom", measured.as_uri()])
    shot = _run([browser, *options, f"--screenshot={target}", page.as_uri()])
    said = [line for run in (dumped, shot) for line in run.stderr.splitlines() if "CONSOLE" in line]
    return Shown(dumped.stdout, tuple(said), read_png(target.read_bytes()))


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    return done


def read_png(data: bytes) -> np.ndarray:
    """The pixels (uint8[height, width, 3]) of a PNG of 8 bits a channel, with or without alpha, not interlaced."""
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    at, header, packed = 8, b"", b""
    while at < len(data):
        size = int.from_bytes(data[at : at + 4], "big")
        kind, content = data[at + 4 : at + 8], data[at + 8 : at + 8 + size]
        header, packed = (content, packed) if kind == b"IHDR" else (header, packed + content * (kind == b"IDAT"))
        at += 12 + size
    width, height = (int.from_bytes(header[i : i + 4], "big") for i in (0, 4))
    depth, colour, interlaced = header[8], header[9], header[12]
    assert (depth, interlaced) == (8, 0)
    channels = {2: 3, 6: 4}[colour]
    lines = np.frombuffer(zlib.decompress(packed), np.uint8).reshape(height, 1 + width * channels)
    out = np.zeros((height, width, channels), np.uint8)
    above = np.zeros((width, channels), np.uint8)
    for row in range(height):
        line = lines[row, 1:].reshape(width, channels)
        above = out[row] = _unfiltered(int(lines[row, 0]), line, above)
    return out[:, :, :3]


def _unfiltered(kind: int, line: np.ndarray, above: np.ndarray) -> np.ndarray:
    """A line of pixels, from its differences to what is left of it and above it."""
    if kind == 0:
        return line
    if kind == 1:
        return np.cumsum(line, axis=0, dtype=np.uint8)
    if kind == 2:
        return line + above
    out = np.zeros_like(line)
    for c in range(line.shape[1]):
        left = corner = 0
        values = []
        for x, up in zip(line[:, c].tolist(), above[:, c].tolist(), strict=True):
            if kind == 3:
                guess = (left + up) // 2
            else:
                near = [abs(up - corner), abs(left - corner), abs(left + up - 2 * corner)]
                guess = (left, up, corner)[near.index(min(near))]
            left, corner = (x + guess) & 255, up
            values.append(left)
        out[:, c] = values
    return out


def sizes(dom: str) -> list[tuple[int, int]]:
    """The width and height in pixels of each picture, as drawn."""
    return [(int(w), int(h)) for w, h in re.findall(r'data-size="(\d+)x(\d+)"', dom)]
