import numpy as np


def vector_softmax(x):
    e = np.exp(x - x.max())
    return e / e.sum()
