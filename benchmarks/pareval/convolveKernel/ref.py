import numpy as np


def convolveKernel(imageIn):
    wide = np.pad(imageIn, 1)
    n = imageIn.shape[0]
    around = sum(wide[i : i + n, j : j + n] for i in range(3) for j in range(3))
    return np.clip(9 * imageIn - around, 0, 255).astype(imageIn.dtype)
