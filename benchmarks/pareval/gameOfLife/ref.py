import numpy as np


def gameOfLife(input):
    wide = np.pad(input, 1)
    n = input.shape[0]
    near = sum(wide[i : i + n, j : j + n] for i in range(3) for j in range(3)) - input
    return ((near == 3) | ((input == 1) & (near == 2))).astype(input.dtype)
