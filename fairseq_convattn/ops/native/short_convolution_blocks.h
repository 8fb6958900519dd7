/* The work on one tile of time and PANEL channels in blocks of 16 x 16, by AMX. z and u are
   bfloat16, and products of gradients and inputs are rounded to it; sums are float. */

#include "amx.h"

#if defined(HAS_AMX)

/* BLOCK floats each of two rows, which are bfloat16, side by side. */
static inline WITH_AMX __m512i pairs_of(const float *even, const float *odd)
{
    __m512i low = _mm512_srli_epi32(_mm512_loadu_si512(even), 16);
    return _mm512_mask_blend_epi16(0xaaaaaaaa, low, _mm512_loadu_si512(odd));
}

/* A panel of u in pairs of ranks, [taps, stride / 2, PANEL, 2]. */
static WITH_AMX void pair_ranks(const float *u, long rows, uint16_t *to)
{
    for (long n = 0; n < rows; n += 2)
        for (long c = 0; c < PANEL; c += BLOCK)
            _mm512_storeu_si512(to + n * PANEL + 2 * c,
                                pairs_of(u + n * PANEL + c, u + (n + 1) * PANEL + c));
}

/* A panel of u in pairs of channels, [PANEL / BLOCK, taps, BLOCK / 2, stride, 2], `taps`
   rounded up to even, with zeros for one that is not there. */
static WITH_AMX void pair_channels(const float *u, long taps, long stride, uint16_t *to)
{
    long even = taps + taps % 2;
    for (long c = 0; c < PANEL; c++)
        for (long k = 0; k < even; k++) {
            long row = (c / BLOCK * even + k) * (BLOCK / 2) + c % BLOCK / 2;
            for (long r = 0; r < stride; r++) {
                const char *value = (const char *)(u + (k * stride + r) * PANEL + c);
                uint16_t *at = to + 2 * (row * stride + r) + c % 2;
                *at = 0;
                if (k < taps)
                    memcpy(at, value + 2, 2);
            }
        }
}

/* The kernels of a block of positions and channels, [taps, BLOCK, BLOCK]. */
static inline WITH_AMX void kernels_of_block(
    const uint16_t *z, long z_step, long stride, const uint16_t *u, long u_step, float *kernels,
    long taps)
{
    STORED;
#define ADD(n)                                                                           \
    if (k + n < taps) {                                                                  \
        _tile_loadd(4, z + (k + n) * z_step * stride + r, 2 * stride);                   \
        _tile_loadd(5, u + (k + n) * u_step + r * PANEL, 4 * PANEL);                     \
        _tile_dpbf16ps(n, 4, 5);                                                         \
    }
#define WRITE(n)                                                                         \
    if (k + n < taps)                                                                    \
        _tile_stored(n, kernels + (k + n) * BLOCK * BLOCK, 4 * BLOCK);
    for (long k = 0; k < taps; k += 4) {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
        for (long r = 0; r < stride; r += BLOCK) {
            ADD(0) ADD(1) ADD(2) ADD(3)
        }
        WRITE(0) WRITE(1) WRITE(2) WRITE(3)
    }
#undef ADD
#undef WRITE
    STORED;
}

static inline WITH_AMX void convolve_block(
    const float *x, const float *kernels, long own, uint16_t *y, long taps)
{
    for (long i = 0; i < BLOCK; i += ROWS) {
        vector_avx512 sums[ROWS];
        begin_avx512(sums, x + i * PANEL, own);
        for (long k = 0; k < taps; k++)
            UNROLL for (int n = 0; n < ROWS; n++)
                sums[n] += *at_avx512(kernels + (k * BLOCK + i + n) * BLOCK) *
                           *at_avx512(x + (i + n + k) * PANEL);
        UNROLL for (int n = 0; n < ROWS; n++)
            _mm256_storeu_si256((__m256i *)(y + (i + n) * PANEL),
                                (__m256i)_mm512_cvtneps_pbh((__m512)sums[n]));
    }
}

/* y[i] = sum_k (sum_r z[i + k z_step][r] u[k][r]) x[i + k], and the row x[i + own] if there is one.
   y is bfloat16; u has pairs of ranks. `kernels` is scratch: [taps, BLOCK, BLOCK]. */
static WITH_AMX void convolve_blocks(
    const float *x, const uint16_t *z, long z_step, long stride, const uint16_t *u, long u_step,
    float *kernels, long own, uint16_t *y, long count, long taps)
{
    for (long c = 0; c < PANEL; c += BLOCK)
        for (long i = 0; i < count; i += BLOCK) {
            kernels_of_block(z + i * stride, z_step, stride, u + 2 * c, u_step, kernels, taps);
            convolve_block(x + i * PANEL + c, kernels, own, y + i * PANEL + c, taps);
        }
}

/* Products of a tile's gradients and inputs, BLOCK channels and two taps: by position, those of the
   first tap before those of the second; and of each tap, in pairs of positions. */
typedef struct {
    uint16_t rows[TILE][2 * BLOCK], pairs[2][TILE / 2][2 * BLOCK];
} __attribute__((aligned(64))) products;

/* grad[i] x[i] and grad[i] x[i + 1]. The latter are zero without a `second_tap`, all are from `count`
   to the end of the tile. */
static inline WITH_AMX void multiply(
    const float *x, const float *grad, long count, int second_tap, products *p)
{
    const __m512i quarters = _mm512_set_epi64(7, 3, 6, 2, 5, 1, 4, 0);
    for (long i = 0; i < count; i += 2) {
        __m512i turned[2];
        for (int n = 0; n < 2; n++) {
            __m512 of_tap[2] = {_mm512_setzero_ps(), _mm512_setzero_ps()};
            if (i + n < count) {
                __m512 g = _mm512_loadu_ps(grad + (i + n) * PANEL);
                of_tap[0] = _mm512_mul_ps(g, _mm512_loadu_ps(x + (i + n) * PANEL));
                if (second_tap)
                    of_tap[1] = _mm512_mul_ps(g, _mm512_loadu_ps(x + (i + n + 1) * PANEL));
            }
            __m512i row = (__m512i)_mm512_cvtne2ps_pbh(of_tap[1], of_tap[0]);
            _mm512_store_si512(p->rows[i + n], row);
            turned[n] = _mm512_permutexvar_epi64(quarters, row);
        }
        _mm512_store_si512(p->pairs[0][i / 2], _mm512_unpacklo_epi16(turned[0], turned[1]));
        _mm512_store_si512(p->pairs[1][i / 2], _mm512_unpackhi_epi16(turned[0], turned[1]));
    }
    long pairs = (count + 1) / 2, rest = TILE / 2 - pairs;
    memset(p->rows[2 * pairs], 0, 2 * rest * sizeof(p->rows[0]));
    memset(p->pairs[0][pairs], 0, rest * sizeof(p->rows[0]));
    memset(p->pairs[1][pairs], 0, rest * sizeof(p->rows[0]));
}

/* grad_u[k][r] += sum_i z[r][i] grad[i] x[i + k], and grad_z[i][r] = sum_k sum_c u[k][r][c]
   grad[i][c] x[i + k][c], added to what is there if `add`, whose rows are z_step apart. Here z is
   [stride, TILE], and u has pairs of channels. Products are made ready while the processor uses
   those before them. */
static WITH_AMX void gradients_of_blocks(
    const float *x, const float *grad, const uint16_t *z, const uint16_t *u, long stride,
    float *grad_u, float *grad_z, long z_step, int add, long count, long taps)
{
    products all[2];
    float sums[BLOCK * BLOCK] __attribute__((aligned(64)));
    long twos = (taps + 1) / 2, steps = PANEL / BLOCK * twos;
#define ADD(n)                                                                           \
    if (n * BLOCK < count) {                                                             \
        _tile_loadd(4, p->rows[n * BLOCK], 4 * BLOCK);                                   \
        _tile_dpbf16ps(n, 4, 5);                                                         \
    }
#define WRITE(n)                                                                         \
    if (n * BLOCK < count) {                                                             \
        _tile_stored(n, sums, 4 * BLOCK);                                                \
        STORED;                                                                          \
        for (long i = 0; i < BLOCK && n * BLOCK + i < count; i++) {                      \
            vector_avx512 *row = at_avx512(grad_z + (n * BLOCK + i) * z_step + r);       \
            vector_avx512 sum = *at_avx512(sums + i * BLOCK);                            \
            if (add)                                                                     \
                sum += *row;                                                             \
            *row = sum;                                                                  \
        }                                                                                \
    }
    for (long r = 0; r < stride; r += BLOCK) {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
        for (long n = 0; n <= steps; n++) {
            long c = n / twos * BLOCK, k = n % twos * 2;
            if (n < steps)
                multiply(x + k * PANEL + c, grad + c, count, k + 1 < taps, &all[n % 2]);
            STORED;
            if (!n)
                continue;
            const products *p = &all[(n - 1) % 2];
            c = (n - 1) / twos * BLOCK, k = (n - 1) % twos * 2;
            _tile_loadd(5, u + 2 * ((n - 1) * BLOCK * stride + r), 4 * stride);
            ADD(0) ADD(1) ADD(2) ADD(3)
            for (long tap = 0; tap < 2 && k + tap < taps; tap++) {
                float *to = grad_u + ((k + tap) * stride + r) * PANEL + c;
                _tile_loadd(6, to, 4 * PANEL);
                for (long i = 0; i < count; i += 2 * BLOCK) {
                    _tile_loadd(7, p->pairs[tap][i / 2], 4 * BLOCK);
                    _tile_loadd(4, z + r * TILE + i, 2 * TILE);
                    _tile_dpbf16ps(6, 4, 7);
                }
                _tile_stored(6, to, 4 * PANEL);
            }
        }
        WRITE(0) WRITE(1) WRITE(2) WRITE(3)
    }
#undef ADD
#undef WRITE
    STORED;
}

#else
static void pair_ranks(const float *u, long rows, uint16_t *to) {}
static void pair_channels(const float *u, long taps, long stride, uint16_t *to) {}
static void convolve_blocks(
    const float *x, const uint16_t *z, long z_step, long stride, const uint16_t *u, long u_step,
    float *kernels, long own, uint16_t *y, long count, long taps) {}
static void gradients_of_blocks(
    const float *x, const float *grad, const uint16_t *z, const uint16_t *u, long stride,
    float *grad_u, float *grad_z, long z_step, int add, long count, long taps) {}
#endif
