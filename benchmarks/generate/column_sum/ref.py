import numpy as np


def column_sum(x):
    return np.sum(x, axis=0)
