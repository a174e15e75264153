"""Tell the compiler how large the blocks are, so that it knows how many registers a thread may use."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from engine.rules.cases import configs_of, visible
from engine.rules.common import in_file, proposal, sound, text, walk
from engine.rules.model import Family, Proposal, Site
from engine.source.model import Edit, Span

if TYPE_CHECKING:
    from tree_sitter import Node


class LaunchBounds:
    """`__launch_bounds__` with the launched block, alone or with a number of resident blocks."""

    name = "launch_bounds"
    summary = "Declare the block size to the compiler"

    def propose(self, site: Site) -> Iterator[Proposal]:
        if (
            not sound(site)
            or not visible(site)
            or site.kernel.launch_bounds
            or "__launch_bounds__" in site.kernel.names
        ):
            return
        configs = configs_of(site, {})
        threads = {c.threads for c in configs or ()}
        place = _after_type(site.kernel.node, site.kernel.name)
        if len(threads) != 1 or place is None or not site.kernel.loops:
            return
        size = threads.pop()
        # Registers cost occupancy only in kernels that use many; straight-line kernels seldom do.
        for resident, prior in ((0, 0.1), (2, 0.09), (4, 0.07)):
            if size == site.target.max_threads_per_block and not resident:
                continue  # that is what the compiler assumes anyway
            yield from self._bounded(site, place, size, resident, prior)

    def families(self, site: Site) -> Iterator[Family]:
        """The number of resident blocks left open, which bounds the registers of a thread."""
        first = next(self.propose(site), None)
        place = _after_type(site.kernel.node, site.kernel.name)
        if first is None or place is None:
            return
        size, at = int(first.parameters["threads"]), place

        def make(values: Mapping[str, int]) -> Proposal | None:
            return next(self._bounded(site, at, size, values["resident"], 0.1), None)

        most = site.target.blocks_at_once(size)
        yield Family(self.name, self.summary, {"resident": tuple(range(most + 1))}, (), make, 0.1)

    def _bounded(self, site: Site, place: int, size: int, resident: int, prior: float) -> Iterator[Proposal]:
        if resident * size > site.target.max_threads_per_sm:
            return
        bounds = f"{size}, {resident}" if resident else str(size)
        yield from proposal(
            self.name,
            f"Declare blocks of {size} threads" + (f", {resident} to a multiprocessor" if resident else ""),
            in_file(site, Edit(Span(place, place), f"__launch_bounds__({bounds}) ")),
            prior,
            threads=size,
            resident=resident,
        )


def _after_type(node: Node, name: str) -> int | None:
    """Where the declarator `name(…)` begins, behind the return type."""
    for declarator in walk(node):
        if declarator.type == "function_declarator":
            inner = declarator.child_by_field_name("declarator")
            return declarator.start_byte if inner is not None and text(inner) == name else None
    return None
