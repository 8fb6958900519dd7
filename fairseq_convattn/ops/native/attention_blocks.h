/* Products of matrices of bfloat16 with sums in float, by AMX, a strip of 32 rows and columns at a time.

   A factor is packed in blocks of 16 rows, of a right factor columns, and 32 terms; two blocks, a strip's,
   for every 32 terms. Blocks are filled up with zeros. */

#define STRIP (2 * BLOCK) /* rows or columns that are multiplied at once, and terms of a register */

/* Pairs of terms, as a tile register has them: of a left factor [rows, pairs of terms], of a right one
   [pairs of terms, columns]. */
typedef struct {
    __m512i rows[BLOCK];
} block;

/* Sums `to` become alpha times the products, plus themselves if `add`; so many rows and columns exist. */
typedef struct {
    float *to;
    int64_t stride, rows, columns;
    float alpha;
    int add;
} sums;

static int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t strips_of(int64_t count)
{
    return (count + STRIP - 1) / STRIP;
}

/* The first `count` lanes, at most `most`. */
static inline WITH_AMX __mmask32 lanes(int64_t count, int most)
{
    return count >= most ? (most == 32 ? 0xffffffff : (1u << most) - 1)
                         : (1u << (count > 0 ? count : 0)) - 1;
}

static inline WITH_AMX void transpose(block *b)
{
    __m512i a[BLOCK], *r = b->rows;
    UNROLL for (int i = 0; i < BLOCK; i += 2) {
        a[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
        a[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
    }
    UNROLL for (int i = 0; i < BLOCK; i += 4)
        UNROLL for (int n = 0; n < 2; n++) {
            r[i + 2 * n] = _mm512_unpacklo_epi64(a[i + n], a[i + 2 + n]);
            r[i + 2 * n + 1] = _mm512_unpackhi_epi64(a[i + n], a[i + 2 + n]);
        }
    UNROLL for (int i = 0; i < 4; i++)
        UNROLL for (int n = 0; n < BLOCK; n += 8) {
            a[n + i] = _mm512_shuffle_i32x4(r[n + i], r[n + 4 + i], 0x88);
            a[n + 4 + i] = _mm512_shuffle_i32x4(r[n + i], r[n + 4 + i], 0xdd);
        }
    UNROLL for (int i = 0; i < 8; i++) {
        r[i] = _mm512_shuffle_i32x4(a[i], a[8 + i], 0x88);
        r[8 + i] = _mm512_shuffle_i32x4(a[i], a[8 + i], 0xdd);
    }
}

/* Two rows of 16 bfloat16 side by side, one after the other in `both`. */
static inline WITH_AMX __m512i in_pairs(__m512i both)
{
    const __m512i order = _mm512_set_epi16(
        31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8,
        23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    return _mm512_permutexvar_epi16(order, both);
}

static inline WITH_AMX __m512i rounded(
    const float *low, __mmask16 lows, const float *high, __mmask16 highs)
{
    return (__m512i)_mm512_cvtne2ps_pbh(_mm512_maskz_loadu_ps(highs, high),
                                        _mm512_maskz_loadu_ps(lows, low));
}

/* A factor whose rows, of a right factor columns, are the rows of x, and whose terms its columns. */
static WITH_AMX void pack_by_row(
    const uint16_t *x, int64_t stride, int64_t rows, int64_t columns, int is_left, block *to)
{
    for (int64_t i = 0; i < rows; i += STRIP)
        for (int64_t k = 0; k < columns; k += STRIP)
            for (int n = 0; n < 2; n++) {
                block b;
                __mmask32 some = lanes(columns - k, 32);
                for (int64_t r = i + n * BLOCK, m = 0; m < BLOCK; r++, m++)
                    b.rows[m] = r < rows ? _mm512_maskz_loadu_epi16(some, x + r * stride + k)
                                         : _mm512_setzero_si512();
                if (!is_left)
                    transpose(&b);
                *to++ = b;
            }
}

/* A right factor whose columns are the columns of x, and whose terms its rows. */
static WITH_AMX void pack_by_column(
    const uint16_t *x, int64_t stride, int64_t rows, int64_t columns, block *to)
{
    for (int64_t c = 0; c < columns; c += STRIP)
        for (int64_t i = 0; i < rows; i += STRIP)
            for (int n = 0; n < 2; n++, to++) {
                const uint16_t *from = x + i * stride + c + n * BLOCK;
                __mmask16 some = lanes(columns - c - n * BLOCK, 16);
                for (int64_t m = 0; m < BLOCK; m++, from += 2 * stride) {
                    __mmask16 low = i + 2 * m < rows ? some : 0, high = i + 2 * m + 1 < rows ? some : 0;
                    __m256i lows = _mm256_maskz_loadu_epi16(low, from);
                    __m256i highs = _mm256_maskz_loadu_epi16(high, from + stride);
                    to->rows[m] = in_pairs(_mm512_inserti64x4(_mm512_castsi256_si512(lows), highs, 1));
                }
            }
}

/* The strip of rows from `first` on as a left factor, rounded. */
static WITH_AMX void pack_scores(
    const float *s, int64_t stride, int64_t first, int64_t rows, int64_t columns, block *to)
{
    for (int64_t k = 0; k < columns; k += STRIP)
        for (int n = 0; n < 2; n++, to++) {
            __mmask16 low = lanes(columns - k, 16), high = lanes(columns - k - BLOCK, 16);
            for (int64_t r = first + n * BLOCK, m = 0; m < BLOCK; r++, m++) {
                const float *from = s + r * stride + k;
                to->rows[m] =
                    r < rows ? rounded(from, low, from + BLOCK, high) : _mm512_setzero_si512();
            }
        }
}

/* The strip of columns from `first` on as the rows of a left factor, rounded. */
static WITH_AMX void pack_turned_scores(
    const float *s, int64_t stride, int64_t first, int64_t rows, int64_t columns, block *to)
{
    for (int64_t i = 0; i < rows; i += STRIP)
        for (int n = 0; n < 2; n++, to++) {
            block b;
            const float *from = s + i * stride + first + n * BLOCK;
            __mmask16 some = lanes(columns - first - n * BLOCK, 16);
            for (int64_t m = 0; m < BLOCK; m++, from += 2 * stride)
                b.rows[m] = in_pairs(rounded(from, i + 2 * m < rows ? some : 0, from + stride,
                                             i + 2 * m + 1 < rows ? some : 0));
            transpose(&b);
            *to = b;
        }
}

static inline WITH_AMX void write_block(const float *found, const sums *s, int64_t row, int64_t column)
{
    __mmask16 some = lanes(s->columns - column, 16);
    __m512 alpha = _mm512_set1_ps(s->alpha);
    int64_t stride = s->stride, count = smaller(s->rows - row, BLOCK);
    float *to = s->to + row * stride + column;
    int add = s->add;
    for (int64_t i = 0; i < count; i++, to += stride, found += BLOCK) {
        __m512 sum = _mm512_mul_ps(alpha, _mm512_load_ps(found));
        if (add)
            sum = _mm512_add_ps(sum, _mm512_maskz_loadu_ps(some, to));
        _mm512_mask_storeu_ps(to, some, sum);
    }
}

/* A strip's product; `terms` are strips, too. */
static WITH_AMX void multiply_strips(const block *left, const block *right, int64_t terms, sums s)
{
    float found[4][BLOCK * BLOCK] __attribute__((aligned(64)));
    STORED;
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int64_t t = 0; t < terms; t++, left += 2, right += 2) {
        _tile_loadd(4, left, 64);
        _tile_loadd(6, right, 64);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(7, right + 1, 64);
        _tile_dpbf16ps(1, 4, 7);
        _tile_loadd(5, left + 1, 64);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, found[0], 64);
    _tile_stored(1, found[1], 64);
    _tile_stored(2, found[2], 64);
    _tile_stored(3, found[3], 64);
    STORED;
    write_block(found[0], &s, 0, 0);
    write_block(found[1], &s, 0, BLOCK);
    write_block(found[2], &s, BLOCK, 0);
    write_block(found[3], &s, BLOCK, BLOCK);
}

/* A strip of rows times a whole right factor, whose strips of columns are `step` blocks apart. */
static WITH_AMX void multiply_strip(
    const block *left, const block *right, int64_t step, int64_t terms, sums s)
{
    for (; s.columns > 0; s.columns -= STRIP, s.to += STRIP, right += step)
        multiply_strips(left, right, terms, s);
}
