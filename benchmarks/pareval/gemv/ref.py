def gemv(a, x):
    return a @ x
