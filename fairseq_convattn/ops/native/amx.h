/* HAS_AMX: the compiler has its instructions, and Linux can allow them to functions WITH_AMX. */

#include <stdint.h>

#define BLOCK 16 /* rows or columns of a tile register */

#if defined(__x86_64__) && defined(__linux__) && (__GNUC__ >= 12 || __clang_major__ >= 16)
#define HAS_AMX
#include <immintrin.h>

#define WITH_AMX \
    __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,fma,avx2,amx-tile,amx-bf16")))

/* The compiler does not know that the instructions after it read memory. */
#define STORED __asm__ volatile("" ::: "memory")

/* 0 to 3 and 6: 16 x 16 sums; 4: 16 left factors of `terms` terms each; 5 and 7: pairs of terms of
   16 right ones. */
static inline WITH_AMX void begin_blocks(int terms)
{
    struct {
        uint8_t palette, start_row, reserved[14];
        uint16_t bytes[16];
        uint8_t rows[16];
    } shapes = {.palette = 1};
    for (int n = 0; n < 8; n++) {
        shapes.bytes[n] = n == 4 ? 2 * terms : 64;
        shapes.rows[n] = n == 5 || n == 7 ? terms / 2 : 16;
    }
    STORED;
    _tile_loadconfig(&shapes);
}

static inline WITH_AMX void end_blocks(void)
{
    _tile_release();
}
#else
static inline void begin_blocks(int terms) {}
static inline void end_blocks(void) {}
#endif
