/* Short convolution (Sieberling et al. 2026) on a CPU, with kernels of low rank,

   y[i, b, c] = sum_k (sum_r z[i, b, r] u[r, k, c]) x[i + k - left, b, c]

   or with a static kernel per channel and one per head and position, if there are heads,

   y[i, b, c] = sum_k (u[k, c] + z[i, b, head(c), k]) x[i + k - left, b, c]

   and their gradients; kernels exist in registers alone. A piece of work is some panels of channels of
   some sentences, packed into scratch, in float, by tiles of time, so that edges, strides and dtypes
   are those of the packing alone. Sums do not depend on the number of threads. */

#include <stdlib.h>
#include <string.h>

#define PANEL 64 /* channels */
#define TILE 64  /* positions; whole ROWS */
#define ROWS 8   /* whose sums and taps stay in registers */
#define TAPS 4   /* whose gradients stay in registers */
#define AHEAD 4  /* rows that are brought from memory before they are needed */
#define GROUP 8  /* panels of one piece of work, */
#define RUNS 4   /* if there are as many pieces for each of several threads */

#define KERNELS "short_convolution_tile.h"
#include "instruction_sets.h"
#include "short_convolution_blocks.h"

typedef struct {
    void (*read_row)(const void *, long, int, float *);
    void (*write_row)(const float *, long, int, void *);
    void (*convolve)(const float *, const float *, long, long, const float *, long, float *, long,
                     long, long);
    void (*convolve_static)(const float *, const float *, long, float *, long, long);
    void (*convolve_headwise)(const float *, const float *, long, long, const float *, long, float *,
                              long, long, long, long);
    void (*static_gradient)(const float *, const float *, float *, long, long, long);
    void (*headwise_gradient)(const float *, const float *, float *, long, long, long, long, long);
    void (*up_gradient)(const float *, const float *, const float *, long, float *, long, long,
                        long);
    void (*z_gradient)(const float *, const float *, const float *, long, float *, long, long,
                       long, long);
} functions;

#define FUNCTIONS(f, lanes) \
    {read_row_##f,          write_row_##f,       convolve_panel_##f,    convolve_static_##f, \
     convolve_headwise_##f, static_gradient_##f, headwise_gradient_##f, up_gradient_##f,     \
     z_gradient_##f}

static const functions every[] = FOR_EVERY_INSTRUCTION_SET(FUNCTIONS);

#define use every[convattn_instruction_set]

/* A tensor [time, batch, channels], dense in channels; strides in elements. */
typedef struct {
    char *data;
    int64_t time_stride, batch_stride;
} sequence;

/* `left` is from 0 to taps - 1. Gradients without data are not wanted. */
typedef struct {
    int64_t time, inputs, batch, channels, ranks, taps, left;
    int64_t sentences; /* of a piece of work, which sums their gradients of u */
    int64_t own;    /* the tap whose input is added to the output; -1: none */
    int64_t half;   /* whether sequences are bfloat16 */
    int64_t stride; /* ranks, as whole vectors; 1 of static kernels */
    int64_t is_static; /* whether u is a kernel per channel, and z one per head */
    int64_t heads;     /* of z; 0: z is NULL */
    int64_t head_dim;  /* channels of a head: a divisor of PANEL or a multiple, whole vectors */
    sequence x, y, grad, grad_x;
    const float *z; /* [time, batch, ranks], of heads [time, batch, heads, taps] */
    const float *u; /* [panels, taps, stride, PANEL] */
    /* If AMX is to multiply, else NULL: u in pairs of ranks, [panels, taps, stride / 2, PANEL, 2],
       and of channels, [panels, taps, PANEL / 2, stride, 2] */
    const uint16_t *rank_pairs, *channel_pairs;
    /* [panels, time, batch, stride], of heads [panels of a head, time, batch, heads, taps] */
    float *grad_z;
    float *grad_u;  /* [pieces of sentences, panels, taps, stride, PANEL] */
} problem;

/* Some panels of sentence `b`, and scratch of `most_rows` rows of each: a tile's and its neighbours',
   of which a tile at the end needs `rows`. */
typedef struct {
    const problem *p;
    int64_t b, first_panel, panels;
    long most_rows, rows;
    float *x, *grad, *y, *z, *kernels;
    uint16_t *half_z, *turned_z; /* for AMX, as is `kernels`: [rows, stride], [stride, TILE] */
} piece;

static int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* Floats of a packed row of z. */
static long z_stride(const problem *p)
{
    return p->is_static ? p->ranks : p->stride;
}

/* Packed rows of the tile at `start` of a sequence that ends at `end`. */
static long rows_of(const problem *p, int64_t start, int64_t end)
{
    long count = smaller(end - start, TILE), whole = p->rank_pairs ? BLOCK : ROWS;
    return (count + whole - 1) / whole * whole + p->taps - 1;
}

static int64_t panels_of(const problem *p)
{
    return (p->channels + PANEL - 1) / PANEL;
}

static int64_t pieces_of_sentences(const problem *p)
{
    return (p->batch + p->sentences - 1) / p->sentences;
}

/* Panel `n` of the piece at position t, and how many channels it has. */
static char *row_of(const piece *w, sequence s, int64_t t, int64_t n, long *channels)
{
    int64_t channel = (w->first_panel + n) * PANEL;
    *channels = smaller(w->p->channels - channel, PANEL);
    return s.data + (t * s.time_stride + w->b * s.batch_stride + channel) * (w->p->half ? 2 : 4);
}

/* Fetches panel `n` at position t, to be read or `written`, unless t is outside. */
static void prefetch_row(const piece *w, sequence s, int64_t t, int64_t length, int64_t n,
                         int written)
{
    long channels;
    if (t < 0 || t >= length)
        return;
    const char *row = row_of(w, s, t, n, &channels);
    for (long c = 0; c < channels * (w->p->half ? 2 : 4); c += 4 * LINE)
        if (written)
            __builtin_prefetch(row + c, 1);
        else
            __builtin_prefetch(row + c);
}

static const float *taps_of(const piece *w, int64_t n)
{
    return w->p->u + (w->first_panel + n) * w->p->taps * w->p->stride * PANEL;
}

/* The heads of a panel, and how many of its channels each has. */
typedef struct {
    long first, count, width;
} heads_of_panel;

static heads_of_panel heads_of(const problem *p, int64_t panel)
{
    long first = panel * PANEL / p->head_dim;
    long count = p->head_dim < PANEL ? smaller(PANEL / p->head_dim, p->heads - first) : 1;
    return (heads_of_panel){first, count, smaller(p->head_dim, PANEL)};
}

/* Rows from `first` on, zeros where there are none. */
static void pack(const piece *w, sequence s, int64_t length, int64_t first, float *to)
{
    long channels;
    for (long i = 0; i < w->rows; i++)
        for (int64_t n = 0; n < w->panels; n++) {
            int64_t t = first + i;
            float *row = to + (n * w->most_rows + i) * PANEL;
            prefetch_row(w, s, t + AHEAD, length, n, 0);
            if (t < 0 || t >= length)
                memset(row, 0, 4 * PANEL);
            else {
                const char *from = row_of(w, s, t, n, &channels);
                use.read_row(from, channels, w->p->half, row);
            }
        }
}

static void pack_ranks(const piece *w, int64_t first)
{
    const problem *p = w->p;
    long stride = z_stride(p);
    if (p->is_static && !p->heads)
        return;
    memset(w->z, 0, 4 * w->rows * stride);
    for (long i = 0; i < w->rows; i++)
        if (p->z && first + i >= 0 && first + i < p->time)
            memcpy(w->z + i * stride, p->z + ((first + i) * p->batch + w->b) * p->ranks,
                   4 * p->ranks);
    if (p->rank_pairs)
        halve_ranks(w->z, w->rows * p->stride, w->half_z);
}

/* Rows of `to` from those of x packed; `own` is the row that is added to the first one, if any.
   With a z_step of 1, that of the gradient, taps run backwards. */
static void convolve(const piece *w, const float *x, int64_t own, long z_step, sequence to,
                     int64_t start, int64_t length)
{
    const problem *p = w->p;
    long channels, count = smaller(length - start, TILE), tap = p->stride * PANEL;
    for (int64_t n = 0; n < w->panels; n++) {
        const float *from = x + n * w->most_rows * PANEL, *u = taps_of(w, n);
        float *y = w->y + n * TILE * PANEL;
        long first = z_step ? (p->taps - 1) * tap : 0, u_step = z_step ? -tap : tap;
        if (p->rank_pairs) {
            const uint16_t *pairs = p->rank_pairs + (w->first_panel + n) * p->taps * tap + first;
            convolve_blocks(from, w->half_z, z_step, p->stride, pairs, u_step, w->kernels, own,
                            (uint16_t *)y, count, p->taps);
            continue;
        }
        size_t size = 4 * (w->rows - p->taps + 1) * PANEL;
        if (own >= 0)
            memcpy(y, from + own * PANEL, size);
        else
            memset(y, 0, size);
        if (p->heads) {
            heads_of_panel heads = heads_of(p, w->first_panel + n);
            const float *z = w->z + heads.first * p->taps + (z_step ? p->taps - 1 : 0);
            use.convolve_headwise(from, z, z_step ? p->ranks - 1 : 1, p->ranks, u + first, u_step,
                                  y, count, p->taps, heads.width, heads.count);
        } else if (p->is_static)
            use.convolve_static(from, u + first, u_step, y, count, p->taps);
        else
            use.convolve(from, w->z, z_step, p->stride, u + first, u_step, y, count, p->taps,
                         p->ranks);
    }
    for (long i = 0; i < count; i++)
        for (int64_t n = 0; n < w->panels; n++) {
            char *row = row_of(w, to, start + i, n, &channels);
            prefetch_row(w, to, start + i + AHEAD, length, n, 1);
            float *y = w->y + n * TILE * PANEL;
            if (p->rank_pairs)
                memcpy(row, (uint16_t *)y + i * PANEL, 2 * channels);
            else
                use.write_row(y + i * PANEL, channels, p->half, row);
        }
}

static void forward(piece *w)
{
    const problem *p = w->p;
    for (int64_t start = 0; start < p->time; start += TILE) {
        w->rows = rows_of(p, start, p->time);
        pack(w, p->x, p->inputs, start - p->left, w->x);
        pack_ranks(w, start);
        convolve(w, w->x, p->own, 0, p->y, start, p->time);
    }
}

static void turn_ranks(const piece *w, long skipped, long count)
{
    memset(w->turned_z, 0, 2 * w->p->stride * TILE);
    for (long i = 0; i < count; i++)
        for (long r = 0; r < w->p->ranks; r++)
            w->turned_z[r * TILE + i] = w->half_z[(skipped + i) * w->p->stride + r];
}

/* The gradient of z from `start` on, of one panel. A head of several panels has as many. */
static void gradient_of_heads(const piece *w, int64_t panel, int64_t start, const float *x,
                              const float *grad, long count)
{
    const problem *p = w->p;
    heads_of_panel heads = heads_of(p, panel);
    int64_t share = panel * PANEL % p->head_dim / PANEL;
    float *to = p->grad_z + ((share * p->time + start) * p->batch + w->b) * p->ranks;
    use.headwise_gradient(x, grad, to + heads.first * p->taps, p->batch * p->ranks, count, p->taps,
                          heads.width, heads.count);
}

/* What the outputs from `start` on add to the gradients of z and u; their own gradient and z are
   packed from row `skipped` on. */
static void add_to_factors(const piece *w, int64_t start, long skipped)
{
    const problem *p = w->p;
    long count = smaller(p->time - start, TILE), tap = p->stride * PANEL;
    const float *z = w->z + skipped * p->stride;
    pack(w, p->x, p->inputs, start - p->left, w->x);
    if (p->rank_pairs)
        turn_ranks(w, skipped, count);
    for (int64_t n = 0; n < w->panels; n++) {
        int64_t panel = w->first_panel + n;
        const float *x = w->x + n * w->most_rows * PANEL;
        const float *grad = w->grad + (n * w->most_rows + skipped) * PANEL;
        float *grad_u = NULL, *grad_z = NULL;
        if (p->grad_u)
            grad_u = p->grad_u + (w->b / p->sentences * panels_of(p) + panel) * p->taps * tap;
        if (p->grad_z && p->heads)
            gradient_of_heads(w, panel, start, x, grad, count);
        else if (p->grad_z)
            grad_z = p->grad_z + ((panel * p->time + start) * p->batch + w->b) * p->stride;
        if (grad_u && !start && w->b % p->sentences == 0)
            memset(grad_u, 0, 4 * p->taps * tap);
        if (p->rank_pairs && grad_u && grad_z) {
            gradients_of_blocks(x, grad, w->turned_z, p->channel_pairs + panel * p->taps * tap,
                                p->stride, grad_u, grad_z, p->batch * p->stride, count, p->taps);
            continue;
        }
        if (grad_u && p->is_static)
            use.static_gradient(x, grad, grad_u, tap, count, p->taps);
        else if (grad_u)
            use.up_gradient(x, grad, z, p->stride, grad_u, count, p->taps, p->ranks);
        if (grad_z)
            use.z_gradient(x, grad, taps_of(w, n), p->stride, grad_z, p->batch * p->stride, count,
                           p->taps, p->ranks);
    }
}

/* grad_x[j] = sum_k w[j + left - k, k] grad[j + left - k]: a convolution with turned taps, those
   of the same rows. */
static void backward(piece *w)
{
    const problem *p = w->p;
    int64_t last = p->taps - 1, end = p->inputs > p->time ? p->inputs : p->time;
    for (int64_t start = 0; start < end; start += TILE) {
        w->rows = rows_of(p, start, end);
        pack(w, p->grad, p->time, start + p->left - last, w->grad);
        pack_ranks(w, start + p->left - last);
        if (p->grad_x.data && start < p->inputs)
            convolve(w, w->grad, p->own < 0 ? -1 : last - p->own, 1, p->grad_x, start, p->inputs);
        if ((p->grad_u || p->grad_z) && start < p->time)
            add_to_factors(w, start, last - p->left);
    }
}

typedef struct {
    const problem *p;
    int backward;
    int64_t group, next, failed; /* group: panels that a thread takes at once */
} job;

static float *allocate(piece *w, int64_t panels)
{
    long stride = z_stride(w->p);
    size_t row = panels * PANEL, size = w->most_rows * (2 * row + stride) + TILE * row;
    size_t kernels = w->p->rank_pairs ? w->p->taps * TILE * BLOCK : 0;
    size_t halves = w->p->rank_pairs ? (w->most_rows + TILE) * stride : 0;
    w->x = aligned_alloc(64, (4 * (size + kernels) + 2 * halves + 63) / 64 * 64);
    w->grad = w->x + w->most_rows * row, w->y = w->grad + w->most_rows * row;
    w->z = w->y + TILE * row;
    w->kernels = w->z + w->most_rows * stride;
    w->half_z = (uint16_t *)(w->kernels + kernels);
    w->turned_z = w->half_z + w->most_rows * stride;
    return w->x;
}

static void work(void *argument)
{
    job *j = argument;
    const problem *p = j->p;
    piece w = {.p = p, .most_rows = TILE + p->taps - 1};
    if (!allocate(&w, j->group)) {
        __atomic_store_n(&j->failed, 1, __ATOMIC_RELAXED);
        return;
    }
    if (p->rank_pairs)
        begin_blocks();
    for (;;) {
        int64_t n = j->group * __atomic_fetch_add(&j->next, 1, __ATOMIC_RELAXED);
        int64_t padded = (panels_of(p) + j->group - 1) / j->group * j->group;
        if (n >= pieces_of_sentences(p) * padded)
            break;
        w.first_panel = n % padded;
        w.panels = smaller(panels_of(p) - w.first_panel, j->group);
        int64_t first = n / padded * p->sentences, end = smaller(first + p->sentences, p->batch);
        for (w.b = first; w.b < end; w.b++)
            if (j->backward)
                backward(&w);
            else
                forward(&w);
    }
    if (p->rank_pairs)
        end_blocks();
    free(w.x);
}

/* Returns 0, or 1 when there was no memory for scratch. `parallel` is OpenMP's GOMP_parallel,
   or NULL for one thread. */
int convattn_short_convolve(
    const problem *p, int backward, unsigned threads, run_in_parallel *parallel)
{
    int64_t few = pieces_of_sentences(p) * panels_of(p) < threads * GROUP * RUNS;
    job j = {p, backward, parallel && threads > 1 && few ? 1 : GROUP, 0, 0};
    if (parallel && threads > 1)
        parallel(work, &j, threads, 0);
    else
        work(&j);
    return (int)j.failed;
}

int convattn_panel_of_short_convolution(void)
{
    return PANEL;
}
