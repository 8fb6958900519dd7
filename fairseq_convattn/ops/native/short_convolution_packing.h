/* What a short convolution is given, and how a tile of it is packed into scratch, in float. */

/* A tensor [time, batch, channels], dense in channels; strides in elements. */
typedef struct {
    char *data;
    int64_t time_stride, batch_stride;
} sequence;

/* A tensor [ranks, taps, channels]; strides in elements. */
typedef struct {
    char *data;
    int64_t rank_stride, tap_stride, channel_stride;
} factor;

/* `left` is from 0 to taps - 1. Gradients without data are not wanted. */
typedef struct {
    int64_t time, inputs, batch, channels, ranks, taps, left;
    int64_t sentences; /* of a piece of work, which sums their gradients of u */
    int64_t own;    /* the tap whose input is added to the output; -1: none */
    int64_t half, z_is_half, u_is_half; /* whether sequences but z, and z, and u are bfloat16 */
    int64_t stride; /* ranks, as whole vectors; 1 of static kernels */
    int64_t is_static; /* whether u is a kernel per channel, and z one per head */
    int64_t heads;     /* of z; 0: there is no z */
    int64_t head_dim;  /* channels of a head: a divisor of PANEL or a multiple, whole vectors */
    int64_t in_blocks; /* whether AMX is to multiply z and u, which are bfloat16 */
    sequence x, y, grad, grad_x;
    sequence z, grad_z; /* [time, batch, ranks], of heads [time, batch, heads x taps] */
    factor u, grad_u;
} problem;

/* Parts of the gradients of z and u, each NULL if that is not wanted. */
typedef struct {
    /* [groups of panels, time, batch, stride], of heads [panels of a head, time, batch, heads, taps] */
    float *z;
    float *u; /* [pieces of sentences, panels, taps, stride, PANEL] */
} parts;

/* Some panels of sentence `b`, and scratch for a tile and its neighbours, at most `most_rows`, of which
   a tile at the end needs `rows`: for one panel of x and y, for all of the gradient. */
typedef struct {
    const problem *p;
    parts sums;
    int64_t b, first_panel, panels, group; /* group: panels at most */
    long most_rows, rows;
    float *x, *grad, *y, *z;
    float *u; /* of its panels, [panels, taps, stride, PANEL] */
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

static int64_t groups_of_panels(const problem *p, int64_t group)
{
    return (panels_of(p) + group - 1) / group;
}

/* Parts of a gradient of z that has one for each group of panels, or of a head's panels. */
static int64_t parts_of_z(const problem *p, int64_t group)
{
    if (p->heads)
        return p->head_dim > PANEL ? p->head_dim / PANEL : 1;
    return groups_of_panels(p, group);
}

/* Floats of a panel of u. */
static long size_of_panel(const problem *p)
{
    return p->taps * p->stride * PANEL;
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
    return w->u + n * size_of_panel(w->p);
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

static void to_floats(const char *from, long count, int half, float *to)
{
    if (!half) {
        memcpy(to, from, 4 * count);
        return;
    }
    for (long i = 0; i < count; i++) {
        uint32_t bits = (uint32_t)((const uint16_t *)from)[i] << 16;
        memcpy(to + i, &bits, 4);
    }
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
    if (!p->ranks)
        return;
    memset(w->z, 0, 4 * w->rows * stride);
    if (p->in_blocks)
        memset(w->half_z, 0, 2 * w->rows * stride);
    for (long i = 0; i < w->rows; i++) {
        int64_t t = first + i;
        if (t < 0 || t >= p->time)
            continue;
        int64_t at = t * p->z.time_stride + w->b * p->z.batch_stride;
        const char *row = p->z.data + at * (p->z_is_half ? 2 : 4);
        to_floats(row, p->ranks, p->z_is_half, w->z + i * stride);
        if (p->in_blocks)
            memcpy(w->half_z + i * stride, row, 2 * p->ranks);
    }
}

static void pack_taps(const piece *w, int64_t n)
{
    const problem *p = w->p;
    int64_t panel = w->first_panel + n, step = p->u.channel_stride, size = p->u_is_half ? 2 : 4;
    long channels = channels_of(w, n, n + 1);
    float *to = w->u + n * size_of_panel(p);
    memset(to, 0, 4 * size_of_panel(p));
    for (long k = 0; k < p->taps; k++)
        for (long r = 0; r < (p->is_static ? 1 : p->ranks); r++) {
            int64_t at = r * p->u.rank_stride + k * p->u.tap_stride + panel * PANEL * step;
            const char *from = p->u.data + at * size;
            float *row = to + (k * p->stride + r) * PANEL;
            if (step == 1)
                to_floats(from, channels, p->u_is_half, row);
            else
                for (long c = 0; c < channels; c++)
                    to_floats(from + c * step * size, 1, p->u_is_half, row + c);
        }
}
