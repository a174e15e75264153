// No guard: as in C, the last inclusion decides.
#include <stdlib.h>
#undef assert
#ifdef NDEBUG
#define assert(condition) ((void)0)
#else
#define assert(condition) ((condition) ? (void)0 : optiml_program_assert(#condition, __FILE__, __LINE__, __func__))
#ifndef OPTIML_PROGRAM_ASSERT
#define OPTIML_PROGRAM_ASSERT
#ifdef __cplusplus
extern "C"
#endif
void optiml_program_assert(const char *condition, const char *file, int line, const char *function);
#endif
#endif
