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
    void (*z_gradient)(const float *, const float *, const float *, long, float *, long, int, long,
                       long, long);
} functions;

#define FUNCTIONS(f, lanes) \
    {read_row_##f,          write_row_##f,       convolve_panel_##f,    convolve_static_##f, \
     convolve_headwise_##f, static_gradient_##f, headwise_gradient_##f, up_gradient_##f,     \
     z_gradient_##f}

static const functions every[] = FOR_EVERY_INSTRUCTION_SET(FUNCTIONS);

#define use every[convattn_instruction_set]

#include "short_convolution_packing.h"

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
    float *to = w->sums.z + ((share * p->time + start) * p->batch + w->b) * p->ranks;
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
    if (w->sums.u)
        grad_u = w->sums.u + (w->b / p->sentences * panels_of(p) + panel) * p->taps * tap;
    if (w->sums.z && p->heads)
        gradient_of_heads(w, panel, start, w->x, grad, count);
    else if (w->sums.z) {
        int64_t group = w->first_panel / w->group;
        grad_z = w->sums.z + ((group * p->time + start) * p->batch + w->b) * p->stride;
    }
    if (grad_u && !start && w->b % p->sentences == 0)
        memset(grad_u, 0, 4 * p->taps * tap);
    if (p->in_blocks && grad_u && grad_z) {
        gradients_of_blocks(w->x, grad, w->turned_z, w->channel_pairs + n * pairs_of_panel(p),
                            p->stride, grad_u, grad_z, p->batch * p->stride, n > 0, count,
                            p->taps);
        return;
    }
    if (grad_u && p->is_static)
        use.static_gradient(w->x, grad, grad_u, tap, count, p->taps);
    else if (grad_u)
        use.up_gradient(w->x, grad, w->z + skipped * p->stride, p->stride, grad_u, count, p->taps,
                        p->ranks);
    if (grad_z)
        use.z_gradient(w->x, grad, taps_of(w, n), p->stride, grad_z, p->batch * p->stride, n > 0,
                       count, p->taps, p->ranks);
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
        if (!(w->sums.u || w->sums.z) || start >= p->time)
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

/* The gradient of z at one position and sentence: the sum of its parts, GROUP by GROUP of panels,
   however many each part is of. */
static void add_parts_of_z(const problem *p, const float *sums, int64_t group, int64_t t, int64_t b)
{
    long stride = z_stride(p);
    int64_t together = p->heads ? 1 : GROUP / group, step = p->time * p->batch * stride;
    int64_t parts = parts_of_z(p, group);
    const float *first = sums + (t * p->batch + b) * stride;
    int64_t at = t * p->grad_z.time_stride + b * p->grad_z.batch_stride;
    for (long r = 0; r < p->ranks; r += PANEL) {
        float all[PANEL] = {0}, some[PANEL];
        long count = smaller(p->ranks - r, PANEL);
        for (int64_t n = 0; n < parts; n++)
            for (long i = 0; i < count; i++) {
                float part = first[n * step + r + i];
                some[i] = n % together ? some[i] + part : part;
                if ((n + 1) % together == 0 || n + 1 == parts)
                    all[i] += some[i];
            }
        use.write_row(all, count, p->z_is_half, p->grad_z.data + (at + r) * (p->z_is_half ? 2 : 4));
    }
}

/* The gradient of one panel and tap of u. */
static void add_parts_of_u(const problem *p, const float *sums, int64_t panel, int64_t k)
{
    const factor *to = &p->grad_u;
    int64_t size = p->u_is_half ? 2 : 4, step = panels_of(p) * size_of_panel(p);
    long channels = smaller(p->channels - panel * PANEL, PANEL);
    for (long r = 0; r < (p->is_static ? 1 : p->ranks); r++) {
        float all[PANEL + WIDEST] = {0}; /* a whole vector from any channel on */
        const float *first = sums + ((panel * p->taps + k) * p->stride + r) * PANEL;
        for (int64_t n = 0; n < pieces_of_sentences(p); n++)
            for (long c = 0; c < PANEL; c++)
                all[c] += first[n * step + c];
        int64_t at = r * to->rank_stride + k * to->tap_stride + panel * PANEL * to->channel_stride;
        if (to->channel_stride == 1)
            use.write_row(all, channels, p->u_is_half, to->data + at * size);
        else
            for (long c = 0; c < channels; c++)
                use.write_row(all + c, 1, p->u_is_half,
                              to->data + (at + c * to->channel_stride) * size);
    }
}

typedef struct {
    const problem *p;
    int backward;
    int64_t group, next, failed; /* group: panels that a thread takes at once */
    parts sums;
} job;

static void add_parts(void *argument)
{
    job *j = argument;
    const problem *p = j->p;
    int64_t of_z = j->sums.z ? p->time : 0, of_u = j->sums.u ? panels_of(p) * p->taps : 0, n;
    while ((n = __atomic_fetch_add(&j->next, 1, __ATOMIC_RELAXED)) < of_z + of_u)
        if (n < of_z)
            for (int64_t b = 0; b < p->batch; b++)
                add_parts_of_z(p, j->sums.z, j->group, n, b);
        else
            add_parts_of_u(p, j->sums.u, (n - of_z) / p->taps, (n - of_z) % p->taps);
}

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
    w->u = take(&scratch, 4 * panels * size_of_panel(p));
    if (!p->in_blocks)
        return scratch;
    w->kernels = take(&scratch, 4 * p->taps * BLOCK * BLOCK);
    w->half_z = take(&scratch, 2 * w->most_rows * stride);
    w->turned_z = take(&scratch, 2 * stride * TILE);
    w->rank_pairs = take(&scratch, 2 * pairs);
    w->channel_pairs = take(&scratch, 2 * pairs);
    return scratch;
}

static void move_to_panels(piece *w, int64_t first)
{
    const problem *p = w->p;
    if (first == w->first_panel)
        return;
    w->first_panel = first;
    w->panels = smaller(panels_of(p) - first, w->group);
    for (int64_t n = 0; n < w->panels; n++) {
        pack_taps(w, n);
        if (p->in_blocks)
            pair_ranks(taps_of(w, n), p->taps * p->stride, w->rank_pairs + n * pairs_of_panel(p));
        if (p->in_blocks && w->sums.u)
            pair_channels(taps_of(w, n), p->taps, p->stride,
                          w->channel_pairs + n * pairs_of_panel(p));
    }
}

static void work(void *argument)
{
    job *j = argument;
    const problem *p = j->p;
    piece w = {.p = p, .sums = j->sums, .first_panel = -1, .group = j->group,
               .most_rows = TILE + p->taps - 1};
    int64_t pieces = pieces_of_sentences(p), groups = groups_of_panels(p, j->group), n;
    char *scratch = aligned_alloc(64, divide(&w, j->group, NULL) - (char *)NULL);
    if (!scratch) {
        __atomic_store_n(&j->failed, 1, __ATOMIC_RELAXED);
        return;
    }
    divide(&w, j->group, scratch);
    while ((n = __atomic_fetch_add(&j->next, 1, __ATOMIC_RELAXED)) < pieces * groups) {
        move_to_panels(&w, n / pieces * j->group);
        int64_t first = n % pieces * p->sentences, end = smaller(first + p->sentences, p->batch);
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

/* Divides memory for the parts of the gradients that are wanted; returns where it ends. */
static char *divide_parts(job *j, char *memory)
{
    const problem *p = j->p;
    int64_t of_z = parts_of_z(p, j->group) * p->time * p->batch * z_stride(p);
    int64_t of_u = pieces_of_sentences(p) * panels_of(p) * size_of_panel(p);
    if (p->grad_z.data)
        j->sums.z = take(&memory, 4 * of_z);
    if (p->grad_u.data)
        j->sums.u = take(&memory, 4 * of_u);
    return memory;
}

static void run(void (*of)(void *), job *j, unsigned threads, run_in_parallel *parallel)
{
    j->next = 0;
    if (parallel && threads > 1)
        parallel(of, j, threads, 0);
    else
        of(j);
}

/* Returns 0, or 1 when there was no memory for scratch. `parallel` is OpenMP's GOMP_parallel,
   or NULL for one thread. */
int convattn_short_convolve(
    const problem *p, int backward, unsigned threads, run_in_parallel *parallel)
{
    int64_t few = pieces_of_sentences(p) * panels_of(p) < threads * GROUP * RUNS;
    job j = {.p = p, .backward = backward, .group = parallel && threads > 1 && few ? 1 : GROUP};
    char *memory = NULL;
    if (backward && (p->grad_z.data || p->grad_u.data)) {
        size_t size = divide_parts(&j, NULL) - (char *)NULL;
        memory = aligned_alloc(64, size + 64); /* NULL means failure, even if parts are empty */
        if (!memory)
            return 1;
        divide_parts(&j, memory);
    }
    run(work, &j, threads, parallel);
    if (!j.failed && memory)
        run(add_parts, &j, threads, parallel);
    free(memory);
    return (int)j.failed;
}

int convattn_panel_of_short_convolution(void)
{
    return PANEL;
}
