#pragma once
#include "optiml_cuda.h"
