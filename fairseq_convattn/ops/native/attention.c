/* What composite attention does with a tile of scores between its matrix products, on a CPU:
   adds the relative terms, takes the softmax, and gives the scores' gradients. Scores are to
   base 2. Sums do not depend on the number of threads. */

#include <math.h>
#include <stdint.h>
#include <string.h>

/* The multipliers of the hash in dropout.py. */
#define FIRST 0x21f0aaadu
#define SECOND 0xd35a2d97u
#define KERNELS "attention_rows.h"
#include "instruction_sets.h"

#define CHUNK 32 /* queries of a piece of work */

typedef struct {
    void (*add)(float *, long, float, const float *);
    float (*unnormalized_weights)(float *, const float *, const float *, long, float, float *);
    void (*weights)(float *, const float *, const float *, long, float);
    void (*gradient)(float *, const float *, long, float, float *);
    float (*sum)(const float *, long);
    void (*factors)(float *, long, uint32_t, uint32_t, int32_t, float);
} functions;

#define FUNCTIONS(f, lanes) \
    {add_##f, unnormalized_weights_##f, weights_##f, gradient_##f, sum_##f, factors_##f}

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
    part s;              /* products, then weights; or dropout's factors */
    part curve;          /* by heads; of the first query, whose successors are shifted by one */
    part column, band, row_step, column_step;
    part lse, sums;
    part gradient, delta; /* of the weights, then of the scores; delta by row */
    part grad_band, grad_row_step;
    part diagonals; /* sums of gradients, by heads and chunks; as curve */
} tile;

/* Unnormalised weights and their sums; weights by a known lse; gradients of the scores; dropout's
   factors. */
enum { UNNORMALIZED_WEIGHTS, WEIGHTS, GRADIENT, FACTORS };

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
}

static void find_gradient(const tile *t, int64_t n, int64_t i, float *diagonals)
{
    float *d = row_of(t->gradient, n, i);
    use.gradient(d, row_of(t->s, n, i), t->columns, *row_of(t->delta, n, i), diagonals);
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

/* As dropout.py, which has the same hash. */
static void find_factors(const tile *t, int64_t n, int64_t i)
{
    uint32_t row = (uint32_t)(t->first_row + n * t->queries + i);
    uint32_t a = hash(hash(row ^ t->low_seed) ^ t->high_seed);
    uint32_t b = hash(hash(row ^ t->high_seed) ^ t->low_seed);
    use.factors(row_of(t->s, n, i), t->columns, a + (uint32_t)t->first_column, b,
                (int32_t)(t->keep * 0x7fffffff), (float)(1 / t->keep));
}

typedef struct {
    const tile *t;
    int pass;
    int64_t chunks, next;
} job;

/* Some queries of one head: of all sentences where they add to the same diagonals. */
static void work_on(const job *j, int64_t head, int64_t chunk)
{
    const tile *t = j->t;
    int64_t end = within((chunk + 1) * CHUNK, t->rows);
    for (int64_t sentence = 0; sentence < t->sentences; sentence++)
        for (int64_t i = chunk * CHUNK; i < end; i++) {
            int64_t n = sentence * t->heads + head;
            float *diagonals = row_of(t->diagonals, head, chunk);
            if (j->pass == FACTORS)
                find_factors(t, n, i);
            else if (j->pass == GRADIENT)
                find_gradient(t, n, i, diagonals ? diagonals - i : 0);
            else
                find_scores(t, n, i, j->pass);
        }
}

static void work(void *argument)
{
    job *j = argument;
    for (;;) {
        int64_t n = __atomic_fetch_add(&j->next, 1, __ATOMIC_RELAXED);
        if (n >= j->t->heads * j->chunks)
            return;
        work_on(j, n / j->chunks, n % j->chunks);
    }
}

/* `pass` is one of the enumeration above, `parallel` OpenMP's GOMP_parallel, or NULL for one
   thread. */
void convattn_attend(const tile *t, int pass, unsigned threads, run_in_parallel *parallel)
{
    job j = {t, pass, (t->rows + CHUNK - 1) / CHUNK, 0};
    if (parallel && threads > 1 && t->heads * j.chunks > 1)
        parallel(work, &j, threads, 0);
    else
        work(&j);
}

int convattn_chunk_of_attention(void)
{
    return CHUNK;
}
