"""Tell the compiler how large the blocks are, so that it knows how many registers a thread may use."""

from dataclasses import dataclass

from engine.rewrite import Change, Edit, MatchedRule, Site, Space, Values


@dataclass(frozen=True)
class _Bounded:
    """A kernel with loops and no bounds, all of whose launches have blocks of so many threads."""

    site: Site
    threads: int


class LaunchBounds(MatchedRule[_Bounded]):
    """`__launch_bounds__` with the launched block, alone or with a number of resident blocks."""

    name = "launch_bounds"
    summary = "Add launch bounds"

    def match(self, site: Site) -> _Bounded | None:
        kernel = site.kernel
        if not site.sound or not site.launch_visible or kernel.limits_registers or "__launch_bounds__" in kernel.names:
            return None
        threads = {c.threads for c in site.configs_after({}) or ()}
        return _Bounded(site, threads.pop()) if len(threads) == 1 and kernel.loops else None

    def space(self, match: _Bounded) -> Space:
        # Registers cost occupancy only in kernels that use many; straight-line kernels seldom do.
        priors = {0: 0.1, 2: 0.09, 4: 0.07}
        if match.threads == match.site.target.max_threads_per_block:
            del priors[0]  # that is what the compiler assumes anyway
        most = match.site.target.blocks_at_once(match.threads)
        choices = [({"resident": resident}, prior) for resident, prior in priors.items()]
        return Space(choices, {"resident": tuple(range(most + 1))}, prior=0.1)

    def rewrite(self, match: _Bounded, values: Values) -> Change | None:
        threads, resident = match.threads, int(values["resident"])
        if resident * threads > match.site.target.max_threads_per_sm:
            return None
        at = match.site.kernel.name_span.start
        bounds = f"{threads}, {resident}" if resident else str(threads)
        edits = match.site.in_file(Edit.insert(at, f"__launch_bounds__({bounds}) "))
        summary = f"Add `__launch_bounds__({bounds})`"
        return Change(summary, edits, {"threads": threads})
