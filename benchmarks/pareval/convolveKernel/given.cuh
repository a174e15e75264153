// What the problem declares beside the function: the driver's own reference reads it.
static const int edgeKernel[3][3] = {{-1, -1, -1}, {-1, 8, -1}, {-1, -1, -1}};
