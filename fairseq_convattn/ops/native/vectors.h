/* Arithmetic of vectors of LANES floats, for one instruction set; see instruction_sets.h. */

typedef float NAME(vector) __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef int32_t NAME(ints) __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

static inline NAME(vector) *NAME(at)(const float *p)
{
    return (NAME(vector) *)p;
}

static inline NAME(vector) NAME(select)(NAME(ints) where, NAME(vector) a, NAME(vector) b)
{
    return (NAME(vector))(((NAME(ints))a & where) | ((NAME(ints))b & ~where));
}

static inline NAME(vector) NAME(larger)(NAME(vector) a, NAME(vector) b)
{
    return NAME(select)(a > b, a, b);
}

/* 2^x for x <= 0, zero below 2^-126; a polynomial around the nearest whole number. */
static inline NAME(vector) NAME(exp2)(NAME(vector) x)
{
    NAME(ints) whole = __builtin_convertvector(x - 0.5f, NAME(ints));
    NAME(vector) rest = (x - __builtin_convertvector(whole, NAME(vector))) * 0.6931471805599453f;
    NAME(vector) power = rest * (1 / 720.0f) + 1 / 120.0f;
    power = rest * power + 1 / 24.0f;
    power = rest * power + 1 / 6.0f;
    power = rest * power + 0.5f;
    power = rest * power + 1.0f;
    power = rest * power + 1.0f;
    NAME(ints) scale = (whole + 127) << 23;
    return NAME(select)(x < -126.0f, (NAME(vector)){0}, power * (NAME(vector))scale);
}

/* Lane i of the result is lane i of a or, where i & step, of b, plus lane i ^ step of the same;
   or the larger of the two. Constants, where this is inlined: step and largest. */
static inline __attribute__((always_inline)) NAME(vector) NAME(pair)(
    NAME(vector) a, NAME(vector) b, const int step, const int largest)
{
    NAME(vector) same, other;
#if defined(__clang__)
    UNROLL for (int i = 0; i < LANES; i++) {
        same[i] = i & step ? b[i] : a[i];
        other[i] = i & step ? b[i ^ step] : a[i ^ step];
    }
#else
    const NAME(ints) lane = *(const NAME(ints) *)LANE, of_b = (lane & step) * (LANES / step);
    same = __builtin_shuffle(a, b, lane + of_b);
    other = __builtin_shuffle(a, b, (lane ^ step) + of_b);
#endif
    return largest ? NAME(larger)(same, other) : (NAME(vector))(same + other);
}

/* Lane i of the result is the sum of vector i's lanes, or the largest of them. */
static inline __attribute__((always_inline)) NAME(vector) NAME(reduce)(
    const float *vectors, const int largest)
{
    NAME(vector) v[LANES];
    UNROLL for (int i = 0; i < LANES; i++)
        v[i] = *NAME(at)(vectors + i * LANES);
    UNROLL for (int step = LANES / 2; step; step /= 2)
        UNROLL for (int i = 0; i < step; i++)
            v[i] = NAME(pair)(v[i], v[i + step], step, largest);
    return v[0];
}
