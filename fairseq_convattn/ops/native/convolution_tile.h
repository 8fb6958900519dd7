/* The work on one tile of time, for one instruction set; see instruction_sets.h.

     VECTORS        of channels of ROWS outputs whose sums stay in registers
     TIMES          rows of interleaved inputs, of four channels each, that make a vector
     GROUPS         such vectors whose products with ROWS outputs stay in registers
*/

#if LANES == 16
#define VECTORS 4
#else
#define VECTORS 2
#endif
#define TIMES (LANES / 4)
#define GROUPS 3

/* Each row of whole vectors becomes its softmax; `count` is at most LANES. */
static void NAME(softmax_block)(float *rows, long count, long stride)
{
    float parts[LANES * LANES] __attribute__((aligned(64)));
    float each[LANES] __attribute__((aligned(64)));
    for (long i = count; i < LANES; i++)
        *NAME(at)(parts + i * LANES) = (NAME(vector)){0};
    for (long i = 0; i < count; i++) {
        const float *row = rows + i * stride;
        NAME(vector) largest = *NAME(at)(row);
        for (long k = LANES; k < stride; k += LANES)
            largest = NAME(larger)(*NAME(at)(row + k), largest);
        *NAME(at)(parts + i * LANES) = largest;
    }
    *NAME(at)(each) = NAME(reduce)(parts, 1);
    for (long i = 0; i < count; i++) {
        float *row = rows + i * stride;
        NAME(vector) sum = {0};
        for (long k = 0; k < stride; k += LANES) {
            NAME(vector) power = NAME(exp2)((*NAME(at)(row + k) - each[i]) * LOG2_E);
            *NAME(at)(row + k) = power;
            sum += power;
        }
        *NAME(at)(parts + i * LANES) = sum;
    }
    *NAME(at)(each) = 1 / NAME(reduce)(parts, 0);
    for (long i = 0; i < count; i++)
        for (float *v = rows + i * stride; v < rows + (i + 1) * stride; v += LANES)
            *NAME(at)(v) *= each[i];
}

static void NAME(softmax)(float *rows, long count, long stride)
{
    for (long i = 0; i < count; i += LANES)
        NAME(softmax_block)(rows + i * stride, count - i < LANES ? count - i : LANES, stride);
}

/* grad becomes used * grad - softmax sum(used * grad), row by row; `used` is the softmax after
   DropConnect. */
static void NAME(softmax_gradient)(
    float *grad, const float *used, const float *softmax, long count, long stride)
{
    float parts[LANES * LANES] __attribute__((aligned(64))) = {0};
    float each[LANES] __attribute__((aligned(64)));
    for (long first = 0; first < count; first += LANES) {
        long end = first + LANES < count ? first + LANES : count;
        for (long i = first; i < end; i++) {
            NAME(vector) sum = {0};
            for (long k = i * stride; k < (i + 1) * stride; k += LANES) {
                *NAME(at)(grad + k) *= *NAME(at)(used + k);
                sum += *NAME(at)(grad + k);
            }
            *NAME(at)(parts + (i - first) * LANES) = sum;
        }
        *NAME(at)(each) = NAME(reduce)(parts, 0);
        for (long i = first; i < end; i++)
            for (long k = i * stride; k < (i + 1) * stride; k += LANES)
                *NAME(at)(grad + k) -= *NAME(at)(softmax + k) * each[i - first];
    }
}

/* A whole vector of a row's floats, or bfloat16. */
static inline NAME(vector) NAME(whole)(const void *row, int half, long at)
{
    return half ? NAME(load_half)((const uint16_t *)row + at, LANES, 0)
                : *NAME(at)((const float *)row + at);
}

/* Copies ROWS rows of whole vectors, all at once as memory likes it, to `strips` places `step`
   floats apart, `width` of each row to each. */
static void NAME(spread)(
    const void *const *rows, int half, float *to, long strips, long step, long width)
{
    for (long i = 0; i < strips; i++)
        for (long c = 0; c < width; c += LANES)
            UNROLL for (int n = 0; n < ROWS; n++)
                *NAME(at)(to + i * step + n * width + c) =
                    NAME(whole)(rows[n], half, i * width + c);
}

/* Stores the vectors of the same channels of TIMES rows, four channels of each row in turn. */
static inline void NAME(interleave_vectors)(
    const void *const *rows, int half, long from, float *to)
{
    NAME(vector) v[TIMES];
    UNROLL for (int n = 0; n < TIMES; n++)
        v[n] = NAME(whole)(rows[n], half, from);
#if LANES == 16
    __m512 a = (__m512)v[0], b = (__m512)v[1], c = (__m512)v[2], d = (__m512)v[3];
    __m512 ab = _mm512_shuffle_f32x4(a, b, 0x44), cd = _mm512_shuffle_f32x4(c, d, 0x44);
    _mm512_storeu_ps(to, _mm512_shuffle_f32x4(ab, cd, 0x88));
    _mm512_storeu_ps(to + 16, _mm512_shuffle_f32x4(ab, cd, 0xdd));
    ab = _mm512_shuffle_f32x4(a, b, 0xee), cd = _mm512_shuffle_f32x4(c, d, 0xee);
    _mm512_storeu_ps(to + 32, _mm512_shuffle_f32x4(ab, cd, 0x88));
    _mm512_storeu_ps(to + 48, _mm512_shuffle_f32x4(ab, cd, 0xdd));
#else
    UNROLL for (int k = 0; k < TIMES; k++)
        UNROLL for (int n = 0; n < TIMES; n++)
            memcpy(to + k * LANES + n * 4, (const char *)&v[n] + k * 16, 16);
#endif
}

/* As spread, each TIMES rows interleaved. */
static void NAME(interleave)(
    const void *const *rows, int half, float *to, long strips, long step, long width)
{
    for (int n = 0; n < ROWS; n += TIMES)
        for (long i = 0; i < strips; i++)
            for (long c = 0; c < width; c += LANES)
                NAME(interleave_vectors)(rows + n, half, i * width + c,
                                         to + i * step + n * width + c * TIMES);
}

/* Copies `count` floats, or bfloat16 if `half`, of each of `rows` rows, `row_stride` elements
   apart, to whole vectors, filled up with `fill` to `stride` floats; so for each of `heads`. */
static void NAME(gather)(const void *from, int half, long from_head, long row_stride, float *to,
                         long to_head, long heads, long rows, long count, long stride, float fill)
{
    for (long h = 0; h < heads; h++, to += to_head)
        for (long i = 0; i < rows; i++)
            for (long k = 0; k < stride; k += LANES) {
                long at = h * from_head + i * row_stride + k;
                *NAME(at)(to + i * stride + k) =
                    half ? NAME(load_half)((const uint16_t *)from + at, count - k, fill)
                         : NAME(load)((const float *)from + at, count - k, fill);
            }
}

/* Copies `count` floats of each of `rows` rows of whole vectors, to bfloat16 if `half`. */
static void NAME(scatter)(const float *from, long from_stride, void *to, int half, long to_stride,
                          long rows, long count)
{
    for (long i = 0; i < rows; i++)
        for (long k = 0; k < count; k += LANES) {
            NAME(vector) v = *NAME(at)(from + i * from_stride + k);
            if (half)
                NAME(store_half)((uint16_t *)to + i * to_stride + k, count - k, v);
            else
                NAME(store)((float *)to + i * to_stride + k, count - k, v);
        }
}

/* y[i][c] = sum_k w[i][k] x[i + k][c] for `rows` outputs and `vectors` vectors of channels;
   both are constants where this is inlined. */
static inline __attribute__((always_inline)) void NAME(block)(
    const float *x, long x_stride, const float *w, long w_stride, long w_step, float *y,
    long y_stride, long taps, const int rows, const int vectors)
{
    NAME(vector) sum[ROWS][VECTORS];
    UNROLL for (int i = 0; i < rows; i++)
        UNROLL for (int v = 0; v < vectors; v++)
            sum[i][v] = (NAME(vector)){0};
    UNROLL for (long j = 0; j < rows - 1; j++)
        UNROLL for (int i = 0; i <= j; i++)
            if (j - i < taps)
                UNROLL for (int v = 0; v < vectors; v++)
                    sum[i][v] += w[i * w_stride + (j - i) * w_step] *
                        *(const NAME(vector) *)(x + j * x_stride + v * LANES);
    for (long j = rows - 1; j < taps; j++) {
        NAME(vector) input[VECTORS];
        UNROLL for (int v = 0; v < vectors; v++)
            input[v] = *(const NAME(vector) *)(x + j * x_stride + v * LANES);
        UNROLL for (int i = 0; i < rows; i++)
            UNROLL for (int v = 0; v < vectors; v++)
                sum[i][v] += w[i * w_stride + (j - i) * w_step] * input[v];
    }
    for (long j = taps > rows - 1 ? taps : rows - 1; j < taps + rows - 1; j++)
        UNROLL for (int i = 1; i < rows; i++)
            if (j - i < taps)
                UNROLL for (int v = 0; v < vectors; v++)
                    sum[i][v] += w[i * w_stride + (j - i) * w_step] *
                        *(const NAME(vector) *)(x + j * x_stride + v * LANES);
    UNROLL for (int i = 0; i < rows; i++)
        UNROLL for (int v = 0; v < vectors; v++)
            *(NAME(vector) *)(y + i * y_stride + v * LANES) = sum[i][v];
}

/* The same for any number of outputs and of channels, a multiple of LANES. */
static void NAME(convolve)(
    const float *x, long x_stride, const float *w, long w_stride, long w_step, float *y,
    long y_stride, long time, long channels, long taps)
{
    long i = 0;
    for (; i + ROWS <= time; i += ROWS) {
        const float *inputs = x + i * x_stride, *kernels = w + i * w_stride;
        float *outputs = y + i * y_stride;
        long c = 0;
        for (; c + VECTORS * LANES <= channels; c += VECTORS * LANES)
            NAME(block)(inputs + c, x_stride, kernels, w_stride, w_step, outputs + c, y_stride,
                        taps, ROWS, VECTORS);
        for (; c < channels; c += LANES)
            NAME(block)(inputs + c, x_stride, kernels, w_stride, w_step, outputs + c, y_stride,
                        taps, ROWS, 1);
    }
    for (; i < time; i++) {
        const float *inputs = x + i * x_stride, *kernels = w + i * w_stride;
        float *outputs = y + i * y_stride;
        long c = 0;
        for (; c + VECTORS * LANES <= channels; c += VECTORS * LANES)
            NAME(block)(inputs + c, x_stride, kernels, w_stride, w_step, outputs + c, y_stride,
                        taps, 1, VECTORS);
        for (; c < channels; c += LANES)
            NAME(block)(inputs + c, x_stride, kernels, w_stride, w_step, outputs + c, y_stride,
                        taps, 1, 1);
    }
}

/* Four floats, again and again. */
static inline NAME(vector) NAME(repeat)(const float *p)
{
#if LANES == 16
    return (NAME(vector))_mm512_broadcast_f32x4(_mm_loadu_ps(p));
#elif LANES == 8
    return (NAME(vector))_mm256_broadcast_ps((const __m128 *)p);
#else
    return *NAME(at)(p);
#endif
}

/* Lane TIMES * i + n of the result is the sum of the n-th four lanes of sums[i]. */
static inline NAME(vector) NAME(sums_of_four)(const NAME(vector) *sums)
{
    _Static_assert(ROWS == 4, "as many sums");
    NAME(vector) first = NAME(pair)(sums[0], sums[1], 1, 0);
    NAME(vector) all = NAME(pair)(first, NAME(pair)(sums[2], sums[3], 1, 0), 2, 0);
#if defined(__clang__)
    NAME(vector) turned;
    UNROLL for (int i = 0; i < LANES; i++)
        turned[i] = all[i % TIMES * 4 + i / TIMES];
    return turned;
#else
    const NAME(ints) lane = *(const NAME(ints) *)LANE;
    return __builtin_shuffle(all, lane % TIMES * 4 + lane / TIMES);
#endif
}

/* s[i][j] = sum_c g[i][c] x[j][c] for ROWS outputs and the inputs of so many groups, a constant
   where this is inlined. */
static inline __attribute__((always_inline)) void NAME(products)(
    const float *g, long g_stride, const float *x, long width, float *s, long stride,
    const int groups)
{
    NAME(vector) sum[GROUPS][ROWS];
    UNROLL for (int n = 0; n < groups; n++)
        UNROLL for (int i = 0; i < ROWS; i++)
            sum[n][i] = (NAME(vector)){0};
    for (long c = 0; c < width; c += 4) {
        NAME(vector) input[GROUPS];
        UNROLL for (int n = 0; n < groups; n++)
            input[n] = *NAME(at)(x + n * TIMES * width + c * TIMES);
        UNROLL for (int i = 0; i < ROWS; i++) {
            NAME(vector) output = NAME(repeat)(g + i * g_stride + c);
            UNROLL for (int n = 0; n < groups; n++)
                sum[n][i] += output * input[n];
        }
    }
    UNROLL for (int n = 0; n < groups; n++) {
        float parts[LANES] __attribute__((aligned(64)));
        *NAME(at)(parts) = NAME(sums_of_four)(sum[n]);
        UNROLL for (int i = 0; i < ROWS; i++)
            memcpy(s + i * stride + n * TIMES, parts + i * TIMES, 4 * TIMES);
    }
}

/* w[i][k] = sum_c g[i][c] x[i + k][c], or that added to it, for rows of `width` channels, whole
   vectors and at most CHUNK; x is interleaved. `s` is room for as many rows as g has, a multiple
   of ROWS, of `w_stride` + 2 * WIDEST; w has whole vectors. */
static void NAME(correlate)(
    const float *g, long g_stride, const float *x, long width, float *w, long w_stride, float *s,
    long time, long taps, int add)
{
    long groups = (taps + ROWS - 1 + TIMES - 1) / TIMES, stride = w_stride + 2 * WIDEST;
    for (long i = 0; i < time; i += ROWS, g += ROWS * g_stride, x += ROWS * width) {
        float *to = s + i * stride;
        for (long c = 0; c < width; c += LINE)
            UNROLL for (int r = ROWS; r < 2 * ROWS; r++) {
                __builtin_prefetch((void *)((uintptr_t)(g + c) + 4 * r * g_stride));
                __builtin_prefetch(x + (groups * TIMES + r - ROWS) * width + c);
            }
        long n = 0;
        for (; n + GROUPS <= groups; n += GROUPS)
            NAME(products)(g, g_stride, x + n * TIMES * width, width, to + n * TIMES, stride,
                           GROUPS);
        for (; n < groups; n++)
            NAME(products)(g, g_stride, x + n * TIMES * width, width, to + n * TIMES, stride, 1);
    }
    /* not at once, as vectors that were stored in parts load late */
    for (long i = 0; i < time; i++)
        for (long k = 0; k < w_stride; k += LANES) {
            NAME(vector) sum = NAME(load)(s + i * stride + i % ROWS + k, taps - k, 0);
            NAME(vector) *to = NAME(at)(w + i * w_stride + k);
            *to = add ? (NAME(vector))(*to + sum) : sum;
        }
}

#undef VECTORS
#undef TIMES
#undef GROUPS
