/* The work on one tile of time and PANEL channels, for one instruction set; see
   instruction_sets.h. All rows of channels are PANEL floats, rows of ranks `stride` floats. */

/* PANEL floats from the first `count` of a row, with zeros after them. */
static inline __attribute__((always_inline)) void NAME(read_channels)(
    const void *row, long count, int half, float *to)
{
    for (long c = 0; c < PANEL; c += LANES) {
        NAME(vector) v = {0};
        if (count > c)
            v = half ? NAME(load_half)((const uint16_t *)row + c, count - c, 0)
                     : NAME(load)((const float *)row + c, count - c, 0);
        *NAME(at)(to + c) = v;
    }
}

static void NAME(read_row)(const void *row, long count, int half, float *to)
{
    if (count == PANEL)
        NAME(read_channels)(row, PANEL, half, to);
    else
        NAME(read_channels)(row, count, half, to);
}

static inline __attribute__((always_inline)) void NAME(write_channels)(
    const float *from, long count, int half, void *row)
{
    for (long c = 0; c < count; c += LANES)
        if (half)
            NAME(store_half)((uint16_t *)row + c, count - c, *NAME(at)(from + c));
        else
            NAME(store)((float *)row + c, count - c, *NAME(at)(from + c));
}

static void NAME(write_row)(const float *from, long count, int half, void *row)
{
    if (count == PANEL)
        NAME(write_channels)(from, PANEL, half, row);
    else
        NAME(write_channels)(from, count, half, row);
}

/* Sets sums[n] to row n + own of x, or to zeros if `own` is negative. */
static inline __attribute__((always_inline)) void NAME(begin)(
    NAME(vector) *sums, const float *x, long own)
{
    const NAME(vector) zeros = {0};
    if (own < 0)
        UNROLL for (int n = 0; n < ROWS; n++)
            sums[n] = zeros;
    else
        UNROLL for (int n = 0; n < ROWS; n++)
            sums[n] = *NAME(at)(x + own * PANEL + n * PANEL);
}

/* y[i] = sum_k (sum_r z[i + k z_step][r] u[k][r]) x[i + k], and x[i + own] if there is one, ROWS rows
   at once; u_step floats from one tap of u to the next. */
static void NAME(convolve_panel)(
    const float *x, const float *z, long z_step, long stride, const float *u, long u_step,
    long own, float *y, long count, long taps, long ranks)
{
    for (long i = 0; i < count; i += ROWS)
        for (long c = 0; c < PANEL; c += LANES) {
            NAME(vector) sums[ROWS];
            NAME(begin)(sums, x + i * PANEL + c, own);
            for (long k = 0; k < taps; k++) {
                NAME(vector) w[ROWS] = {{0}};
                const float *zk = z + (i + k * z_step) * stride, *uk = u + k * u_step + c;
                for (long r = 0; r < ranks; r++) {
                    NAME(vector) v = *NAME(at)(uk + r * PANEL);
                    UNROLL for (int n = 0; n < ROWS; n++)
                        w[n] += v * zk[n * stride + r];
                }
                UNROLL for (int n = 0; n < ROWS; n++)
                    sums[n] += w[n] * *NAME(at)(x + (i + n + k) * PANEL + c);
            }
            UNROLL for (int n = 0; n < ROWS; n++)
                *NAME(at)(y + (i + n) * PANEL + c) = sums[n];
        }
}

/* y[i] = sum_k (u[k] + z[i][h][k]) x[i + k], and x[i + own] if there is one, ROWS rows at once, z of
   the head h of each channel; u_step floats from one tap of u to the next, z_step of z, z_stride from
   one row of z to the next. `with_heads` is a constant where inlined; without them z is not read. */
static inline __attribute__((always_inline)) void NAME(convolve_rows)(
    const float *x, const float *z, long z_step, long z_stride, const float *u, long u_step,
    long own, float *y, long count, long taps, long width, long heads, const int with_heads)
{
    for (long i = 0; i < count; i += ROWS)
        for (long h = 0; h < heads; h++)
            for (long c = h * width; c < (h + 1) * width; c += LANES) {
                NAME(vector) sums[ROWS];
                NAME(begin)(sums, x + i * PANEL + c, own);
                for (long k = 0; k < taps; k++) {
                    NAME(vector) v = *NAME(at)(u + k * u_step + c);
                    const float *zk = with_heads ? z + i * z_stride + h * taps + k * z_step : z;
                    UNROLL for (int n = 0; n < ROWS; n++)
                        sums[n] += (with_heads ? (NAME(vector))(v + zk[n * z_stride]) : v) *
                                   *NAME(at)(x + (i + n + k) * PANEL + c);
                }
                UNROLL for (int n = 0; n < ROWS; n++)
                    *NAME(at)(y + (i + n) * PANEL + c) = sums[n];
            }
}

static void NAME(convolve_static)(
    const float *x, const float *u, long u_step, long own, float *y, long count, long taps)
{
    NAME(convolve_rows)(x, NULL, 0, 0, u, u_step, own, y, count, taps, PANEL, 1, 0);
}

static void NAME(convolve_headwise)(
    const float *x, const float *z, long z_step, long z_stride, const float *u, long u_step,
    long own, float *y, long count, long taps, long width, long heads)
{
    NAME(convolve_rows)(x, z, z_step, z_stride, u, u_step, own, y, count, taps, width, heads, 1);
}

/* grad_z[i][h][k] = sum_c grad[i][c] x[i + k][c] over the channels of each head; rows of grad_z are
   z_step apart. */
static void NAME(headwise_gradient)(
    const float *x, const float *grad, float *grad_z, long z_step, long count, long taps,
    long width, long heads)
{
    float parts[LANES * LANES] __attribute__((aligned(64))), found[LANES];
    const int rows = LANES / TAPS;
    for (long i = 0; i < count; i += rows)
        for (long h = 0; h < heads; h++)
            for (long k = 0; k < taps; k += TAPS) {
                NAME(vector) sums[LANES] = {{0}};
                for (long c = h * width; c < (h + 1) * width; c += LANES)
                    UNROLL for (int n = 0; n < LANES; n++) {
                        long tap = k + n % TAPS < taps ? k + n % TAPS : taps - 1;
                        sums[n] += *NAME(at)(grad + (i + n / TAPS) * PANEL + c) *
                                   *NAME(at)(x + (i + n / TAPS + tap) * PANEL + c);
                    }
                UNROLL for (int n = 0; n < LANES; n++)
                    *NAME(at)(parts + n * LANES) = sums[n];
                *NAME(at)(found) = NAME(reduce)(parts, 0);
                for (long n = 0; n < rows && i + n < count; n++)
                    memcpy(grad_z + (i + n) * z_step + h * taps + k, found + n * TAPS,
                           4 * (taps - k < TAPS ? taps - k : TAPS));
            }
}

/* grad_u[k] += sum_i grad[i] x[i + k]; `taps` is a constant where inlined. */
static inline __attribute__((always_inline)) void NAME(add_taps)(
    const float *x, const float *grad, float *grad_u, long step, long count, const int taps)
{
    for (long c = 0; c < PANEL; c += LANES) {
        NAME(vector) sums[TAPS];
        UNROLL for (int k = 0; k < taps; k++)
            sums[k] = *NAME(at)(grad_u + k * step + c);
        for (long i = 0; i < count; i++) {
            NAME(vector) g = *NAME(at)(grad + i * PANEL + c);
            UNROLL for (int k = 0; k < taps; k++)
                sums[k] += g * *NAME(at)(x + (i + k) * PANEL + c);
        }
        UNROLL for (int k = 0; k < taps; k++)
            *NAME(at)(grad_u + k * step + c) = sums[k];
    }
}

/* grad_u[k] += sum_i grad[i] x[i + k]; `step` floats from one tap of grad_u to the next. */
static void NAME(static_gradient)(
    const float *x, const float *grad, float *grad_u, long step, long count, long taps)
{
    long k = 0;
    for (; k + TAPS <= taps; k += TAPS)
        NAME(add_taps)(x + k * PANEL, grad, grad_u + k * step, step, count, TAPS);
    for (; k < taps; k++)
        NAME(add_taps)(x + k * PANEL, grad, grad_u + k * step, step, count, 1);
}

/* grad_u[r] += sum_i z[i][r] grad[i] x[i], of one tap; `ranks` is a constant where inlined. */
static inline __attribute__((always_inline)) void NAME(add_products)(
    const float *x, const float *grad, const float *z, long stride, float *grad_u, long count,
    const int ranks)
{
    for (long c = 0; c < PANEL; c += LANES) {
        NAME(vector) sums[LANES];
        UNROLL for (int r = 0; r < ranks; r++)
            sums[r] = *NAME(at)(grad_u + r * PANEL + c);
        for (long i = 0; i < count; i++) {
            NAME(vector) p = *NAME(at)(grad + i * PANEL + c) * *NAME(at)(x + i * PANEL + c);
            UNROLL for (int r = 0; r < ranks; r++)
                sums[r] += p * z[i * stride + r];
        }
        UNROLL for (int r = 0; r < ranks; r++)
            *NAME(at)(grad_u + r * PANEL + c) = sums[r];
    }
}

/* grad_u[k][r] += sum_i z[i][r] grad[i] x[i + k] */
static void NAME(up_gradient)(
    const float *x, const float *grad, const float *z, long stride, float *grad_u, long count,
    long taps, long ranks)
{
    for (long k = 0; k < taps; k++)
        for (long r = 0; r < ranks; r += LANES) {
            float *to = grad_u + (k * stride + r) * PANEL;
            if (ranks - r == 1)
                NAME(add_products)(x + k * PANEL, grad, z + r, stride, to, count, 1);
            else
                NAME(add_products)(x + k * PANEL, grad, z + r, stride, to, count, LANES);
        }
}

/* grad_z[i][r] = sum_k sum_c u[k][r][c] grad[i][c] x[i + k][c], added to what is there if `add`; rows
   of z are z_step apart. */
static void NAME(z_gradient)(
    const float *x, const float *grad, const float *u, long stride, float *grad_z, long z_step,
    int add, long count, long taps, long ranks)
{
    float parts[LANES * LANES] __attribute__((aligned(64)));
    for (long i = 0; i < count; i++)
        for (long r = 0; r < ranks; r += LANES) {
            NAME(vector) sums[LANES] = {{0}};
            for (long k = 0; k < taps; k++)
                for (long c = 0; c < PANEL; c += LANES) {
                    const float *uk = u + (k * stride + r) * PANEL + c;
                    NAME(vector) p = *NAME(at)(grad + i * PANEL + c) *
                                     *NAME(at)(x + (i + k) * PANEL + c);
                    UNROLL for (int n = 0; n < LANES; n++)
                        sums[n] += p * *NAME(at)(uk + n * PANEL);
                }
            UNROLL for (int n = 0; n < LANES; n++)
                *NAME(at)(parts + n * LANES) = sums[n];
            NAME(vector) *to = NAME(at)(grad_z + i * z_step + r), sum = NAME(reduce)(parts, 0);
            if (add)
                sum += *to;
            *to = sum;
        }
}
