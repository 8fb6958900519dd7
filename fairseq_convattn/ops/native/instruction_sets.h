/* Includes the header KERNELS once for every instruction set that the compiler knows, with

     NAME(f)  the function's name for this instruction set
     LANES    floats of a vector

   and the arithmetic of vectors.h. */

#include <stdint.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#if defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif
#define WIDEST 16 /* LANES at most */
#define LINE 16 /* floats that memory brings at once */
#define LOG2_E 1.4426950408889634f

static const int32_t LANE[WIDEST] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

extern int convattn_instruction_set; /* index into what FOR_EVERY_INSTRUCTION_SET lists */

/* Calls work(argument) on as many threads as the third argument says: OpenMP's GOMP_parallel. */
typedef void run_in_parallel(void (*)(void *), void *, unsigned, unsigned);

#define NAME(f) f##_portable
#define LANES 4
#include "vectors.h"
#include KERNELS
#undef NAME
#undef LANES

#if defined(__x86_64__)
/* portable, avx2, avx512, amx */
#define FOR_EVERY_INSTRUCTION_SET(what) \
    {what(portable, 4), what(avx2, 8), what(avx512, 16), what(avx512, 16)}

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma")
#endif
#define NAME(f) f##_avx2
#define LANES 8
#include "vectors.h"
#include KERNELS
#undef NAME
#undef LANES
#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

#if defined(__clang__)
#pragma clang attribute push( \
    __attribute__((target("avx512f,avx512vl,avx512bw,avx512dq,fma,avx2"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx512f,avx512vl,avx512bw,avx512dq,fma,avx2")
#endif
#define NAME(f) f##_avx512
#define LANES 16
#include "vectors.h"
#include KERNELS
#undef NAME
#undef LANES
#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#else
#define FOR_EVERY_INSTRUCTION_SET(what) {what(portable, 4)}
#endif
