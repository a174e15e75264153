import numpy as np


def maxDegree(adjacency):
    return np.max(np.sum(adjacency, axis=1, dtype=adjacency.dtype), keepdims=True)
