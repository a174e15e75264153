"""Headers that a rewritten kernel needs."""

from __future__ import annotations

from engine.rules.model import Site
from engine.source.model import Edit, Span


def include(site: Site, header: str) -> list[Edit]:
    """The edit that includes a header in the kernel's file, before its other includes; none where it is included."""
    if any(name == header for name, _, _ in site.unit.includes):
        return []
    start = min((span.start for _, _, span in site.unit.includes), default=3 if site.unit.bom else 0)
    return [Edit(Span(start, start), f"#include <{header}>\n")]
