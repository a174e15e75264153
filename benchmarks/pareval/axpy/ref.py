import numpy as np


def axpy(alpha, x, y):
    return alpha * x + y
