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
#define GROUP 8  /* panels of one piece of work, */
#define RUNS 4   /* if there are as many pieces for each of several threads */

#define KERNELS "short_convolution_tile.h"
#include "instruction_sets.h"
#include "short_convolution_blocks.h"

typedef struct {
    void (*read_row)(const void *, long, int, float *);
    void (*write_row)(const float *, long, int, void *);
    void (*convolve)(const float *, const float *, long, long, const float *, long, long, float *,
                     long, long, long);
    void (*convolve_static)(const float *, const float *, long, long, float *, long, long);
    void (*convolve_headwise)(const float *, const float *, long, long, const float *, long, long,
                              float *, long, long, long, long);
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
    int64_t in_blocks; /* whether AMX is to multiply z and u, which are bfloat16 */
    sequence x, y, grad, grad_x;
    const float *z; /* [time, batch, ranks], of heads [time, batch, heads, taps] */
    const float *u; /* [panels, taps, stride, PANEL] */
    /* [panels, time, batch, stride], of heads [panels of a head, time, batch, heads, taps] */
    float *grad_z;
    float *grad_u;  /* [pieces of sentences, panels, taps, stride, PANEL] */
} problem;

/* Some panels of sentence `b`, and scratch for a tile and its neighbours, at most `most_rows`, of which
   a tile at the end needs `rows`: for one panel of x and y, for all of the gradient. */
typedef struct {
    const problem *p;
    int64_t b, first_panel, panels;
    long most_rows, rows;
    float *x, *grad, *y, *z;
    /* Of AMX: kernels of a block, z as [rows, stride] and [stride, TILE], and u of each panel. */
    float *kernels;
    uint16_t *half_z, *turned_z, *rank_pairs, *channel_pairs;
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
    long count = smaller(end - start, TILE), whole = p->in_blocks ? BLOCK : ROWS;
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

/* Elements of a panel of u in each of AMX's layouts. */
static long pairs_of_panel(const problem *p)
{
    return (p->taps + p->taps % 2) * p->stride * PANEL;
}

/* Where panels from `n` on are at position t. */
static char *row_of(const piece *w, sequence s, int64_t t, int64_t n)
{
    int64_t at = t * s.time_stride + w->b * s.batch_stride + (w->first_panel + n) * PANEL;
    return s.data + at * (w->p->half ? 2 : 4);
}

/* Channels of panels `first` to `end`. */
static long channels_of(const piece *w, int64_t first, int64_t end)
{
    int64_t channel = (w->first_panel + first) * PANEL;
    return smaller(w->p->channels - channel, (end - first) * PANEL);
}

/* While panel `n` of the tile at `start` is computed, brings the next tile's rows, a share of them for
   each panel, to be read or `written`. */
static void prefetch(const piece *w, sequence s, int64_t start, int64_t length, int64_t n, int written)
{
    long bytes = channels_of(w, 0, w->panels) * (w->p->half ? 2 : 4);
    int64_t next = start + TILE, end = smaller(next + TILE * (n + 1) / w->panels, length);
    for (int64_t t = next + TILE * n / w->panels; t < end; t++) {
        const char *row = row_of(w, s, t, 0);
        for (long c = 0; c < bytes; c += 4 * LINE)
            if (written)
                __builtin_prefetch(row + c, 1);
            else
                __builtin_prefetch(row + c, 0, 2);
    }
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

/* Rows of panel `n` from `first` on, zeros where there are none. */
static void pack(const piece *w, sequence s, int64_t length, int64_t first, int64_t n, float *to)
{
    long channels = channels_of(w, n, n + 1);
    for (long i = 0; i < w->rows; i++) {
        int64_t t = first + i;
        if (t >= 0 && t < length)
            use.read_row(row_of(w, s, t, n), channels, w->p->half, to + i * PANEL);
        else
            memset(to + i * PANEL, 0, 4 * PANEL);
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
    if (p->in_blocks)
        halve_ranks(w->z, w->rows * p->stride, w->half_z);
}

/* Panel `n` of `to` from that of x packed; `own` is the row that is added to the first one, if any.
   With a z_step of 1, that of the gradient, taps run backwards. */
static void convolve(const piece *w, int64_t n, const float *x, int64_t own, long z_step, sequence to,
                     int64_t start, int64_t length)
{
    const problem *p = w->p;
    long count = smaller(length - start, TILE), tap = p->stride * PANEL;
    long first = z_step ? (p->taps - 1) * tap : 0, u_step = z_step ? -tap : tap;
    const float *u = taps_of(w, n) + first;
    if (p->in_blocks)
        convolve_blocks(x, w->half_z, z_step, p->stride,
                        w->rank_pairs + n * pairs_of_panel(p) + first, u_step, w->kernels, own,
                        (uint16_t *)w->y, count, p->taps);
    else if (p->heads) {
        heads_of_panel heads = heads_of(p, w->first_panel + n);
        const float *z = w->z + heads.first * p->taps + (z_step ? p->taps - 1 : 0);
        use.convolve_headwise(x, z, z_step ? p->ranks - 1 : 1, p->ranks, u, u_step, own, w->y, count,
                              p->taps, heads.width, heads.count);
    } else if (p->is_static)
        use.convolve_static(x, u, u_step, own, w->y, count, p->taps);
    else
        use.convolve(x, w->z, z_step, p->stride, u, u_step, own, w->y, count, p->taps, p->ranks);
    prefetch(w, to, start, length, n, 1);
    long channels = channels_of(w, n, n + 1);
    for (long i = 0; i < count; i++) {
        char *row = row_of(w, to, start + i, n);
        if (!p->in_blocks)
            use.write_row(w->y + i * PANEL, channels, p->half, row);
        else if (channels == PANEL)
            memcpy(row, (uint16_t *)w->y + i * PANEL, 2 * PANEL);
        else
            memcpy(row, (uint16_t *)w->y + i * PANEL, 2 * channels);
    }
}

static void forward(piece *w)
{
    const problem *p = w->p;
    if (p->in_blocks)
        begin_blocks(BLOCK);
    for (int64_t start = 0; start < p->time; start += TILE) {
        w->rows = rows_of(p, start, p->time);
        pack_ranks(w, start);
        for (int64_t n = 0; n < w->panels; n++) {
            pack(w, p->x, p->inputs, start - p->left, n, w->x);
            prefetch(w, p->x, start - p->left + p->taps - 1, p->inputs, n, 0);
            convolve(w, n, w->x, p->own, 0, p->y, start, p->time);
        }
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

/* What panel `n` of the outputs from `start` on adds to the gradients of z and u; their own gradient
   and z are packed from row `skipped` on. */
static void add_to_factors(const piece *w, int64_t n, int64_t start, long skipped)
{
    const problem *p = w->p;
    long count = smaller(p->time - start, TILE), tap = p->stride * PANEL;
    int64_t panel = w->first_panel + n;
    const float *grad = w->grad + (n * w->most_rows + skipped) * PANEL;
    float *grad_u = NULL, *grad_z = NULL;
    if (p->grad_u)
        grad_u = p->grad_u + (w->b / p->sentences * panels_of(p) + panel) * p->taps * tap;
    if (p->grad_z && p->heads)
        gradient_of_heads(w, panel, start, w->x, grad, count);
    else if (p->grad_z)
        grad_z = p->grad_z + ((panel * p->time + start) * p->batch + w->b) * p->stride;
    if (grad_u && !start && w->b % p->sentences == 0)
        memset(grad_u, 0, 4 * p->taps * tap);
    if (p->in_blocks && grad_u && grad_z) {
        gradients_of_blocks(w->x, grad, w->turned_z, w->channel_pairs + n * pairs_of_panel(p),
                            p->stride, grad_u, grad_z, p->batch * p->stride, count, p->taps);
        return;
    }
    if (grad_u && p->is_static)
        use.static_gradient(w->x, grad, grad_u, tap, count, p->taps);
    else if (grad_u)
        use.up_gradient(w->x, grad, w->z + skipped * p->stride, p->stride, grad_u, count, p->taps,
                        p->ranks);
    if (grad_z)
        use.z_gradient(w->x, grad, taps_of(w, n), p->stride, grad_z, p->batch * p->stride, count,
                       p->taps, p->ranks);
}

/* grad_x[j] = sum_k w[j + left - k, k] grad[j + left - k]: a convolution with turned taps, those
   of the same rows. */
static void backward(piece *w)
{
    const problem *p = w->p;
    int64_t last = p->taps - 1, end = p->inputs > p->time ? p->inputs : p->time;
    for (int64_t start = 0; start < end; start += TILE) {
        int64_t first = start + p->left - last;
        w->rows = rows_of(p, start, end);
        pack_ranks(w, first);
        if (p->in_blocks)
            begin_blocks(BLOCK);
        for (int64_t n = 0; n < w->panels; n++) {
            float *grad = w->grad + n * w->most_rows * PANEL;
            pack(w, p->grad, p->time, first, n, grad);
            prefetch(w, p->grad, first + last, p->time, n, 0);
            if (p->grad_x.data && start < p->inputs)
                convolve(w, n, grad, p->own < 0 ? -1 : last - p->own, 1, p->grad_x, start, p->inputs);
        }
        if (!(p->grad_u || p->grad_z) || start >= p->time)
            continue;
        if (p->in_blocks) {
            begin_blocks(2 * BLOCK);
            turn_ranks(w, last - p->left, smaller(p->time - start, TILE));
        }
        for (int64_t n = 0; n < w->panels; n++) {
            pack(w, p->x, p->inputs, start - p->left, n, w->x);
            prefetch(w, p->x, start - p->left + last, p->inputs, n, 0);
            add_to_factors(w, n, start, last - p->left);
        }
    }
}

typedef struct {
    const problem *p;
    int backward;
    int64_t group, next, failed; /* group: panels that a thread takes at once */
} job;

/* The next `size` bytes of scratch, in lines of their own. */
static void *take(char **scratch, size_t size)
{
    char *taken = *scratch;
    *scratch += (size + 63) / 64 * 64;
    return taken;
}

/* Divides `scratch`; returns where it ends. */
static char *divide(piece *w, int64_t panels, char *scratch)
{
    const problem *p = w->p;
    size_t rows = 4 * w->most_rows * PANEL, stride = z_stride(p), pairs = panels * pairs_of_panel(p);
    w->x = take(&scratch, rows);
    w->grad = take(&scratch, panels * rows);
    w->y = take(&scratch, 4 * TILE * PANEL);
    w->z = take(&scratch, 4 * w->most_rows * stride);
    if (!p->in_blocks)
        return scratch;
    w->kernels = take(&scratch, 4 * p->taps * BLOCK * BLOCK);
    w->half_z = take(&scratch, 2 * w->most_rows * stride);
    w->turned_z = take(&scratch, 2 * stride * TILE);
    w->rank_pairs = take(&scratch, 2 * pairs);
    w->channel_pairs = take(&scratch, 2 * pairs);
    return scratch;
}

/* Makes `first` the first panel of at most `panels`. */
static void move_to_panels(piece *w, int64_t first, int64_t panels)
{
    const problem *p = w->p;
    if (first == w->first_panel)
        return;
    w->first_panel = first;
    w->panels = smaller(panels_of(p) - first, panels);
    for (int64_t n = 0; p->in_blocks && n < w->panels; n++) {
        pair_ranks(taps_of(w, n), p->taps * p->stride, w->rank_pairs + n * pairs_of_panel(p));
        if (p->grad_u)
            pair_channels(taps_of(w, n), p->taps, p->stride,
                          w->channel_pairs + n * pairs_of_panel(p));
    }
}

static void work(void *argument)
{
    job *j = argument;
    const problem *p = j->p;
    piece w = {.p = p, .first_panel = -1, .most_rows = TILE + p->taps - 1};
    char *scratch = aligned_alloc(64, divide(&w, j->group, NULL) - (char *)NULL);
    if (!scratch) {
        __atomic_store_n(&j->failed, 1, __ATOMIC_RELAXED);
        return;
    }
    divide(&w, j->group, scratch);
    for (;;) {
        int64_t n = j->group * __atomic_fetch_add(&j->next, 1, __ATOMIC_RELAXED);
        int64_t padded = (panels_of(p) + j->group - 1) / j->group * j->group;
        if (n >= pieces_of_sentences(p) * padded)
            break;
        move_to_panels(&w, n % padded, j->group);
        int64_t first = n / padded * p->sentences, end = smaller(first + p->sentences, p->batch);
        for (w.b = first; w.b < end; w.b++)
            if (j->backward)
                backward(&w);
            else
                forward(&w);
    }
    if (p->in_blocks)
        end_blocks();
    free(scratch);
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
