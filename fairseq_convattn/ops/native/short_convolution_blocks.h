/* The work on one tile of time and PANEL channels in blocks of 16 x 16, by AMX. z and u are
   bfloat16, and products of gradients and inputs are rounded to it; sums are float. */

#include "amx.h"

#define BLOCK 16 /* positions, channels or ranks of a tile register */

#if defined(HAS_AMX)

#define WITH_AMX \
    __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,amx-tile,amx-bf16")))

/* The compiler does not know that the instructions after it read memory. */
#define STORED __asm__ volatile("" ::: "memory")

/* 0 to 3 and 6: 16 x 16 sums; 4: 16 x 16 left factors; 5 and 7: 8 x 16 pairs of right ones. */
static WITH_AMX void begin_blocks(void)
{
    struct {
        uint8_t palette, start_row, reserved[14];
        uint16_t bytes[16];
        uint8_t rows[16];
    } shapes = {.palette = 1};
    for (int n = 0; n < 8; n++) {
        shapes.bytes[n] = n == 4 ? 32 : 64;
        shapes.rows[n] = n == 5 || n == 7 ? 8 : 16;
    }
    STORED;
    _tile_loadconfig(&shapes);
}

static WITH_AMX void end_blocks(void)
{
    _tile_release();
}

/* Rows of `stride` ranks to bfloat16, which they are. */
static WITH_AMX void halve_ranks(const float *z, long count, uint16_t *to)
{
    for (long n = 0; n < count; n += BLOCK) {
        __m256bh half = _mm512_cvtneps_pbh(_mm512_loadu_ps(z + n));
        _mm256_storeu_si256((__m256i *)(to + n), (__m256i)half);
    }
}

/* y[i] = sum_k (sum_r z[i + k z_step][r] u[k][r]) x[i + k], and the row x[i + own] if there is one.
   y is bfloat16; u has pairs of ranks: [taps, stride / 2, PANEL, 2]. `kernels` is scratch:
   [taps, TILE, BLOCK]. */
static WITH_AMX void convolve_blocks(
    const float *x, const uint16_t *z, long z_step, long stride, const uint16_t *u, long u_step,
    float *kernels, long own, uint16_t *y, long count, long taps)
{
    STORED;
#define ADD(n)                                                                           \
    if (n * BLOCK < count) {                                                             \
        _tile_loadd(4, z + (n * BLOCK + k * z_step) * stride + r, 2 * stride);           \
        _tile_dpbf16ps(n, 4, 5);                                                         \
    }
#define WRITE(n)                                                                         \
    if (n * BLOCK < count)                                                               \
        _tile_stored(n, kernels + (k * TILE + n * BLOCK) * BLOCK, 4 * BLOCK);
    for (long c = 0; c < PANEL; c += BLOCK) {
        for (long k = 0; k < taps; k++) {
            _tile_zero(0);
            _tile_zero(1);
            _tile_zero(2);
            _tile_zero(3);
            for (long r = 0; r < stride; r += BLOCK) {
                _tile_loadd(5, u + k * u_step + r * PANEL + 2 * c, 4 * PANEL);
                ADD(0) ADD(1) ADD(2) ADD(3)
            }
            WRITE(0) WRITE(1) WRITE(2) WRITE(3)
        }
        STORED;
        for (long i = 0; i < count; i++) {
            __m512 sum = own < 0 ? _mm512_setzero_ps() : _mm512_loadu_ps(x + (i + own) * PANEL + c);
            for (long k = 0; k < taps; k++)
                sum = _mm512_fmadd_ps(_mm512_loadu_ps(kernels + (k * TILE + i) * BLOCK),
                                      _mm512_loadu_ps(x + (i + k) * PANEL + c), sum);
            _mm256_storeu_si256((__m256i *)(y + i * PANEL + c), (__m256i)_mm512_cvtneps_pbh(sum));
        }
    }
#undef ADD
#undef WRITE
}

/* grad[i] x[i] of BLOCK channels: rows[i], and in `pairs` those of two rows side by side; zeros
   from `count` to the end of its block. */
static inline WITH_AMX void products(
    const float *x, const float *grad, long count, uint16_t *rows, uint16_t *pairs)
{
    const __m512i side_by_side = _mm512_set_epi16(
        31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6, 21, 5, 20, 4,
        19, 3, 18, 2, 17, 1, 16, 0);
    for (long i = 0; i < count; i += 2) {
        __m512 p[2];
        for (int n = 0; n < 2; n++)
            p[n] = i + n < count ? _mm512_mul_ps(_mm512_loadu_ps(grad + (i + n) * PANEL),
                                                 _mm512_loadu_ps(x + (i + n) * PANEL))
                                 : _mm512_setzero_ps();
        __m512i both = (__m512i)_mm512_cvtne2ps_pbh(p[1], p[0]);
        _mm512_store_si512(rows + i * BLOCK, both);
        _mm512_store_si512(pairs + i * BLOCK, _mm512_permutexvar_epi16(side_by_side, both));
    }
    long end = (count + 1) / 2 * 2, size = 2 * BLOCK * ((count + BLOCK - 1) / BLOCK * BLOCK - end);
    memset(rows + end * BLOCK, 0, size);
    memset(pairs + end * BLOCK, 0, size);
}

/* grad_u[k][r] += sum_i z[r][i] grad[i] x[i + k], and grad_z[i][r] = sum_k sum_c u[k][r][c]
   grad[i][c] x[i + k][c], whose rows are z_step apart. Here z is [stride, TILE], and u has pairs of
   channels: [taps, PANEL / 2, stride, 2]. */
static WITH_AMX void gradients_of_blocks(
    const float *x, const float *grad, const uint16_t *z, const uint16_t *u, long stride,
    float *grad_u, float *grad_z, long z_step, long count, long taps)
{
    uint16_t rows[TILE * BLOCK] __attribute__((aligned(64)));
    uint16_t pairs[TILE * BLOCK] __attribute__((aligned(64)));
    float sums[BLOCK * BLOCK] __attribute__((aligned(64)));
    STORED;
#define ADD(n)                                                                           \
    if (n * BLOCK < count) {                                                             \
        _tile_loadd(4, rows + n * BLOCK * BLOCK, 2 * BLOCK);                             \
        _tile_dpbf16ps(n, 4, 5);                                                         \
        _tile_loadd(7, pairs + n * BLOCK * BLOCK, 4 * BLOCK);                            \
        _tile_loadd(4, z + r * TILE + n * BLOCK, 2 * TILE);                              \
        _tile_dpbf16ps(6, 4, 7);                                                         \
    }
#define WRITE(n)                                                                         \
    if (n * BLOCK < count) {                                                             \
        _tile_stored(n, sums, 4 * BLOCK);                                                \
        STORED;                                                                          \
        for (long i = 0; i < BLOCK && n * BLOCK + i < count; i++)                        \
            memcpy(grad_z + (n * BLOCK + i) * z_step + r, sums + i * BLOCK, 4 * BLOCK);  \
    }
    for (long r = 0; r < stride; r += BLOCK) {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
        for (long c = 0; c < PANEL; c += BLOCK)
            for (long k = 0; k < taps; k++) {
                products(x + k * PANEL + c, grad + c, count, rows, pairs);
                STORED;
                float *to = grad_u + (k * stride + r) * PANEL + c;
                _tile_loadd(5, u + (k * PANEL + c) * stride + 2 * r, 4 * stride);
                _tile_loadd(6, to, 4 * PANEL);
                ADD(0) ADD(1) ADD(2) ADD(3)
                _tile_stored(6, to, 4 * PANEL);
            }
        WRITE(0) WRITE(1) WRITE(2) WRITE(3)
    }
#undef ADD
#undef WRITE
    STORED;
}

#else
static void begin_blocks(void) {}
static void end_blocks(void) {}
static void halve_ranks(const float *z, long count, uint16_t *to) {}
static void convolve_blocks(
    const float *x, const uint16_t *z, long z_step, long stride, const uint16_t *u, long u_step,
    float *kernels, long own, uint16_t *y, long count, long taps) {}
static void gradients_of_blocks(
    const float *x, const float *grad, const uint16_t *z, const uint16_t *u, long stride,
    float *grad_u, float *grad_z, long z_step, long count, long taps) {}
#endif
