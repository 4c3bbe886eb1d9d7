"""A chart of operations per second of each contender, as bars on a logarithmic scale, for the README and the docs.

It is written as text: an SVG is small, sharp at every size and the same bytes for the same figures. Its colours
follow the reader's, light or dark, and its letters are those that the reader has.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Final

from msgspec import Struct

from benchmarks.section import OURS, Figures, Section

_WIDTH: Final = 760
_LEFT, _RIGHT = 176, 52  # for names, and for the figures at the ends of bars
_PLOT: Final = _WIDTH - _LEFT - _RIGHT
_TOP: Final = 66
_HEADING, _GAP, _BAR, _ROW_GAP = 38, 16, 10, 6
_CAPTION_CHARS: Final = 120

_STYLE: Final = """
    text { font: 12px system-ui, -apple-system, 'Segoe UI', sans-serif; fill: #1f2328; }
    .title { font-size: 16px; font-weight: 600; }
    .heading, .ours { font-weight: 600; }
    .small { font-size: 10px; fill: #59636e; }
    .grid { stroke: #d1d9e0; stroke-width: 1; }
    .bar0 { fill: #9aa4af; } .bar1 { fill: #c4ccd4; } .bar2 { fill: #6e7781; }
    .ours0 { fill: #0969da; } .ours1 { fill: #6cb0f7; } .ours2 { fill: #0a3069; }
    @media (prefers-color-scheme: dark) {
      text { fill: #e6edf3; }
      .small { fill: #9198a1; }
      .grid { stroke: #3d444d; }
      .bar0 { fill: #7d8792; } .bar1 { fill: #565f69; } .bar2 { fill: #aab4be; }
      .ours0 { fill: #4493f8; } .ours1 { fill: #2b68b5; } .ours2 { fill: #9ecbff; }
    }
"""


class Panel(Struct, frozen=True):
    """A group of bars: for each contender one bar for each work. `works` maps words of the legend to works.

    The same word has the same colour in all panels. `without` names contenders that do something else there, and are
    left out.
    """

    heading: str
    works: Mapping[str, str]
    without: frozenset[str] = frozenset()


class Scale(Struct, frozen=True):
    """A logarithmic scale from one power of ten to another."""

    low: int
    high: int

    def x(self, value: float) -> float:
        share = (math.log10(value) - self.low) / (self.high - self.low)
        return _LEFT + _PLOT * share

    def powers(self) -> Iterator[int]:
        yield from (10**power for power in range(self.low, self.high + 1))


def drawn(title: str, panels: Sequence[Panel], sections: Sequence[Section], notes: Sequence[str] = ()) -> str:
    """Return the SVG. A panel without figures is left out; raise `ValueError` if all are."""
    wanted = {work for panel in panels for work in panel.works.values()}
    drawn_from = [section for section in sections if section.unit == "/s" and wanted & {*_works(section)}]
    figures: dict[tuple[str, str], Figures] = {}
    for section in drawn_from:  # the first one that has a work: a later one measures it under other conditions
        for each in section.figures:
            if each.work in wanted and each.median > 0:
                figures.setdefault((each.work, each.contender), each)
    if not figures:
        raise ValueError("there is nothing to draw: none of these works was measured")
    shown = [panel for panel in panels if {*panel.works.values()} & {work for work, _ in figures}]
    medians = [each.median for each in figures.values()]
    low = math.floor(math.log10(min(medians)))
    scale = Scale(low, max(low + 1, math.ceil(math.log10(max(medians)))))
    body: list[str] = []
    top = _TOP
    colours = {label: number for number, label in enumerate(_labels(shown))}
    for panel in shown:
        lines, top = _panel(panel, figures, scale, top, colours)
        body += lines
    absent = dict.fromkeys(name for section in drawn_from for name in section.absent)
    footer = [*notes, *([f"Absent: {', '.join(absent)}"] if absent else [])]
    for line in footer:
        top += 16
        body.append(_text(16, top, line[:_CAPTION_CHARS], "small"))
    described = "; ".join(_described(panel, figures) for panel in shown)
    size = f'viewBox="0 0 {_WIDTH} {top + 16}" width="{_WIDTH}" height="{top + 16}"'
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-labelledby="title desc">',
            f'  <title id="title">{escape(title)}</title>',
            f'  <desc id="desc">{escape(described)}</desc>',
            f"  <style>{_STYLE}  </style>",
            *(f"  {line}" for line in (*_header(title, shown), *body)),
            "</svg>\n",
        ]
    )


def _works(section: Section) -> Iterator[str]:
    return (each.work for each in section.figures)


def _header(title: str, panels: Sequence[Panel]) -> Iterator[str]:
    yield _text(16, 26, title, "title")
    x = 16
    for number, label in enumerate(_labels(panels)):
        for kind in ("ours", "bar"):
            yield f'<rect class="{kind}{number}" x="{x}" y="37" width="10" height="10" rx="2"/>'
            x += 13
        yield _text(x + 3, 46, label, "small")
        x += 16 + 7 * len(label)
    yield _text(x, 46, "operations a second, all clients together; each line is ten times the one before", "small")


def _labels(panels: Sequence[Panel]) -> Sequence[str]:
    """Return the words of the legend, in the order of their colours."""
    return [*dict.fromkeys(label for panel in panels for label in panel.works)]


def _panel(
    panel: Panel, figures: Mapping[tuple[str, str], Figures], scale: Scale, top: int, colours: Mapping[str, int]
) -> tuple[list[str], int]:
    """Return the SVG lines of a panel, and its bottom edge."""
    compared = (contender for work, contender in figures if work in panel.works.values())
    contenders = [each for each in dict.fromkeys(compared) if each not in panel.without]
    row = _BAR * len(panel.works) + _ROW_GAP
    first, bottom = top + _HEADING, top + _HEADING + row * len(contenders)
    lines = [_text(16, top + 14, panel.heading, "heading")]
    for power in scale.powers():
        x = scale.x(power)
        lines.append(f'<line class="grid" x1="{x:.1f}" y1="{first - 4}" x2="{x:.1f}" y2="{bottom}"/>')
        lines.append(_text(x, first - 8, _short(power), "small", "middle"))
    for number, contender in enumerate(contenders):
        y = first + row * number
        is_ours = contender.startswith(OURS)
        lines.append(_text(_LEFT - 8, y + (row - _ROW_GAP) / 2 + 4, contender, "ours" if is_ours else "", "end"))
        for index, (label, work) in enumerate(panel.works.items()):
            if each := figures.get((work, contender)):
                x, kind = scale.x(each.median), "ours" if is_ours else "bar"
                lines.append(
                    f'<rect class="{kind}{colours[label]}" x="{_LEFT}" y="{y + index * _BAR}" '
                    f'width="{x - _LEFT:.1f}" height="{_BAR - 1}" rx="1"/>'
                )
                lines.append(_text(x + 4, y + index * _BAR + 8, _short(each.median), "small"))
    return lines, bottom + _GAP


def _described(panel: Panel, figures: Mapping[tuple[str, str], Figures]) -> str:
    """Return a description of the chart for screen readers."""
    found = (
        f"{contender}, {label}: {_short(each.median)} a second"
        for label, named in panel.works.items()
        for (work, contender), each in figures.items()
        if work == named and contender not in panel.without
    )
    return f"{panel.heading}: {', '.join(found)}"


def _text(x: float, y: float, content: str, style: str = "", anchor: str = "start") -> str:
    attributes = f' class="{style}"' * bool(style) + f' text-anchor="{anchor}"' * (anchor != "start")
    return f'<text x="{x:.1f}" y="{y:.1f}"{attributes}>{escape(content)}</text>'


def _short(value: float) -> str:
    """Return a number with three significant digits."""
    for unit, size in (("M", 1e6), ("k", 1e3)):
        if value >= 0.9995 * size:
            return f"{value / size:.3g} {unit}"
    return f"{value:.3g}"
