"""Line charts as small SVG files that read well in light and dark pages."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

WIDTH, HEIGHT = 720, 360
LEFT, RIGHT, TOP, BOTTOM = 56, 220, 40, 48
COLOURS = ("#2a6fdb", "#d9822b", "#2e9e5b", "#b0413e", "#7a5ab5", "#5f6b76")
BACKGROUND, INK, GRID = "#ffffff", "#24292f", "#d8dee4"


@dataclass(frozen=True)
class Series:
    """A named line through points."""

    name: str
    points: Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Axis:
    """What an axis says, its ends, and where it has a mark; a logarithmic one begins above 0."""

    label: str
    low: float
    high: float
    ticks: Sequence[float]
    logarithmic: bool = False

    def share(self, value: float) -> float:
        """How far along the axis a value lies, 0 to 1 inside its ends."""
        if self.logarithmic:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)


def line_chart(title: str, x: Axis, y: Axis, series: Sequence[Series]) -> str:
    """One SVG document: axes with grid lines, a line with points a series, and a legend beside them."""
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
        f'font-size="12" fill="{INK}">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="{BACKGROUND}"/>',
        _text(LEFT, 22, title, size=15),
        *_grid(x, y),
    ]
    for index, line in enumerate(series):
        colour = COLOURS[index % len(COLOURS)]
        points = [(_across(x.share(a)), _up(y.share(b))) for a, b in line.points]
        path = " ".join(f"{px:.1f},{py:.1f}" for px, py in points)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        if len(points) <= 20:
            parts += [f'<circle cx="{px:.1f}" cy="{py:.1f}" r="3" fill="{colour}"/>' for px, py in points]
        legend = TOP + 12 + 20 * index
        at = WIDTH - RIGHT + 16
        parts.append(f'<path d="M{at} {legend - 4}h18" stroke="{colour}" stroke-width="3"/>')
        parts.append(_text(at + 24, legend, line.name))
    return "\n".join([*parts, "</svg>"]) + "\n"


def _grid(x: Axis, y: Axis) -> list[str]:
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM
    parts = []
    for tick in x.ticks:
        at = _across(x.share(tick))
        parts.append(f'<path d="M{at:.1f} {TOP}V{bottom}" stroke="{GRID}"/>')
        parts.append(_text(at, bottom + 16, f"{tick:,g}", anchor="middle"))
    for tick in y.ticks:
        at = _up(y.share(tick))
        parts.append(f'<path d="M{LEFT} {at:.1f}H{right}" stroke="{GRID}"/>')
        parts.append(_text(LEFT - 6, at + 4, f"{tick:,g}", anchor="end"))
    middle = (LEFT + right) / 2
    parts.append(_text(middle, HEIGHT - 10, x.label, anchor="middle"))
    parts.append(
        f'<text transform="translate(14 {(TOP + bottom) / 2}) rotate(-90)" text-anchor="middle">'
        f"{escape(y.label)}</text>"
    )
    return parts


def _text(x: float, y: float, text: str, anchor: str = "start", size: int = 12) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}">{escape(text)}</text>'


def _across(share: float) -> float:
    return LEFT + share * (WIDTH - LEFT - RIGHT)


def _up(share: float) -> float:
    return HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)
