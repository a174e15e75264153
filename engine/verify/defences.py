"""The verifier's defences, each with a switch, so that it can be shown that each one is needed."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Defences:
    """What stands between a cheating candidate and acceptance. All are on, except where a test measures what one is worth."""

    screening: bool = True  # of a candidate's text (engine/verify/screen.py)
    forms: bool = True  # the screening reads what compilers read, and no edit adds what they read differently; off: the plain text
    device_state: bool = True  # machine code may not bring device variables, which outlive a launch
    clocks: bool = True  # machine code may not read a clock or wait where the original's does not
    atomic_scope: bool = (
        True  # machine code has no more atomics of a block's scope on memory of all blocks than the original's
    )
    counters: bool = True  # no counter that an edit adds to a loop leaves its type where the original's index does not
    index_precision: bool = True  # PTX may not put indices through fewer bits than the original's
    whole_build: bool = True  # nvcc builds what is to be suggested whole, where there is an nvcc
    helpers: bool = True  # CPU: functions that other files may call compute what they did
    names: bool = True  # no other code of the include graph uses a name that an edit introduces
    assumptions: bool = True  # no visible caller breaks what an edit takes for granted
    shapes: bool = True  # all check shapes; off: only the first
    secret_sizes: bool = True  # check sizes drawn anew in each run around the named ones; off: only the named ones
    other_scalars: bool = True  # a check case in which real scalars have other values than the spec's
    other_callers: bool = (
        True  # CPU: other whole scalars, flags, zeros and sizes of blocks; one buffer for two parameters
    )
    earlier_launch: bool = True  # CPU: behind a launch of fewer blocks in the same module
    any_address: bool = True  # CPU: buffers that begin at any element, where callers that are not visible may pass such
    undeclared: bool = True  # CPU: contents that the spec's fills leave out, where the original is defined on them
    families: bool = True  # all families of inputs; off: only the declared one
    nan_inputs: bool = True  # NaN and denormals, where the original passes NaN on
    infinite_inputs: bool = True  # CPU: infinities and huge numbers, where the original's results with them are defined
    mixed_magnitudes: bool = (
        True  # CPU: one input huge, or far from zero, beside ordinary ones, where the original's results are exact
    )
    alike_inputs: bool = True  # CPU: most elements of an input are one value
    far_inputs: bool = True  # CPU: inputs that are far from zero by thousands of times their spread
    halves: bool = (
        True  # CPU: inputs at which roundings differ: multiples of a half, and subnormal ones for whole results
    )
    equal_terms: bool = True  # CPU: inputs of one value at the timed sizes, whose sums round one way
    ignored_nan: bool = True  # CPU: NaN also where the original passes over them
    module_states: bool = (
        True  # GPU: a new module for half of a confirmation's checks, thirty launches before the others
    )
    fresh_inputs: bool = True  # other inputs for every check; off: the same ones every time
    poison: bool = True  # outputs are spoiled before each run; off: what the original left stands there
    guard_zones: bool = True  # what lies beyond each buffer is looked at
    input_hash: bool = True  # inputs must be the same after a run
    scaled_tolerance: bool = True  # relative to the output's root mean square; off: an absolute 1e-2
    timed_inputs: bool = True  # every timed round has new inputs; off: all of one comparison have the same
    timed_results: bool = True  # what a timed launch left is compared too
    checks_after_timing: bool = True  # what is to be suggested is verified once more after it was timed
    host_time: bool = True  # GPU: the events' clock must agree with the host's
    roofline_floor: bool = True  # faster than the bytes allow is not believed
    sanitizers: bool = True  # GPU: compute-sanitizer on what is to be suggested
    second_opinion: bool = True  # GPU: the CPU path's checks of what is to be suggested
    sampled_sizes: bool = True  # CPU: some blocks of launches at sizes from the check cases up to 2^30 elements
    added_conditions: bool = True  # CPU: every condition of what is to be suggested was true and false in a check
    undefined: bool = True  # CPU: undefined shifts and indices end a run, and variables start from a pattern
    late_copies: bool = True  # CPU: asynchronous copies arrive when they are waited for
    thread_orders: bool = True  # CPU: several orders of threads and blocks
    access_checks: bool = True  # CPU: what the checks of each access found
    object_checks: bool = True  # CPU: what the compiled object defines, imports and accesses without the checks
    races: bool = True  # CPU: ThreadSanitizer on what is to be suggested


ALL = Defences()
LOOSE_TOLERANCE = 1e-2  # what a common checker allows, whatever the size of the values; used only with a defence off
