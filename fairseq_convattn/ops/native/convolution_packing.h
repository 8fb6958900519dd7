/* What the convolutions are of, and how a tile of it comes to lie in scratch; of convolution.c. */

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define ROWS 4 /* packed, and computed, at once */
#define KERNELS "convolution_tile.h"
#include "instruction_sets.h"

#define TILE 64 /* outputs of a tile; a multiple of ROWS */
#define BLOCK 16 /* rows of a head before the next head's turn; a multiple of ROWS */
#define CHUNK 64 /* channels of a strip, at most; a multiple of all LANES */
#define GROUP 1024 /* channels packed together, at most; a multiple of CHUNK */
#define SCRATCH 300000 /* floats of a group, as many as a core's cache likes; one strip at least */

typedef void packing(const void *const *, int, float *, long, long, long);

typedef struct {
    long lanes;
    void (*convolve)(const float *, long, const float *, long, long, float *, long, long, long,
                     long);
    void (*correlate)(const float *, long, const float *, long, float *, long, float *, long, long,
                      int);
    packing *spread, *interleave;
    void (*gather)(const void *, int, long, long, float *, long, long, long, long, long, float);
    void (*scatter)(const float *, long, void *, int, long, long, long);
    void (*softmax)(float *, long, long);
    void (*softmax_gradient)(float *, const float *, const float *, long, long);
} functions;

#define FUNCTIONS(f, lanes) \
    {lanes,      convolve_##f, correlate_##f, spread_##f, interleave_##f, \
     gather_##f, scatter_##f,  softmax_##f,   softmax_gradient_##f}

static const functions every[] = FOR_EVERY_INSTRUCTION_SET(FUNCTIONS);

#define use every[convattn_instruction_set]

/* Where a [time, batch, channels] tensor lies; strides in elements, that of channels is 1. With
   an index [time, batch], which has the strides then, its rows lie `row_stride` apart. */
typedef struct {
    void *data;
    int64_t time_stride, batch_stride;
    const int64_t *index;
    int64_t row_stride;
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
    int64_t softmax;         /* whether w are logits */
    double factor;           /* of DropConnect, for those that are kept */
    sequence x, y, grad, grad_x;
    kernels w, kept; /* kept: bytes, 0 where a tap is dropped; or without data */
    kernels grad_w;  /* float always; for shared taps its time is that of tiles */
} problem;

static inline void *element(void *data, int64_t at, int half)
{
    return (char *)data + at * (half ? 2 : 4);
}

static long at_most(int64_t count, long most)
{
    return count < most ? count : most;
}

static long padded(long count)
{
    return (count + use.lanes - 1) / use.lanes * use.lanes;
}

static inline int64_t taps_of(const kernels *w, int64_t t, int64_t b, int64_t h)
{
    return t * w->time_stride + b * w->batch_stride + h * w->head_stride;
}

static inline int64_t row_of(const sequence *s, int64_t t, int64_t b)
{
    int64_t at = t * s->time_stride + b * s->batch_stride;
    return s->index ? s->index[at] * s->row_stride : at;
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

/* Rows of inputs that a tile reads, and those that kernels may read beyond, as they round outputs
   up to ROWS and inputs up to the rows of a vector. */
static long rows_of(const problem *p)
{
    return at_most(p->time > p->inputs ? p->time : p->inputs, TILE) + 2 * ROWS + p->taps;
}

/* Strips whose channels lie side by side are packed together, as memory likes it. */
static long strips_of_group(const problem *p)
{
    long all = at_most(p->heads * strips_per_head(p), GROUP / strip_at(p, 0).width);
    long fitting = SCRATCH / (rows_of(p) * (2 * CHUNK + padded(p->taps)));
    return at_most(all, fitting > 1 ? fitting : 1);
}

/* A tile of one sentence, of the strips from `first` on. Rows of taps and of their gradients
   have `stride` floats, zeros after the taps; rows of taps lie `step` floats apart, 0 where one
   serves all positions. */
typedef struct {
    const problem *p;
    int64_t b, start, first;
    long strips, rows, stride, step;
    int continued; /* scratch still has the tile before this one, with the same strips */
    float *x, *grad, *y, *w, *undropped, *grad_w, *sums;
} tile;

static float *slot(const tile *t, float *all, long n)
{
    return all + n * t->rows * CHUNK;
}

/* A strip's channels at one time: in place if those are whole vectors, else `row`, where they are
   copied as floats and filled up with zeros. */
static const void *channels_at(const tile *t, sequence s, int64_t time, strip q, float *row)
{
    int64_t at = row_of(&s, time, t->b) + q.channel;
    const void *channels = element(s.data, at, t->p->half);
    if (q.channels == q.width)
        return channels;
    use.gather(channels, t->p->half, 0, 0, row, 0, 1, 1, q.channels, q.width, 0);
    return row;
}

/* Moves the rows that the tile before has packed beyond its end, `count`, to where this one has
   them. */
static void keep(float *rows, long count, long width)
{
    memmove(rows, rows + TILE * width, 4 * count * width);
}

/* `count` rows of a sequence from `from` on, or up to a multiple of ROWS, zeros where it has
   none; the first `kept` are there. */
static void pack(const tile *t, sequence s, int64_t length, int64_t from, long count, long kept,
                 packing *how, float *to)
{
    static const float zeros[GROUP];
    float copied[ROWS][CHUNK] __attribute__((aligned(64)));
    long together = t->p->head_dim % strip_at(t->p, 0).width ? 1 : t->strips;
    for (long i = 0; i < t->strips; i++)
        keep(slot(t, to, i), kept, strip_at(t->p, t->first + i).width);
    for (long n = kept; n < count; n += ROWS)
        for (long i = 0; i < t->strips; i += together) {
            strip q = strip_at(t->p, t->first + i);
            const void *rows[ROWS];
            for (long r = 0; r < ROWS; r++) {
                int64_t time = from + n + r;
                int there = time >= 0 && time < length;
                rows[r] = there ? channels_at(t, s, time, q, copied[r]) : zeros;
            }
            how(rows, t->p->half && q.channels == q.width, slot(t, to, i) + n * q.width, together,
                t->rows * CHUNK, q.width);
        }
}

/* The element where a strip's outputs from row `first` on go. */
static int64_t place_of(const tile *t, sequence s, strip q, long first)
{
    return (t->start + first) * s.time_stride + t->b * s.batch_stride + q.channel;
}

/* Where they are computed: in the tensor if its vectors end where the strip does. */
static float *outputs(const tile *t, sequence s, strip q, long first, long *stride)
{
    int direct = !t->p->half && q.width == q.channels;
    *stride = direct ? s.time_stride : q.width;
    return direct ? (float *)s.data + place_of(t, s, q, first) : t->y;
}

static void write_outputs(const tile *t, sequence s, strip q, long first, long count)
{
    void *to = element(s.data, place_of(t, s, q, first), t->p->half);
    if (t->p->half || q.width != q.channels)
        use.scatter(t->y, q.width, to, t->p->half, s.time_stride, count, q.channels);
}

/* Multiplies a row of weights by DropConnect's factors. */
static void drop(const problem *p, const uint8_t *kept, float *row)
{
    for (long k = 0; k < p->taps; k++)
        row[k] *= kept[k] ? (float)p->factor : 0.0f;
}

static float *taps_slot(const tile *t, float *all, int64_t head)
{
    return all + (head - strip_at(t->p, t->first).head) * t->rows * t->stride;
}

/* Rows from `n` on of the weights of all heads from `first` to `end`, of `count` times from `at`
   on. */
static void read_taps(const tile *t, int64_t first, int64_t end, int64_t at, long n, long count)
{
    const problem *p = t->p;
    int64_t from = taps_of(&p->w, at, t->b, first);
    use.gather(element(p->w.data, from, p->half_taps), p->half_taps, p->w.head_stride,
               p->w.time_stride, taps_slot(t, t->w, first) + n * t->stride, t->rows * t->stride,
               end - first, count, p->taps, t->stride, p->softmax ? -INFINITY : 0);
}

/* Drops taps from row `first` to `end` of a head's weights, of times from `from` on, of which a
   copy stays. */
static void drop_rows(const tile *t, int64_t head, int64_t from, long first, long end)
{
    const kernels *kept = &t->p->kept;
    float *w = taps_slot(t, t->w, head), *undropped = taps_slot(t, t->undropped, head);
    memcpy(undropped + first * t->stride, w + first * t->stride, 4 * (end - first) * t->stride);
    for (long n = first; n < end; n++)
        drop(t->p, (uint8_t *)kept->data + taps_of(kept, from + n, t->b, head),
             w + n * t->stride);
}

/* `count` rows of the weights of all the group's heads from `from` on, zeros where there are
   none; and those before DropConnect. The first `kept` are there. */
static void pack_taps(const tile *t, int64_t from, long count, long kept)
{
    const problem *p = t->p;
    if (p->shared)
        from = 0, count = 1, kept = 0;
    int64_t head = strip_at(p, t->first).head;
    int64_t end_head = strip_at(p, t->first + t->strips - 1).head + 1;
    long first = from + kept < 0 ? at_most(-from, count) : kept;
    long end = from + count > p->time ? at_most(p->time - from, count) : count;
    end = end > first ? end : first;
    for (int64_t h = head; kept && h < end_head; h++) {
        keep(taps_slot(t, t->w, h), kept, t->stride);
        if (p->kept.data)
            keep(taps_slot(t, t->undropped, h), kept, t->stride);
    }
    for (long n = first; n < end; n += BLOCK) {
        long some = at_most(end - n, BLOCK);
        read_taps(t, head, end_head, from + n, n, some);
        for (int64_t h = head; p->softmax && h < end_head; h++)
            use.softmax(taps_slot(t, t->w, h) + n * t->stride, some, t->stride);
    }
    for (int64_t h = head; h < end_head; h++) {
        float *w = taps_slot(t, t->w, h);
        memset(w + kept * t->stride, 0, 4 * (first - kept) * t->stride);
        memset(w + end * t->stride, 0, 4 * (count - end) * t->stride);
        if (p->kept.data)
            drop_rows(t, h, from, first, end);
    }
}
