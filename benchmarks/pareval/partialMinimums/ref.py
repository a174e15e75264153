import numpy as np


def partialMinimums(x):
    return np.minimum.accumulate(x)
