/* HAS_AMX: the compiler has its instructions, and Linux can allow them to functions WITH_AMX. */

#if defined(__x86_64__) && defined(__linux__) && (__GNUC__ >= 12 || __clang_major__ >= 16)
#define HAS_AMX
#include <immintrin.h>

#define WITH_AMX \
    __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,fma,avx2,amx-tile,amx-bf16")))

/* The compiler does not know that the instructions after it read memory. */
#define STORED __asm__ volatile("" ::: "memory")
#endif
