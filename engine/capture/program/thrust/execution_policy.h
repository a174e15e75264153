// As with CUDA, policies for a stream come with the others.
#pragma once
#pragma GCC system_header
#include_next <thrust/execution_policy.h>
#include <thrust/system/cuda/execution_policy.h>
