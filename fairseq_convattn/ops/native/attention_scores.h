/* What composite attention does with the rows of a tile of scores: adds the relative terms, takes the
   softmax, and gives the scores' gradients. Scores are to base 2. */

#include <math.h>
#include <stdint.h>
#include <string.h>

/* The multipliers of the hash in dropout.py. */
#define FIRST 0x21f0aaadu
#define SECOND 0xd35a2d97u

/* Of one row, from its first column on. */
typedef struct {
    uint32_t key, second_key;
    int32_t kept;
    float factor;
} dropout;

#define KERNELS "attention_rows.h"
#include "instruction_sets.h"

typedef struct {
    void (*add)(float *, long, float, const float *);
    float (*unnormalized_weights)(float *, const float *, const float *, long, float, float *);
    void (*weights)(float *, const float *, const float *, long, float);
    float (*delta)(float *, float *, long, const dropout *);
    void (*gradient)(float *, float *, long, float, float *, const dropout *);
    void (*accumulate)(float *, const float *, long);
    float (*sum)(const float *, long);
    void (*drop)(float *, long, const dropout *);
} functions;

#define FUNCTIONS(f, lanes) \
    {add_##f,      unnormalized_weights_##f, weights_##f, delta_##f, \
     gradient_##f, accumulate_##f,           sum_##f,     drop_##f}

static const functions every[] = FOR_EVERY_INSTRUCTION_SET(FUNCTIONS);

#define use every[convattn_instruction_set]

/* A tensor of the tile; strides in floats. */
typedef struct {
    float *data;        /* of the first head's first query or, without a row_stride, key */
    int64_t head_stride; /* of sentences and heads as one */
    int64_t row_stride;
} part;

/* A tile of scores [sentences and heads, rows, columns]. Parts without data do not exist. */
typedef struct {
    int64_t sentences, heads, rows, columns;
    int64_t left, right; /* taps of the band before and after a query's own key */
    int64_t own;         /* column of the first query's own key */
    double lowest;       /* a row's largest score counts as this at least */
    int64_t first_row, queries; /* number of the first row, and rows of a head */
    int64_t first_column;       /* number of the first column */
    uint32_t low_seed, high_seed; /* of dropout */
    double keep;                /* the part of the weights that is not dropped */
    part s;              /* products, then weights */
    part curve;          /* by heads; of the first query, whose successors are shifted by one */
    part column, band, row_step, column_step;
    part lse, sums;
    part gradient; /* of the weights, then of the scores */
    part grad_band, grad_row_step;
    part diagonals; /* sums of gradients, by heads and chunks; as curve */
} tile;

/* Unnormalised weights, after dropout, and their sums before it; weights by a known lse; gradients of
   the scores, and dropout of the weights. */
enum { UNNORMALIZED_WEIGHTS, WEIGHTS, GRADIENT };

static uint32_t hash(uint32_t x)
{
    x = (x ^ x >> 16) * FIRST;
    x = (x ^ x >> 15) * SECOND;
    return x ^ x >> 15;
}

static float *row_of(part p, int64_t n, int64_t i)
{
    return p.data ? p.data + n * p.head_stride + i * p.row_stride : 0;
}

static int64_t within(int64_t x, int64_t most)
{
    return x < 0 ? 0 : x > most ? most : x;
}

/* Adds the band and the steps beyond it to a row of products. */
static void add_near_and_far(const tile *t, int64_t n, int64_t i, float *s)
{
    int64_t first = t->own + i - t->left, end = t->own + i + t->right + 1;
    int64_t from = within(first, t->columns), to = within(end, t->columns);
    if (t->band.data && to > from)
        use.add(s + from, to - from, 0, row_of(t->band, n, i) + from - first);
    float step = t->row_step.data ? *row_of(t->row_step, n, i) : 0;
    const float *steps = row_of(t->column_step, n, 0);
    if ((t->row_step.data || steps) && to < t->columns)
        use.add(s + to, t->columns - to, step, steps ? steps + to : 0);
}

/* As dropout.py, which has the same hash. */
static dropout dropout_of(const tile *t, int64_t n, int64_t i)
{
    uint32_t row = (uint32_t)(t->first_row + n * t->queries + i);
    uint32_t key = hash(hash(row ^ t->low_seed) ^ t->high_seed) + (uint32_t)t->first_column;
    uint32_t second_key = hash(hash(row ^ t->high_seed) ^ t->low_seed);
    return (dropout){key, second_key, (int32_t)(t->keep * 0x7fffffff), (float)(1 / t->keep)};
}

static void find_scores(const tile *t, int64_t n, int64_t i, int pass)
{
    float *s = row_of(t->s, n, i), *lse = row_of(t->lse, n, i);
    const float *curve = row_of(t->curve, n % t->heads, 0) - i, *column = row_of(t->column, n, 0);
    add_near_and_far(t, n, i, s);
    if (pass == WEIGHTS) {
        use.weights(s, curve, column, t->columns, *lse);
        return;
    }
    float largest;
    float sum = use.unnormalized_weights(s, curve, column, t->columns, t->lowest, &largest);
    sum = sum < 0.5f ? 0.5f : sum; /* below 0.5 only where the query sees nothing */
    *row_of(t->sums, n, i) = sum;
    *lse = largest + log2f(sum);
    if (t->keep < 1) {
        dropout of_row = dropout_of(t, n, i);
        use.drop(s, t->columns, &of_row);
    }
}

static void find_gradient(const tile *t, int64_t n, int64_t i, float *diagonals)
{
    float *d = row_of(t->gradient, n, i);
    float *weights = row_of(t->s, n, i);
    dropout of_row = dropout_of(t, n, i), *drops = t->keep < 1 ? &of_row : 0;
    float delta = use.delta(d, weights, t->columns, drops);
    use.gradient(d, weights, t->columns, delta, diagonals, drops);
    int64_t first = t->own + i - t->left, end = t->own + i + t->right + 1;
    int64_t from = within(first, t->columns), to = within(end, t->columns);
    if (t->grad_band.data) {
        float *band = row_of(t->grad_band, n, i);
        memset(band, 0, 4 * (end - first));
        if (to > from)
            memcpy(band + from - first, d + from, 4 * (to - from));
    }
    if (t->grad_row_step.data)
        *row_of(t->grad_row_step, n, i) = use.sum(d + to, t->columns - to);
}
