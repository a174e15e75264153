// Single-precision matrix products of the host, in cuBLAS's order of arguments: matrices by columns.
#include "cublas_v2.h"

extern "C" {
cublasStatus_t cublasCreate(cublasHandle_t *handle) { return *handle = reinterpret_cast<cublasHandle_t>(new char), CUBLAS_STATUS_SUCCESS; }
cublasStatus_t cublasDestroy(cublasHandle_t handle) { return delete reinterpret_cast<char *>(handle), CUBLAS_STATUS_SUCCESS; }
cublasStatus_t cublasSetStream(cublasHandle_t, cudaStream_t) { return CUBLAS_STATUS_SUCCESS; }
cublasStatus_t cublasSetMathMode(cublasHandle_t, cublasMath_t) { return CUBLAS_STATUS_SUCCESS; }
cublasStatus_t cublasSgemm(cublasHandle_t, cublasOperation_t ta, cublasOperation_t tb, int m, int n, int k, const float *alpha,
                           const float *a, int lda, const float *b, int ldb, const float *beta, float *c, int ldc) {
    for (int j = 0; j < n; ++j)
        for (int i = 0; i < m; ++i) {
            float sum = 0;
            for (int l = 0; l < k; ++l)
                sum += (ta == CUBLAS_OP_N ? a[i + size_t(l) * lda] : a[l + size_t(i) * lda]) *
                       (tb == CUBLAS_OP_N ? b[l + size_t(j) * ldb] : b[j + size_t(l) * ldb]);
            float &to = c[i + size_t(j) * ldc];
            to = *alpha * sum + (*beta != 0 ? *beta * to : 0);
        }
    cudaMemcpy(c, c, 1, cudaMemcpyDeviceToDevice);  // the runtime counts it as written
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasSgemmStridedBatched(cublasHandle_t handle, cublasOperation_t ta, cublasOperation_t tb, int m, int n, int k,
                                         const float *alpha, const float *a, int lda, long long stride_a, const float *b, int ldb,
                                         long long stride_b, const float *beta, float *c, int ldc, long long stride_c, int count) {
    for (int i = 0; i < count; ++i)
        cublasSgemm(handle, ta, tb, m, n, k, alpha, a + i * stride_a, lda, b + i * stride_b, ldb, beta, c + i * stride_c, ldc);
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtCreate(struct cublasLtContext **handle) {
    return *handle = reinterpret_cast<struct cublasLtContext *>(new char), CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtDestroy(struct cublasLtContext *handle) {
    return delete reinterpret_cast<char *>(handle), CUBLAS_STATUS_SUCCESS;
}
}
