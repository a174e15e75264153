"""In which order programs are timed. Worker only."""

import numpy as np


def turns(count: int, rounds: int, order: np.random.Generator) -> list[list[int]]:
    """Who of so many programs runs when, round by round: by chance, but every other round the other way round.

    Of an even number of rounds each program runs before each other one in half. Who runs first, or last before the device is waited
    for, does not find it as the others do: that alone makes up to 1 % (docs/timing.md).
    """
    drawn: list[list[int]] = []
    while len(drawn) < rounds:
        turn = order.permutation(count).tolist()
        drawn += [turn, turn[::-1]]
    return drawn[:rounds]
