"""Drawings of Matplotlib as inline SVG that takes its colours from the page and needs no style attribute.

A strict Content-Security-Policy forbids style attributes, and colours written into a drawing cannot follow a theme. So every
distinct style becomes a class of one sheet (`Styles`), and the colours of `INK` become the page's CSS variables.
"""

from __future__ import annotations

import io
import re
import xml.etree.ElementTree as ET
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Colours that stand for CSS variables while Matplotlib draws; each is replaced by the variable of its name.
INK: Mapping[str, str] = MappingProxyType(
    {
        "ink": "#0a0b01", "muted": "#0a0b02", "grid": "#0a0b03", "original": "#0a0b04", "step": "#0a0b05", "best": "#0a0b06",
        "back": "#0a0b07",
    }
)  # fmt: skip
_SVG, _XLINK = "{http://www.w3.org/2000/svg}", "{http://www.w3.org/1999/xlink}"
_STYLE = re.compile(
    r"[\w\s:;#.,%()'\"-]*"
)  # what Matplotlib writes; anything else is a change that somebody must look at
_FONT = re.compile(r"font(?:-family)?\s*:")
_SIZE = re.compile(r"(\d+(?:\.\d+)?)px")


class Styles:
    """Classes for the styles of all drawings of one page."""

    def __init__(self) -> None:
        self._known: dict[str, str] = {}

    def name(self, style: str) -> str:
        """The class of a style attribute's text."""
        if not _STYLE.fullmatch(style):
            raise ValueError("Matplotlib writes a style that is not known")
        kept = []
        for part in style.split(";"):
            if _FONT.match(part.strip()):
                size = _SIZE.search(part)
                if size:
                    kept.append(f"font-size:{size[1]}px")
            elif part.strip():
                kept.append(re.sub(r"\s*:\s*", ":", part.strip()))
        text = ";".join(kept)
        for variable, colour in INK.items():
            text = text.replace(colour, f"var(--{variable})")
        return self._known.setdefault(text, f"p{len(self._known)}")

    def sheet(self) -> str:
        """The style sheet with all classes so far."""
        return "".join(f".{name}{{{text}}}" for text, name in self._known.items())


def look() -> AbstractContextManager[None]:
    """Matplotlib's settings while something is drawn."""
    import matplotlib

    settings: Any = {  # the names of the settings are typed differently from version to version
        "svg.fonttype": "none", "svg.hashsalt": "optiml", "font.size": 11.0, "font.family": "DejaVu Sans",
        "text.color": INK["ink"], "axes.labelcolor": INK["ink"], "axes.edgecolor": INK["muted"], "axes.facecolor": "none",
        "figure.facecolor": "none", "xtick.color": INK["ink"], "ytick.color": INK["ink"], "grid.color": INK["grid"],
        "axes.grid": True, "axes.spines.top": False, "axes.spines.right": False, "axes.axisbelow": True, "legend.frameon": False,
        "text.parse_math": False, "axes.unicode_minus": False,
    }  # fmt: skip
    return matplotlib.rc_context(settings)


def draw(styles: Styles, name: str, said: str, paint: Callable[[Axes], None], *, height: float = 3.4) -> str:
    """Inline SVG, 7.4 by `height` inches before it is scaled to the page; `said` is what a screen reader says of it."""
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.4, height), layout="constrained")
    FigureCanvasSVG(figure)
    paint(figure.subplots())
    target = io.BytesIO()
    figure.savefig(target, format="svg", metadata={"Date": None})
    return _inline(target.getvalue(), styles, name, said)


def _inline(svg: bytes, styles: Styles, name: str, said: str) -> str:
    ET.register_namespace("", _SVG[1:-1])
    root = ET.fromstring(svg)
    for parent in list(root.iter()):
        for child in list(parent):
            if child.tag in (f"{_SVG}metadata", f"{_SVG}style"):
                parent.remove(child)
    text = " ".join(v for e in root.iter() for k, v in e.attrib.items() if k in (f"{_XLINK}href", "clip-path"))
    referred = set(re.findall(r"#([\w.-]+)", text))
    for element in root.iter():
        _dress(element, styles, name, referred)
    for key in ("width", "height", "version"):
        root.attrib.pop(key, None)
    root.set("role", "img")
    root.set("aria-label", said)
    return re.sub(r"\s*\n\s*", " ", ET.tostring(root, encoding="unicode"))


def _dress(element: ET.Element, styles: Styles, name: str, referred: set[str]) -> None:
    """Style to class, ids of its own for each drawing, links without a namespace."""
    given = element.attrib
    style = given.pop("style", None)
    if style is not None:
        given["class"] = styles.name(style)
    id = given.pop("id", None)
    if id in referred:
        given["id"] = f"{name}-{id}"
    link = given.pop(f"{_XLINK}href", None)
    if link is not None:
        given["href"] = link.replace("#", f"#{name}-", 1)
    if "clip-path" in given:
        given["clip-path"] = given["clip-path"].replace("#", f"#{name}-", 1)
    if element.tag == f"{_SVG}path" and "d" in given:
        given["d"] = " ".join(given["d"].split())
