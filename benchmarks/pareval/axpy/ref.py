def axpy(alpha, x, y):
    return alpha * x + y
