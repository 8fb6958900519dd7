/* Composite attention of bfloat16 on a CPU, with products by AMX. A piece of work is a head of a
   sentence, or some of its queries in the forward pass; the scores of some queries at a time exist, in
   float. They are rounded for their products, with sums in float, which do not depend on the number of
   threads. */

#include <stdlib.h>

#include "amx.h"
#if defined(HAS_AMX)
#include "attention_scores.h"

#define QUERIES 128       /* that exist at once in the backward pass; whole strips */
#define SCORES (1L << 17) /* of these queries at most, or of one strip */
#define PIECES 4          /* of each thread at least, if there are as many */

/* A tensor [heads of all sentences, positions, channels], dense in channels; strides in elements. */
typedef struct {
    uint16_t *data;
    int64_t head_stride, row_stride;
} sequence;

/* Parts are as in a tile, but from the first query and key on. `curve` is of the first query's first
   key; gradients without data are not wanted. */
typedef struct {
    int64_t count, heads, queries, keys, width, values; /* count: of all sentences */
    int64_t left, right;      /* of the band */
    int64_t reach, is_causal; /* reach: how far queries see; -1: everywhere */
    double scale, hidden;     /* hidden: largest score of a key that is not seen */
    uint32_t low_seed, high_seed; /* of dropout */
    double keep;
    sequence q, k, v, y, grad, grad_q, grad_k, grad_v;
    part curve, column, band, row_step, column_step, lse;
    part grad_curve, grad_column, grad_band, grad_row_step, grad_column_step;
} attention;

#include "attention_blocks.h"

/* A head, and scratch. Packed factors begin at the first key. */
typedef struct {
    const attention *a;
    int64_t n, most_queries;
    int64_t first_key, end_key; /* that are seen */
    block *k_right, *k_turned, *v_right, *v_turned; /* turned: terms are channels */
    block *q_left, *grad_left, *q_right, *grad_right, *scores_left;
    float *scores, *grad, *rows, *grad_k, *grad_v, *sums;
} piece;

static uint16_t *row_in(sequence x, int64_t n, int64_t i)
{
    return x.data + n * x.head_stride + i * x.row_stride;
}

/* Floats from one query's scores to the next one's. */
static int64_t stride_of_scores(const attention *a)
{
    return STRIP * strips_of(a->keys);
}

/* Skips padding at both ends; at least one key remains. */
static void find_seen(piece *w)
{
    const attention *a = w->a;
    const float *column = row_of(a->column, w->n, 0);
    w->first_key = 0, w->end_key = a->keys;
    if (!column)
        return;
    while (w->end_key > 1 && column[w->end_key - 1] <= a->hidden)
        w->end_key--;
    while (w->first_key < w->end_key - 1 && column[w->first_key] <= a->hidden)
        w->first_key++;
}

/* The keys that some of these queries see, from a whole strip after the first key on. */
static void find_keys(const piece *w, int64_t query, int64_t queries, int64_t *from, int64_t *to)
{
    const attention *a = w->a;
    int64_t own = a->keys - a->queries + query, first = w->first_key, end = w->end_key;
    if (a->reach >= 0 && own - a->reach > first)
        first = smaller(own - a->reach, end - 1);
    if (a->reach >= 0)
        end = smaller(end, own + queries + a->reach);
    if (a->is_causal)
        end = smaller(end, own + queries);
    *from = w->first_key + (first - w->first_key) / STRIP * STRIP;
    *to = end > *from ? end : *from + 1;
}

static part from_row(part p, int64_t row)
{
    return (part){p.data ? p.data + row * p.row_stride : 0, p.head_stride, p.row_stride};
}

static part from_column(part p, int64_t column)
{
    return (part){p.data ? p.data + column : 0, p.head_stride, p.row_stride};
}

static tile tile_of(const piece *w, int64_t query, int64_t queries, int64_t from, int64_t to)
{
    const attention *a = w->a;
    int64_t stride = stride_of_scores(a);
    return (tile){
        .heads = a->heads,
        .rows = queries,
        .columns = to - from,
        .left = a->left,
        .right = a->right,
        .own = a->keys - a->queries + query - from,
        .lowest = a->hidden,
        .first_row = query,
        .queries = a->queries,
        .first_column = from,
        .low_seed = a->low_seed,
        .high_seed = a->high_seed,
        .keep = a->keep,
        .s = {w->scores, 0, stride},
        .curve = from_column(a->curve, from - query),
        .column = from_column(a->column, from),
        .band = from_row(a->band, query),
        .row_step = from_row(a->row_step, query),
        .column_step = from_column(a->column_step, from),
        .lse = from_row(a->lse, query),
        .sums = {w->sums, 0, 1},
        .gradient = {w->grad, 0, stride},
        .grad_band = from_row(a->grad_band, query),
        .grad_row_step = from_row(a->grad_row_step, query),
    };
}

/* [queries, keys] = alpha left right, of packed queries and of keys from `from` to `to`. */
static WITH_AMX void multiply_keys(const piece *w, const block *left, const block *right, int64_t width,
                                   int64_t queries, int64_t from, int64_t to, float alpha, float *scores)
{
    int64_t terms = strips_of(width), stride = stride_of_scores(w->a);
    right += 2 * terms * ((from - w->first_key) / STRIP);
    for (int64_t i = 0; i < queries; i += STRIP, left += 2 * terms)
        multiply_strip(left, right, 2 * terms, terms,
                       (sums){scores + i * stride, stride, queries - i, to - from, alpha, 0});
}

/* Rows of a result: a strip of weights of keys `from` to `to` times their values, or keys. */
static WITH_AMX void multiply_values(const piece *w, const float *scores, const block *right, int64_t width,
                                     int64_t first, int64_t queries, int64_t from, int64_t to, float alpha)
{
    int64_t terms = strips_of(to - from), all = strips_of(w->end_key - w->first_key);
    pack_scores(scores, stride_of_scores(w->a), first, queries, to - from, w->scores_left);
    right += 2 * ((from - w->first_key) / STRIP);
    multiply_strip(w->scores_left, right, 2 * all, terms,
                   (sums){w->rows, STRIP * strips_of(width), queries - first, width, alpha, 0});
}

/* Adds turned scores times packed rows, of the queries, to the gradient of keys or values. */
static WITH_AMX void add_to_keys(const piece *w, const float *scores, const block *right, int64_t width,
                                 int64_t queries, int64_t from, int64_t to, float alpha, float *grad)
{
    int64_t terms = strips_of(queries), stride = STRIP * strips_of(width);
    for (int64_t c = 0; c < to - from; c += STRIP) {
        pack_turned_scores(scores, stride_of_scores(w->a), c, queries, to - from, w->scores_left);
        float *rows = grad + (from - w->first_key + c) * stride;
        multiply_strip(w->scores_left, right, 2 * terms, terms,
                       (sums){rows, stride, to - from - c, width, alpha, 1});
    }
}

/* `count` floats times `factor`. */
static WITH_AMX void write_halves(const float *from, float factor, int64_t count, uint16_t *to)
{
    for (int64_t c = 0; c < count; c += BLOCK) {
        __mmask16 some = lanes(count - c, 16);
        __m512 x = _mm512_mul_ps(_mm512_maskz_loadu_ps(some, from + c), _mm512_set1_ps(factor));
        _mm256_mask_storeu_epi16(to + c, some, (__m256i)_mm512_cvtneps_pbh(x));
    }
}

static void find_rows_of_scores(const tile *t, int64_t n, int pass)
{
    for (int64_t i = 0; i < t->rows; i++)
        find_scores(t, n, i, pass);
}

/* What queries `query` on, at most a strip, attend to. */
static WITH_AMX void attend_strip(piece *w, int64_t query, int64_t queries)
{
    const attention *a = w->a;
    int64_t from, to;
    find_keys(w, query, queries, &from, &to);
    tile t = tile_of(w, query, queries, from, to);
    pack_by_row(row_in(a->q, w->n, query), a->q.row_stride, queries, a->width, 1, w->q_left);
    multiply_keys(w, w->q_left, w->k_turned, a->width, queries, from, to, (float)a->scale * LOG2_E,
                  w->scores);
    find_rows_of_scores(&t, w->n, UNNORMALIZED_WEIGHTS);
    multiply_values(w, w->scores, w->v_right, a->values, 0, queries, from, to, 1);
    for (int64_t i = 0; i < queries; i++)
        write_halves(w->rows + i * STRIP * strips_of(a->values), 1 / w->sums[i], a->values,
                     row_in(a->y, w->n, query + i));
}

static WITH_AMX void attend_queries(piece *w, int64_t query, int64_t end)
{
    const attention *a = w->a;
    find_seen(w);
    int64_t from, to;
    find_keys(w, query, end - query, &from, &to);
    w->first_key = from, w->end_key = to;
    int64_t keys = to - from;
    pack_by_row(row_in(a->k, w->n, from), a->k.row_stride, keys, a->width, 0, w->k_turned);
    pack_by_column(row_in(a->v, w->n, from), a->v.row_stride, keys, a->values, w->v_right);
    for (; query < end; query += STRIP)
        attend_strip(w, query, smaller(end - query, STRIP));
}

/* Sums of the scores' gradients by key: all, and those beyond the band. */
static void add_to_columns(const piece *w, const tile *t, int64_t from)
{
    const attention *a = w->a;
    float *column = row_of(a->grad_column, w->n, 0), *step = row_of(a->grad_column_step, w->n, 0);
    for (int64_t i = 0; i < t->rows; i++) {
        const float *d = row_of(t->gradient, 0, i);
        int64_t beyond = within(t->own + i + t->right + 1, t->columns);
        if (column)
            use.accumulate(column + from, d, t->columns);
        if (step)
            use.accumulate(step + from + beyond, d + beyond, t->columns - beyond);
    }
}

static void find_gradients_of_scores(const piece *w, const tile *t, int64_t query, int64_t from)
{
    const attention *a = w->a;
    float *diagonals = row_of(a->grad_curve, w->n, 0);
    for (int64_t i = 0; i < t->rows; i++)
        find_gradient(t, w->n, i, diagonals ? diagonals + from - query - i : 0);
    if (a->grad_column.data || a->grad_column_step.data)
        add_to_columns(w, t, from);
}

/* The share of queries `query` on in all gradients. */
static WITH_AMX void add_gradients(piece *w, int64_t query, int64_t queries)
{
    const attention *a = w->a;
    int64_t from, to, n = w->n;
    find_keys(w, query, queries, &from, &to);
    tile t = tile_of(w, query, queries, from, to);
    const uint16_t *q = row_in(a->q, n, query), *grad = row_in(a->grad, n, query);
    pack_by_row(q, a->q.row_stride, queries, a->width, 1, w->q_left);
    pack_by_row(grad, a->grad.row_stride, queries, a->values, 1, w->grad_left);
    multiply_keys(w, w->q_left, w->k_turned, a->width, queries, from, to, (float)a->scale * LOG2_E,
                  w->scores);
    multiply_keys(w, w->grad_left, w->v_turned, a->values, queries, from, to, 1, w->grad);
    find_rows_of_scores(&t, n, WEIGHTS);
    find_gradients_of_scores(w, &t, query, from);
    if (a->grad_v.data) {
        pack_by_column(grad, a->grad.row_stride, queries, a->values, w->grad_right);
        add_to_keys(w, w->scores, w->grad_right, a->values, queries, from, to, 1, w->grad_v);
    }
    if (a->grad_k.data) {
        pack_by_column(q, a->q.row_stride, queries, a->width, w->q_right);
        add_to_keys(w, w->grad, w->q_right, a->width, queries, from, to, (float)a->scale, w->grad_k);
    }
    for (int64_t i = 0; a->grad_q.data && i < queries; i += STRIP) {
        multiply_values(w, w->grad, w->k_right, a->width, i, queries, from, to, (float)a->scale);
        for (int64_t r = 0; r < smaller(queries - i, STRIP); r++)
            write_halves(w->rows + r * STRIP * strips_of(a->width), 1, a->width,
                         row_in(a->grad_q, n, query + i + r));
    }
}

/* Sums of keys that are seen, and zeros for the others. */
static WITH_AMX void write_gradient(const piece *w, const float *grad, int64_t width, sequence to)
{
    for (int64_t j = 0; j < w->a->keys; j++) {
        uint16_t *row = row_in(to, w->n, j);
        if (j < w->first_key || j >= w->end_key)
            memset(row, 0, 2 * width);
        else
            write_halves(grad + (j - w->first_key) * STRIP * strips_of(width), 1, width, row);
    }
}

static WITH_AMX void find_gradients(piece *w)
{
    const attention *a = w->a;
    find_seen(w);
    int64_t keys = w->end_key - w->first_key;
    const uint16_t *k = row_in(a->k, w->n, w->first_key), *v = row_in(a->v, w->n, w->first_key);
    pack_by_row(k, a->k.row_stride, keys, a->width, 0, w->k_turned);
    pack_by_column(k, a->k.row_stride, keys, a->width, w->k_right);
    pack_by_row(v, a->v.row_stride, keys, a->values, 0, w->v_turned);
    memset(w->grad_k, 0, 4 * keys * STRIP * strips_of(a->width));
    memset(w->grad_v, 0, 4 * keys * STRIP * strips_of(a->values));
    for (int64_t query = 0; query < a->queries; query += w->most_queries)
        add_gradients(w, query, smaller(a->queries - query, w->most_queries));
    if (a->grad_k.data)
        write_gradient(w, w->grad_k, a->width, a->grad_k);
    if (a->grad_v.data)
        write_gradient(w, w->grad_v, a->values, a->grad_v);
}

static void *allocate(piece *w, int backward)
{
    const attention *a = w->a;
    size_t keys = strips_of(a->keys), width = strips_of(a->width), values = strips_of(a->values);
    int64_t most = SCORES / (keys * STRIP) / STRIP * STRIP;
    most = backward ? smaller(most, QUERIES) : STRIP;
    w->most_queries = most > STRIP ? most : STRIP;
    size_t queries = w->most_queries / STRIP, both = backward ? 1 : 0, strip = 2 * sizeof(block);
    size_t most_terms = keys > queries ? keys : queries, wide = width > values ? width : values;
    size_t floats = 4 * STRIP;
    const struct {
        void *to;
        size_t bytes;
    } parts[] = {
        {&w->k_turned, keys * width * strip},
        {&w->k_right, both * keys * width * strip},
        {&w->v_right, (1 - both) * keys * values * strip},
        {&w->v_turned, both * keys * values * strip},
        {&w->q_left, queries * width * strip},
        {&w->q_right, both * queries * width * strip},
        {&w->grad_left, both * queries * values * strip},
        {&w->grad_right, both * queries * values * strip},
        {&w->scores_left, most_terms * strip},
        {&w->scores, queries * STRIP * keys * floats},
        {&w->grad, both * queries * STRIP * keys * floats},
        {&w->rows, STRIP * wide * floats},
        {&w->grad_k, both * STRIP * keys * width * floats},
        {&w->grad_v, both * STRIP * keys * values * floats},
        {&w->sums, queries * floats},
    };
    size_t size = 0, count = sizeof parts / sizeof *parts;
    for (size_t n = 0; n < count; n++)
        size += parts[n].bytes;
    char *all = aligned_alloc(64, size), *next = all;
    for (size_t n = 0; all && n < count; next += parts[n++].bytes)
        *(void **)parts[n].to = next;
    return all;
}

typedef struct {
    const attention *a;
    int backward;
    int64_t parts, next, failed; /* parts: of the queries of a head */
} job;

static WITH_AMX void work(void *argument)
{
    job *j = argument;
    const attention *a = j->a;
    piece w = {.a = a};
    void *all = allocate(&w, j->backward);
    if (!all) {
        __atomic_store_n(&j->failed, 1, __ATOMIC_RELAXED);
        return;
    }
    begin_blocks(STRIP);
    int64_t strips = strips_of(a->queries);
    for (;;) {
        int64_t next = __atomic_fetch_add(&j->next, 1, __ATOMIC_RELAXED), n = next % j->parts;
        w.n = next / j->parts;
        if (w.n >= a->count)
            break;
        if (j->backward)
            find_gradients(&w);
        else
            attend_queries(&w, n * strips / j->parts * STRIP,
                           smaller(a->queries, (n + 1) * strips / j->parts * STRIP));
    }
    end_blocks();
    free(all);
}

/* Returns 0, or 1 when there was no memory for scratch. `parallel` is OpenMP's GOMP_parallel,
   or NULL for one thread. */
int convattn_attend_bfloat16(const attention *a, int backward, unsigned threads, run_in_parallel *parallel)
{
    int64_t most = backward ? 1 : strips_of(a->queries);
    threads = parallel ? smaller(threads, a->count * most) : 1;
    int64_t wanted = a->count ? (PIECES * threads + a->count - 1) / a->count : 1;
    job j = {a, backward, threads > 1 ? smaller(wanted, most) : 1, 0, 0};
    if (threads > 1)
        parallel(work, &j, threads, 0);
    else
        work(&j);
    return (int)j.failed;
}
#endif
