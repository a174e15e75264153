import numpy as np


def prefixSum(x):
    return np.cumsum(x)
