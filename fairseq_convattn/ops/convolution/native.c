/* Lightweight and dynamic convolution (Wu et al. 2019, eq. 4 and 5) on a CPU.

   y[i, b, c] = sum_k w[i, b, h, k] x[i + k - left, b, c],   h = c / (channels / heads)

   and its gradients. Every (sentence, head, tile of time) is packed into scratch, in float,
   so that strides, padding and dtypes are those of the packing alone. Sums do not depend on
   the number of threads. */

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define UNROLL _Pragma("GCC unroll 8")
#define TILE 64 /* outputs of a tile; a multiple of MOST_ROWS */
#define CHUNK 64 /* channels of a strip, at most; a multiple of all LANES */
#define GROUP 1024 /* channels packed together, at most; a multiple of CHUNK */
#define WIDEST 16 /* LANES at most */
#define MOST_ROWS 8 /* BAND_ROWS at most */

#if defined(__x86_64__)
#pragma GCC push_options
#pragma GCC target("avx512f,avx512vl,avx512bw,avx512dq,fma,avx2")
#define NAME(f) f##_avx512
#define LANES 16
#define ROWS 4
#define VECTORS 4
#define BAND_ROWS 8
#define BAND_VECTORS 3
#include "native_tile.h"
#pragma GCC pop_options
#pragma GCC push_options
#pragma GCC target("avx2,fma")
#define NAME(f) f##_avx2
#define LANES 8
#define ROWS 4
#define VECTORS 2
#define BAND_ROWS 4
#define BAND_VECTORS 2
#include "native_tile.h"
#pragma GCC pop_options
#endif
#define NAME(f) f##_portable
#define LANES 4
#define ROWS 4
#define VECTORS 2
#define BAND_ROWS 4
#define BAND_VECTORS 2
#include "native_tile.h"

typedef void convolve_tile(const float *, const float *, float *, long, long, long);
typedef void correlate_tile(const float *, const float *, long, float *, long, long, long, long);

static convolve_tile *convolve;
static correlate_tile *correlate;
static long lanes;
static const char *instructions;

/* Takes the kernels of that name, the best ones for NULL. Returns whether the CPU has them. */
int convattn_choose(const char *name)
{
#if defined(__x86_64__)
    __builtin_cpu_init();
    if ((!name || !strcmp(name, "avx512")) && __builtin_cpu_supports("avx512f") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq")) {
        convolve = convolve_avx512, correlate = correlate_avx512, lanes = 16;
        instructions = "avx512";
        return 1;
    }
    if ((!name || !strcmp(name, "avx2")) && __builtin_cpu_supports("avx2") &&
        __builtin_cpu_supports("fma")) {
        convolve = convolve_avx2, correlate = correlate_avx2, lanes = 8;
        instructions = "avx2";
        return 1;
    }
#endif
    if (name && strcmp(name, "portable"))
        return 0;
    convolve = convolve_portable, correlate = correlate_portable, lanes = 4;
    instructions = "portable";
    return 1;
}

__attribute__((constructor)) static void choose_the_best(void)
{
    convattn_choose(NULL);
}

/* Where a [time, batch, channels] tensor lies; strides in elements, that of channels is 1. */
typedef struct {
    void *data;
    int64_t time_stride, batch_stride;
} sequence;

/* Taps [time, batch, heads, taps], or [heads, taps] with strides 0 of time and batch. */
typedef struct {
    void *data;
    int64_t time_stride, batch_stride, head_stride;
} kernels;

typedef struct {
    int64_t time;   /* of outputs and taps */
    int64_t inputs; /* time of the inputs */
    int64_t batch, heads, head_dim, taps, left;
    int64_t half, half_taps; /* whether elements are bfloat16, else float */
    int64_t shared;          /* whether taps are [heads, taps] */
    sequence x, y, grad, grad_x;
    kernels w, grad_w; /* grad_w is float always; for shared taps its time is that of tiles */
} problem;

static inline float from_half(uint16_t bits)
{
    uint32_t wide = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &wide, 4);
    return value;
}

static inline uint16_t to_half(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, 4);
    if ((bits & 0x7fffffff) > 0x7f800000)
        return (bits >> 16) | 0x40;
    return (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
}

static inline void read(const void *from, int64_t at, float *to, long count, int half)
{
    if (!half)
        memcpy(to, (const float *)from + at, 4 * count);
    else
        for (long n = 0; n < count; n++)
            to[n] = from_half(((const uint16_t *)from)[at + n]);
}

static inline void write(void *to, int64_t at, const float *from, long count, int half)
{
    if (!half)
        memcpy((float *)to + at, from, 4 * count);
    else
        for (long n = 0; n < count; n++)
            ((uint16_t *)to)[at + n] = to_half(from[n]);
}

static long at_most(int64_t count, long most)
{
    return count < most ? count : most;
}

static long padded(long channels)
{
    return (channels + lanes - 1) / lanes * lanes;
}

static inline int64_t taps_of(const kernels *w, int64_t t, int64_t b, int64_t h)
{
    return t * w->time_stride + b * w->batch_stride + h * w->head_stride;
}

/* At most CHUNK channels of one head. */
typedef struct {
    int64_t head, channel;
    long channels, width; /* width: with zeros up to whole vectors */
} strip;

static long strips_per_head(const problem *p)
{
    return (p->head_dim + CHUNK - 1) / CHUNK;
}

static strip strip_at(const problem *p, int64_t n)
{
    int64_t head = n / strips_per_head(p), first = n % strips_per_head(p) * CHUNK;
    long channels = at_most(p->head_dim - first, CHUNK);
    return (strip){head, head * p->head_dim + first, channels, padded(channels)};
}

/* Strips whose channels lie side by side are packed together, as memory likes it. */
static long strips_of_group(const problem *p)
{
    return at_most(p->heads * strips_per_head(p), GROUP / strip_at(p, 0).width);
}

/* A tile of one sentence, of the strips from `first` on. */
typedef struct {
    const problem *p;
    int64_t b, start, first;
    long strips, rows; /* rows: room for the inputs of a tile */
    float *x, *grad, *y, *w, *columns, *turned, *grad_w;
} tile;

static float *slot(const tile *t, float *all, long n)
{
    return all + n * t->rows * CHUNK;
}

/* `count` rows of a sequence from `from` on, zeros where it has none. */
static void pack(const tile *t, sequence s, int64_t length, int64_t from, long count, float *to)
{
    for (long n = 0; n < count; n++)
        for (long i = 0; i < t->strips; i++) {
            strip q = strip_at(t->p, t->first + i);
            float *row = slot(t, to, i) + n * q.width;
            long real = from + n >= 0 && from + n < length ? q.channels : 0;
            if (real)
                read(s.data, (from + n) * s.time_stride + t->b * s.batch_stride + q.channel, row,
                     real, t->p->half);
            memset(row + real, 0, 4 * (q.width - real));
        }
}

static void unpack(const tile *t, sequence s, long count, const float *from)
{
    for (long n = 0; n < count; n++)
        for (long i = 0; i < t->strips; i++) {
            strip q = strip_at(t->p, t->first + i);
            write(s.data, (t->start + n) * s.time_stride + t->b * s.batch_stride + q.channel,
                  from + i * TILE * CHUNK + n * q.width, q.channels, t->p->half);
        }
}

/* Rows of taps of all heads from `from` on, zeros where there are none. */
static void pack_taps(const tile *t, int64_t from, long count)
{
    const problem *p = t->p;
    int64_t head = strip_at(p, t->first).head, end = strip_at(p, t->first + t->strips - 1).head;
    for (long n = 0; n < count; n++)
        for (int64_t h = head; h <= end; h++) {
            float *row = t->w + ((h - head) * t->rows + n) * p->taps;
            if (from + n >= 0 && from + n < p->time)
                read(p->w.data, taps_of(&p->w, from + n, t->b, h), row, p->taps, p->half_taps);
            else
                memset(row, 0, 4 * p->taps);
        }
}

static const float *packed_taps(const tile *t, strip q)
{
    return t->w + (q.head - strip_at(t->p, t->first).head) * t->rows * t->p->taps;
}

static void forward_tile(const tile *t)
{
    const problem *p = t->p;
    long time = at_most(p->time - t->start, TILE);
    pack_taps(t, t->start, time);
    pack(t, p->x, p->inputs, t->start - p->left, time + p->taps - 1, t->x);
    for (long i = 0; i < t->strips; i++) {
        strip q = strip_at(p, t->first + i);
        convolve(slot(t, t->x, i), packed_taps(t, q), t->y + i * TILE * CHUNK, time, q.width,
                 p->taps);
    }
    unpack(t, p->y, time, t->y);
}

/* grad_x[j] = sum_k w[j + left - k, k] grad[j + left - k]: a convolution with turned taps. */
static void input_gradient_tile(const tile *t)
{
    const problem *p = t->p;
    long time = at_most(p->inputs - t->start, TILE), last = p->taps - 1;
    int64_t from = t->start + p->left - last;
    pack_taps(t, from, time + last);
    pack(t, p->grad, p->time, from, time + last, t->grad);
    for (long i = 0; i < t->strips; i++) {
        strip q = strip_at(p, t->first + i);
        const float *w = packed_taps(t, q);
        for (long j = 0; j < time; j++)
            for (long k = 0; k <= last; k++)
                t->turned[j * p->taps + k] = w[(j + k) * p->taps + last - k];
        convolve(slot(t, t->grad, i), t->turned, t->y + i * TILE * CHUNK, time, q.width, p->taps);
    }
    unpack(t, p->grad_x, time, t->y);
}

static long column_stride(const problem *p)
{
    return TILE + p->taps + MOST_ROWS + 3 * WIDEST;
}

/* Adds sum_c grad[i, c] x[i + k - left, c] of a strip to t->grad_w[i, k]. */
static void correlate_strip(const tile *t, long i, strip q, long time, long first_row)
{
    long stride = column_stride(t->p), rows = time + t->p->taps - 1;
    const float *x = slot(t, t->x, i);
    for (long c = 0; c < q.channels; c++) {
        float *column = t->columns + c * stride;
        for (long j = 0; j < rows; j++)
            column[j] = x[j * q.width + c];
        memset(column + rows, 0, 4 * (stride - rows));
    }
    correlate(slot(t, t->grad, i) + first_row * q.width, t->columns, stride, t->grad_w, time,
              q.channels, q.width, t->p->taps);
}

static void write_tap_gradient(const tile *t, int64_t head, long time)
{
    const problem *p = t->p;
    float *to = p->grad_w.data;
    int64_t first = t->start;
    if (p->shared) {
        for (long i = 1; i < time; i++)
            for (long k = 0; k < p->taps; k++)
                t->grad_w[k] += t->grad_w[i * p->taps + k];
        first /= TILE, time = 1;
    }
    for (long i = 0; i < time; i++)
        memcpy(to + taps_of(&p->grad_w, first + i, t->b, head), t->grad_w + i * p->taps,
               4 * p->taps);
}

/* After input_gradient_tile, which has packed the same rows of the gradient if there are as many
   outputs as inputs. */
static void tap_gradient_tile(const tile *t)
{
    const problem *p = t->p;
    long time = at_most(p->time - t->start, TILE), first_row = p->taps - 1 - p->left;
    pack(t, p->x, p->inputs, t->start - p->left, time + p->taps - 1, t->x);
    if (!p->grad_x.data || p->inputs != p->time || first_row < 0 || p->left < 0) {
        first_row = 0;
        pack(t, p->grad, p->time, t->start, time, t->grad);
    }
    for (long i = 0; i < t->strips; i++) {
        strip q = strip_at(p, t->first + i);
        if (q.channel == q.head * p->head_dim)
            memset(t->grad_w, 0, 4 * time * p->taps);
        correlate_strip(t, i, q, time, first_row);
        if (q.channel + q.channels == (q.head + 1) * p->head_dim)
            write_tap_gradient(t, q.head, time);
    }
}

static void *allocate(tile *t)
{
    const problem *p = t->p;
    t->rows = TILE + MOST_ROWS + p->taps;
    size_t slots = strips_of_group(p), rows = t->rows, taps = p->taps, sizes[] = {
        slots * rows * CHUNK, slots * rows * CHUNK, slots * TILE * CHUNK, slots * rows * taps,
        CHUNK * column_stride(p), TILE * taps, TILE * taps};
    float **parts[] = {&t->x, &t->grad, &t->y, &t->w, &t->columns, &t->turned, &t->grad_w};
    size_t size = 0, count = sizeof sizes / sizeof *sizes;
    for (size_t n = 0; n < count; n++)
        size += sizes[n] = (sizes[n] + WIDEST - 1) / WIDEST * WIDEST;
    float *next = aligned_alloc(64, 4 * size);
    for (size_t n = 0; next && n < count; n++)
        *parts[n] = next, next += sizes[n];
    return next ? t->x : NULL;
}

typedef void run_in_parallel(void (*)(void *), void *, unsigned, unsigned);

typedef struct {
    const problem *p;
    int backward;
    int64_t tiles, next, failed;
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
    for (;;) {
        int64_t n = __atomic_fetch_add(&j->next, 1, __ATOMIC_RELAXED);
        if (n >= j->p->batch * j->tiles)
            break;
        t.b = n / j->tiles, t.start = n % j->tiles * TILE;
        work_on(j, &t);
    }
    free(all);
}

/* Returns 0, or 1 when there was no memory for scratch. `parallel` is OpenMP's GOMP_parallel,
   or NULL for one thread. */
int convattn_run(const problem *p, int backward, unsigned threads, run_in_parallel *parallel)
{
    int64_t time = backward && p->inputs > p->time ? p->inputs : p->time;
    job j = {p, backward, (time + TILE - 1) / TILE, 0, 0};
    threads = at_most(p->batch * j.tiles, threads);
    if (parallel && threads > 1)
        parallel(work, &j, threads, 0);
    else
        work(&j);
    return (int)j.failed;
}

int convattn_tile(void)
{
    return TILE;
}

/* For callers to compare: a library of another version would misread what they pass. */
int convattn_size_of_problem(void)
{
    return sizeof(problem);
}

const char *convattn_instructions(void)
{
    return instructions;
}
