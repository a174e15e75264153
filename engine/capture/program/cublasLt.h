// A handle and no more: programs that include it for one kernel of several compile without that kernel's calls.
#pragma once
#pragma GCC system_header
#include "cublas_v2.h"

typedef struct cublasLtContext *cublasLtHandle_t;
extern "C" cublasStatus_t cublasLtCreate(cublasLtHandle_t *handle);
extern "C" cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle);
