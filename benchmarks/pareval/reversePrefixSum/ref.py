import numpy as np


def reversePrefixSum(x):
    return np.cumsum(x[::-1], dtype=x.dtype)
