/* The work on one tile of time, for one instruction set; see instruction_sets.h.

     ROWS, VECTORS  outputs and vectors of channels whose sums stay in registers
     WIDE           vectors of channels of ROWS outputs, likewise, for the taps' gradient
*/

#define ROWS 4
#if LANES == 16
#define VECTORS 4
#define WIDE 4
#else
#define VECTORS 2
#define WIDE 2
#endif

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

/* Copies a row of whole vectors to `strips` places `step` floats apart, `width` to each, and
   prefetches the row that lies two `row_stride` ahead. */
static void NAME(spread)(const float *from, long row_stride, float *to, long strips, long step,
                         long width)
{
    for (long i = 0; i < strips; i++)
        for (long c = 0; c < width; c += LANES) {
            if (c % LINE == 0)
                __builtin_prefetch((void *)((uintptr_t)(from + i * width + c) + 8 * row_stride));
            *NAME(at)(to + i * step + c) = *NAME(at)(from + i * width + c);
        }
}

/* Copies rows of `count` floats to whole vectors, `stride` floats each, filled up with `fill`. */
static void NAME(gather)(const float *from, long from_step, float *to, long to_step, long rows,
                         long count, long stride, float fill)
{
    for (long i = 0; i < rows; i++, from += from_step, to += to_step)
        for (long k = 0; k < stride; k += LANES)
            *NAME(at)(to + k) = NAME(load)(from + k, count - k, fill);
}

/* Copies `rows` rows of `count` floats from rows of whole vectors. */
static void NAME(scatter)(const float *from, long from_step, float *to, long to_step, long rows,
                          long count)
{
    for (long i = 0; i < rows; i++, from += from_step, to += to_step)
        for (long k = 0; k < count; k += LANES)
            NAME(store)(to + k, count - k, *NAME(at)(from + k));
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

/* Vectors of sums, rows by `stride`: s[i][k] = sum_v g[i][v] x[i + k][v] for `rows` outputs over
   `vectors` vectors of channels; both are constants where this is inlined. */
static inline __attribute__((always_inline)) void NAME(products)(
    const float *g, const float *x, long width, float *s, long stride, long taps, const int rows,
    const int vectors)
{
    NAME(vector) outputs[ROWS][WIDE];
    UNROLL for (int i = 0; i < rows; i++)
        UNROLL for (int v = 0; v < vectors; v++)
            outputs[i][v] = *NAME(at)(g + i * width + v * LANES);
    for (long j = 0; j < taps + rows - 1; j++) {
        NAME(vector) input[WIDE];
        UNROLL for (int v = 0; v < vectors; v++)
            input[v] = *NAME(at)(x + j * width + v * LANES);
        UNROLL for (int i = 0; i < rows; i++) {
            NAME(vector) sum = outputs[i][0] * input[0];
            UNROLL for (int v = 1; v < vectors; v++)
                sum += outputs[i][v] * input[v];
            if (j - i >= 0 && j - i < taps)
                *NAME(at)(s + i * stride + (j - i) * LANES) = sum;
        }
    }
}

/* w[i][k] = sum_c g[i][c] x[i + k][c], or that added to it, for rows of `width` channels, whole
   vectors and at most CHUNK. `s` is room for ROWS rows of as many vectors as `w_stride` floats; w
   has whole vectors, g a multiple of ROWS rows. */
static void NAME(correlate)(
    const float *g, const float *x, long width, float *w, long w_stride, float *s, long time,
    long taps, int add)
{
    long stride = w_stride * LANES;
    for (long i = 0; i < ROWS; i++)
        memset(s + i * stride + taps * LANES, 0, 4 * (stride - taps * LANES));
    for (long i = 0; i < time; i += ROWS) {
        int more = add;
        for (long c = 0; c < width;) {
            const float *outputs = g + i * width + c, *inputs = x + i * width + c;
            if (c + WIDE * LANES <= width) {
                NAME(products)(outputs, inputs, width, s, stride, taps, ROWS, WIDE);
                c += WIDE * LANES;
            } else {
                NAME(products)(outputs, inputs, width, s, stride, taps, ROWS, 1);
                c += LANES;
            }
            for (long r = 0; r < ROWS && i + r < time; r++)
                for (long k = 0; k < w_stride; k += LANES) {
                    NAME(vector) sum = NAME(reduce)(s + r * stride + k * LANES, 0);
                    NAME(vector) *to = NAME(at)(w + (i + r) * w_stride + k);
                    *to = more ? (NAME(vector))(*to + sum) : sum;
                }
            more = 1;
        }
    }
}

#undef ROWS
#undef VECTORS
#undef WIDE
