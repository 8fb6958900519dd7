/* Lightweight and dynamic convolution (Wu et al. 2019, eq. 4 and 5) on a CPU.

   y[i, b, c] = sum_k w[i, b, h, k] x[i + k - left, b, c],   h = c / (channels / heads)

   and its gradients, where w are the taps or their softmax, times DropConnect's factors. Every
   (sentence, head, tile of time) is packed into scratch, in float, so that strides, padding and
   dtypes are those of the packing alone; but few taps take their inputs from where they lie. Sums
   do not depend on the number of threads. */

#include "convolution_packing.h"

#define RUNS 8 /* of tiles, for each of several threads */
#define FEW_TAPS 40 /* that are faster where their inputs lie than packed */
#define FEWER_TAPS 8 /* likewise of gradients, which packed serve both the inputs' and the taps' */

/* The lines of rows `at` elements from `data`, which will be written. */
static void prefetch_outputs(
    const void *data, int64_t at, int64_t stride, long rows, long width, int half)
{
    long size = half ? 2 : 4, line_size = 4 * LINE;
    for (long i = 0; i < rows; i++) {
        uintptr_t begin = (uintptr_t)data + size * (at + i * stride), end = begin + size * width;
        for (uintptr_t line = begin / line_size * line_size; line < end; line += line_size)
            __builtin_prefetch((void *)line, 1);
    }
}

/* A convolution: of the inputs or, with the taps turned, of the outputs' gradient. */
typedef struct {
    sequence from, to;
    int64_t length, shift; /* of `from`; output i has its first tap at from[i + shift] */
    long first_tap, tap_step; /* of a tile's first output, and from one tap to the next */
    float *packed;
    long few; /* taps that do without packing */
} pass;

static const float *taps_at(const tile *t, const pass *c, strip q, long row, long tap)
{
    return taps_slot(t, t->w, q.head) + c->first_tap + row * t->step + tap * c->tap_step;
}

/* Inputs that the tile before has packed too; whole groups of those that are interleaved. */
static long kept_rows(const tile *t)
{
    return t->continued ? (t->p->taps - 1) / ROWS * ROWS : 0;
}

/* Outputs of a tile from its inputs packed. */
static void convolve_packed(const tile *t, const pass *c, long time)
{
    const problem *p = t->p;
    pack(t, c->from, c->length, t->start + c->shift, time + p->taps - 1, kept_rows(t), use.spread,
         c->packed);
    for (long n = 0; n < time; n += BLOCK)
        for (long i = 0; i < t->strips; i++) {
            strip q = strip_at(p, t->first + i);
            long stride, count = at_most(time - n, BLOCK);
            float *y = outputs(t, c->to, q, n, &stride);
            prefetch_outputs(c->to.data, place_of(t, c->to, q, n), c->to.time_stride, count,
                             q.channels, p->half);
            use.convolve(slot(t, c->packed, i) + n * q.width, q.width, taps_at(t, c, q, n, 0),
                         t->step, c->tap_step, y, stride, count, q.width, p->taps);
            write_outputs(t, c->to, q, n, count);
        }
}

/* Outputs from row `first` to `end`, `rows` at once, from where those of their inputs lie that
   exist, all of them if there are several rows. */
static void convolve_in_place(const tile *t, const pass *c, long first, long end, long rows)
{
    const problem *p = t->p;
    for (long n = first; n < end; n += rows) {
        int64_t input = t->start + n + c->shift, skipped = input < 0 ? -input : 0;
        int64_t taps = at_most(c->length - input, p->taps) - skipped;
        taps = taps > 0 ? taps : 0;
        for (long i = 0; i < t->strips; i++) {
            strip q = strip_at(p, t->first + i);
            int64_t at = taps ? row_of(&c->from, input + skipped, t->b) + q.channel : 0;
            long stride, count = at_most(end - n, rows);
            float *y = outputs(t, c->to, q, n, &stride);
            prefetch_outputs(y, 0, stride, count, q.width, 0);
            use.convolve((float *)c->from.data + at, c->from.time_stride,
                         taps_at(t, c, q, n, skipped), t->step, c->tap_step, y, stride, count,
                         q.width, taps);
        }
    }
}

/* Whether at most `few` taps take their inputs from where they lie, as whole vectors of floats. */
static int is_in_place(const problem *p, sequence s, long few)
{
    return p->taps <= few && !p->half && !s.index && p->head_dim % use.lanes == 0;
}

static void convolve_tile(const tile *t, const pass *c, long time)
{
    const problem *p = t->p;
    if (!is_in_place(p, c->from, c->few)) {
        convolve_packed(t, c, time);
        return;
    }
    int64_t input = t->start + c->shift, last = c->length - p->taps + 1 - input;
    long first = input < 0 ? at_most(-input, time) : 0;
    long end = last > first ? at_most(last, time) : first;
    convolve_in_place(t, c, 0, first, 1);
    convolve_in_place(t, c, first, end, ROWS);
    convolve_in_place(t, c, end, time, 1);
}

static void forward_tile(const tile *t)
{
    const problem *p = t->p;
    long time = at_most(p->time - t->start, TILE);
    pack_taps(t, t->start, time, 0);
    convolve_tile(t, &(pass){p->x, p->y, p->inputs, -p->left, 0, 1, t->x, FEW_TAPS}, time);
}

/* grad_x[j] = sum_k w[j + left - k, k] grad[j + left - k]: a convolution with turned taps, where
   the k-th one of output j is the last but k of row j + k. */
static void input_gradient_tile(const tile *t)
{
    const problem *p = t->p;
    long time = at_most(p->inputs - t->start, TILE), last = p->taps - 1;
    int64_t shift = p->left - last;
    pack_taps(t, t->start + shift, time + last, t->continued ? last : 0);
    pass turned = {p->grad, p->grad_x, p->time, shift, last, t->step - 1, t->grad, FEWER_TAPS};
    convolve_tile(t, &turned, time);
}

/* Adds all rows of the weights' gradient to the first one, which is left. */
static long add_rows(const tile *t, long rows)
{
    for (long i = 1; i < rows; i++)
        for (long k = 0; k < t->p->taps; k++)
            t->grad_w[k] += t->grad_w[i * t->stride + k];
    return 1;
}

/* From the gradient of a head's weights to that of its taps; rows of weights from `first_row`. */
static void write_tap_gradient(const tile *t, int64_t head, long time, long first_row)
{
    const problem *p = t->p;
    float *to = p->grad_w.data;
    int64_t first = t->start;
    const float *w = taps_slot(t, t->w, head) + first_row * t->step;
    const float *undropped = taps_slot(t, t->undropped, head) + first_row * t->step;
    if (p->shared) {
        time = add_rows(t, time);
        first /= TILE;
    }
    if (p->softmax)
        use.softmax_gradient(t->grad_w, w, p->kept.data ? undropped : w, time, t->stride);
    else if (p->kept.data)
        for (long i = 0; i < time; i++)
            drop(p, (uint8_t *)p->kept.data + taps_of(&p->kept, first + i, t->b, head),
                 t->grad_w + i * t->stride);
    use.scatter(t->grad_w, t->stride, to + taps_of(&p->grad_w, first, t->b, head), 0,
                p->grad_w.time_stride, time, p->taps);
}

/* After input_gradient_tile, which has packed the same rows of taps and, if they were packed, of
   gradient where there are as many outputs as inputs. */
static void tap_gradient_tile(const tile *t)
{
    const problem *p = t->p;
    long time = at_most(p->time - t->start, TILE), first_row = p->taps - 1 - p->left;
    int again = !p->grad_x.data || p->inputs != p->time || first_row < 0 || p->left < 0;
    int in_place = is_in_place(p, p->grad, FEWER_TAPS);
    long whole = in_place ? time / ROWS * ROWS : 0, packed_row = first_row;
    pack(t, p->x, p->inputs, t->start - p->left, time + p->taps - 1, kept_rows(t), use.interleave,
         t->x);
    if (again || in_place) {
        packed_row = 0;
        pack(t, p->grad, p->time, t->start + whole, time - whole, 0, use.spread, t->grad);
    }
    if (again) {
        first_row = 0;
        if (p->softmax)
            pack_taps(t, t->start, time, 0);
    }
    for (long i = 0; i < t->strips; i++) {
        strip q = strip_at(p, t->first + i);
        int add = q.channel > q.head * p->head_dim;
        const float *x = slot(t, t->x, i), *grad = slot(t, t->grad, i) + packed_row * q.width;
        if (!p->shared && !add)
            prefetch_outputs(p->grad_w.data, taps_of(&p->grad_w, t->start, t->b, q.head),
                             p->grad_w.time_stride, time, p->taps, 0);
        if (whole)
            use.correlate((float *)p->grad.data + place_of(t, p->grad, q, 0),
                          p->grad.time_stride, x, q.width, t->grad_w, t->stride, t->sums, whole,
                          p->taps, add);
        use.correlate(grad, q.width, x + whole * q.width, q.width, t->grad_w + whole * t->stride,
                      t->stride, t->sums, time - whole, p->taps, add);
        if (q.channel + q.channels == (q.head + 1) * p->head_dim)
            write_tap_gradient(t, q.head, time, first_row);
    }
}

static void *allocate(tile *t)
{
    const problem *p = t->p;
    t->rows = rows_of(p), t->stride = padded(p->taps);
    t->step = p->shared ? 0 : t->stride;
    size_t slots = strips_of_group(p), inputs = slots * t->rows * CHUNK,
           taps = slots * t->rows * t->stride,
           sizes[] = {inputs, inputs, TILE * CHUNK, taps, p->kept.data ? taps : 0,
                      TILE * t->stride, TILE * (t->stride + 2 * WIDEST)};
    float **parts[] = {&t->x, &t->grad, &t->y, &t->w, &t->undropped, &t->grad_w, &t->sums};
    size_t size = 0, count = sizeof sizes / sizeof *sizes;
    for (size_t n = 0; n < count; n++)
        size += sizes[n] = (sizes[n] + WIDEST - 1) / WIDEST * WIDEST;
    float *next = aligned_alloc(64, 4 * size);
    for (size_t n = 0; next && n < count; n++)
        *parts[n] = next, next += sizes[n];
    return next ? t->x : NULL;
}

typedef struct {
    const problem *p;
    int backward;
    int64_t tiles, run, next, failed; /* run: tiles that a thread takes at once */
} job;

static void work_on(const job *j, tile *t)
{
    const problem *p = j->p;
    int64_t all = p->heads * strips_per_head(p), most = strips_of_group(p);
    for (t->first = 0; t->first < all; t->first += t->strips) {
        t->strips = at_most(all - t->first, most);
        if (!j->backward)
            forward_tile(t);
        if (j->backward && p->grad_x.data && t->start < p->inputs)
            input_gradient_tile(t);
        if (j->backward && p->grad_w.data && t->start < p->time)
            tap_gradient_tile(t);
    }
}

static void work(void *argument)
{
    job *j = argument;
    tile t = {.p = j->p};
    void *all = allocate(&t);
    if (!all) {
        __atomic_store_n(&j->failed, 1, __ATOMIC_RELAXED);
        return;
    }
    int64_t count = j->p->batch * j->tiles;
    int whole = strips_of_group(j->p) == j->p->heads * strips_per_head(j->p);
    for (;;) {
        int64_t first = __atomic_fetch_add(&j->next, j->run, __ATOMIC_RELAXED);
        if (first >= count)
            break;
        for (int64_t n = first; n < first + j->run && n < count; n++) {
            t.b = n / j->tiles, t.start = n % j->tiles * TILE;
            t.continued = whole && n > first && t.start;
            work_on(j, &t);
        }
    }
    free(all);
}

/* Returns 0, or 1 when there was no memory for scratch. `parallel` is OpenMP's GOMP_parallel,
   or NULL for one thread. */
int convattn_convolve(const problem *p, int backward, unsigned threads, run_in_parallel *parallel)
{
    int64_t time = backward && p->inputs > p->time ? p->inputs : p->time;
    int64_t tiles = (time + TILE - 1) / TILE, count = p->batch * tiles;
    threads = parallel ? at_most(count, threads) : 1;
    int64_t run = threads > 1 ? count / (RUNS * threads) : count;
    job j = {p, backward, tiles, run > 0 ? run : 1, 0, 0};
    if (threads > 1)
        parallel(work, &j, threads, 0);
    else
        work(&j);
    return (int)j.failed;
}

int convattn_tile_of_convolution(void)
{
    return TILE;
}
