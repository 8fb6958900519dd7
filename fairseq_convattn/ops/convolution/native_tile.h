/* The work on one tile of time, for one instruction set. Included once for each, with

     NAME(f)        the function's name for this instruction set
     LANES          floats of a vector
     ROWS, VECTORS  outputs and vectors of channels whose sums stay in registers
     BAND_ROWS, BAND_VECTORS  outputs and vectors of inputs, likewise, for the taps' gradient
*/

typedef float NAME(vector) __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

/* y[i][c] = sum_k w[i][k] x[i + k][c] for `rows` outputs and `vectors` vectors of channels;
   both are constants where this is inlined. */
static inline __attribute__((always_inline)) void NAME(block)(
    const float *x, long x_stride, const float *w, long w_stride, float *y, long y_stride,
    long taps, const int rows, const int vectors)
{
    NAME(vector) sum[ROWS][VECTORS];
    UNROLL for (int i = 0; i < rows; i++)
        UNROLL for (int v = 0; v < vectors; v++)
            sum[i][v] = (NAME(vector)){0};
    UNROLL for (long j = 0; j < rows - 1; j++)
        UNROLL for (int i = 0; i <= j; i++)
            if (j - i < taps)
                UNROLL for (int v = 0; v < vectors; v++)
                    sum[i][v] += w[i * w_stride + j - i] *
                        *(const NAME(vector) *)(x + j * x_stride + v * LANES);
    for (long j = rows - 1; j < taps; j++) {
        NAME(vector) input[VECTORS];
        UNROLL for (int v = 0; v < vectors; v++)
            input[v] = *(const NAME(vector) *)(x + j * x_stride + v * LANES);
        UNROLL for (int i = 0; i < rows; i++)
            UNROLL for (int v = 0; v < vectors; v++)
                sum[i][v] += w[i * w_stride + j - i] * input[v];
    }
    for (long j = taps > rows - 1 ? taps : rows - 1; j < taps + rows - 1; j++)
        UNROLL for (int i = 1; i < rows; i++)
            if (j - i < taps)
                UNROLL for (int v = 0; v < vectors; v++)
                    sum[i][v] += w[i * w_stride + j - i] *
                        *(const NAME(vector) *)(x + j * x_stride + v * LANES);
    UNROLL for (int i = 0; i < rows; i++)
        UNROLL for (int v = 0; v < vectors; v++)
            *(NAME(vector) *)(y + i * y_stride + v * LANES) = sum[i][v];
}

/* The same for any number of outputs and of channels, a multiple of LANES. */
static void NAME(convolve)(
    const float *x, const float *w, float *y, long time, long channels, long taps)
{
    long i = 0;
    for (; i + ROWS <= time; i += ROWS) {
        long c = 0;
        for (; c + VECTORS * LANES <= channels; c += VECTORS * LANES)
            NAME(block)(x + i * channels + c, channels, w + i * taps, taps,
                        y + i * channels + c, channels, taps, ROWS, VECTORS);
        for (; c < channels; c += LANES)
            NAME(block)(x + i * channels + c, channels, w + i * taps, taps,
                        y + i * channels + c, channels, taps, ROWS, 1);
    }
    for (; i < time; i++)
        for (long c = 0; c < channels; c += LANES)
            NAME(block)(x + i * channels + c, channels, w + i * taps, taps,
                        y + i * channels + c, channels, taps, 1, 1);
}

/* s[i][v] = sum_c g[i][c] x[c][v] for BAND_ROWS outputs; x by channels, g by outputs. */
static inline __attribute__((always_inline)) void NAME(product)(
    const float *g, long g_stride, const float *x, long x_stride, float *s, long s_stride,
    long channels, const int vectors)
{
    NAME(vector) sum[BAND_ROWS][BAND_VECTORS];
    UNROLL for (int i = 0; i < BAND_ROWS; i++)
        UNROLL for (int v = 0; v < vectors; v++)
            sum[i][v] = (NAME(vector)){0};
    for (long c = 0; c < channels; c++) {
        NAME(vector) input[BAND_VECTORS];
        UNROLL for (int v = 0; v < vectors; v++)
            input[v] = *(const NAME(vector) *)(x + c * x_stride + v * LANES);
        UNROLL for (int i = 0; i < BAND_ROWS; i++)
            UNROLL for (int v = 0; v < vectors; v++)
                sum[i][v] += g[i * g_stride + c] * input[v];
    }
    UNROLL for (int i = 0; i < BAND_ROWS; i++)
        UNROLL for (int v = 0; v < vectors; v++)
            *(NAME(vector) *)(s + i * s_stride + v * LANES) = sum[i][v];
}

/* w[i][k] += sum_c g[i][c] x[c][i + k]: BAND_ROWS rows of a product at a time, of which the
   band is kept. `x_stride` leaves room for whole vectors, g for a multiple of BAND_ROWS rows. */
static void NAME(correlate)(
    const float *g, const float *x, long x_stride, float *w, long time, long channels,
    long g_stride, long taps)
{
    enum { MOST = BAND_VECTORS * LANES };
    float s[BAND_ROWS * MOST] __attribute__((aligned(64)));
    for (long i = 0; i < time; i += BAND_ROWS)
        for (long first = 0; first < BAND_ROWS + taps - 1; first += MOST) {
            const float *rows = g + i * g_stride, *columns = x + i + first;
            long vectors = (BAND_ROWS + taps - 1 - first + LANES - 1) / LANES;
            if (vectors == 1)
                NAME(product)(rows, g_stride, columns, x_stride, s, MOST, channels, 1);
            else if (vectors == 2 || BAND_VECTORS == 2)
                NAME(product)(rows, g_stride, columns, x_stride, s, MOST, channels, 2);
            else
                NAME(product)(rows, g_stride, columns, x_stride, s, MOST, channels, BAND_VECTORS);
            for (long r = 0; r < BAND_ROWS && i + r < time; r++) {
                long begin = r > first ? r : first;
                long end = r + taps < first + MOST ? r + taps : first + MOST;
                for (long j = begin; j < end; j++)
                    w[(i + r) * taps + j - r] += s[r * MOST + j - first];
            }
        }
}

#undef NAME
#undef LANES
#undef ROWS
#undef VECTORS
#undef BAND_ROWS
#undef BAND_VECTORS
