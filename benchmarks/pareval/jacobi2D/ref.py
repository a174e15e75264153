import numpy as np


def jacobi2D(input):
    wide = np.pad(input, 1)
    return (wide[1:-1, :-2] + wide[1:-1, 2:] + wide[:-2, 1:-1] + wide[2:, 1:-1] + input) / 5
