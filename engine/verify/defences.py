"""The verifier's defences, each with a switch, so that it can be shown that each one is needed."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Defences:
    """What stands between a cheating candidate and acceptance. All are on, except where a test measures what one is worth."""

    screening: bool = True  # of a candidate's text (engine/verify/screen.py)
    device_state: bool = True  # machine code may not bring device variables, which outlive a launch
    shapes: bool = True  # all check shapes; off: only the first
    families: bool = True  # all families of inputs; off: only the declared one
    fresh_inputs: bool = True  # other inputs for every check; off: the same ones every time
    poison: bool = True  # outputs are spoiled before each run; off: what the last run left stays
    guard_zones: bool = True  # what lies beyond each buffer is looked at
    input_hash: bool = True  # inputs must be the same after a run
    scaled_tolerance: bool = True  # relative to the output's root mean square; off: an absolute 1e-2
    timed_inputs: bool = True  # every timed round has new inputs; off: all of one comparison have the same
    timed_results: bool = True  # what a timed launch left is compared too
    checks_after_timing: bool = True  # what is to be suggested is verified once more after it was timed
    host_time: bool = True  # GPU: the events' clock must agree with the host's
    roofline_floor: bool = True  # faster than the bytes allow is not believed
    sanitizers: bool = True  # GPU: compute-sanitizer on what is to be suggested
    thread_orders: bool = True  # CPU: several orders of threads and blocks
    access_checks: bool = True  # CPU: what the checks of each access found
    races: bool = True  # CPU: ThreadSanitizer on what is to be suggested


ALL = Defences()
LOOSE_TOLERANCE = 1e-2  # what a common checker allows, whatever the size of the values; used only with a defence off
