/* Arithmetic of vectors of LANES floats, for one instruction set; see instruction_sets.h. */

typedef float NAME(vector) __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef int32_t NAME(ints) __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef uint32_t NAME(bits) __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef uint16_t NAME(halves) __attribute__((vector_size(2 * LANES), aligned(2), may_alias));

static inline NAME(vector) *NAME(at)(const float *p)
{
    return (NAME(vector) *)p;
}

static inline NAME(vector) NAME(select)(NAME(ints) where, NAME(vector) a, NAME(vector) b)
{
    return (NAME(vector))(((NAME(ints))a & where) | ((NAME(ints))b & ~where));
}

/* `count` floats at p, at most a vector's; the other lanes are `fill`. */
static inline NAME(vector) NAME(load)(const float *p, long count, float fill)
{
    if (count >= LANES)
        return *NAME(at)(p);
#if LANES == 16
    return (NAME(vector))_mm512_mask_loadu_ps(_mm512_set1_ps(fill), (1u << count) - 1, p);
#else
    NAME(vector) v;
    for (int i = 0; i < LANES; i++)
        v[i] = i < count ? p[i] : fill;
    return v;
#endif
}

/* The first `count` floats, or all there are, go to `p`. */
static inline void NAME(store)(float *p, long count, NAME(vector) v)
{
    if (count >= LANES) {
        *NAME(at)(p) = v;
        return;
    }
#if LANES == 16
    _mm512_mask_storeu_ps(p, (1u << count) - 1, (__m512)v);
#else
    for (int i = 0; i < LANES; i++)
        if (i < count)
            p[i] = v[i];
#endif
}

/* As load, of bfloat16. */
static inline NAME(vector) NAME(load_half)(const uint16_t *p, long count, float fill)
{
#if LANES == 16
    __mmask16 there = count < LANES ? (1u << count) - 1 : 0xffff;
    __m512i bits = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(there, p));
    __m512i others = _mm512_castps_si512(_mm512_set1_ps(fill));
    return (NAME(vector))_mm512_mask_slli_epi32(others, there, bits, 16);
#else
    NAME(halves) halves = {0};
    memcpy(&halves, p, count < LANES ? 2 * count : 2 * LANES);
    NAME(vector) v = (NAME(vector))(__builtin_convertvector(halves, NAME(bits)) << 16);
    if (count >= LANES)
        return v;
    NAME(ints) there = *(const NAME(ints) *)LANE < (int32_t)count;
    return NAME(select)(there, v, (NAME(vector)){0} + fill);
#endif
}

/* As store, rounded to bfloat16, ties to even. */
static inline void NAME(store_half)(uint16_t *p, long count, NAME(vector) v)
{
    NAME(bits) bits = (NAME(bits))v, high = bits >> 16, quiet = high | 0x40;
    NAME(bits) nearest = (bits + 0x7fff + (high & 1)) >> 16;
#if LANES == 16
    __mmask16 there = count < LANES ? (1u << count) - 1 : 0xffff;
    __mmask16 is_nan = _mm512_cmp_ps_mask((__m512)v, (__m512)v, _CMP_UNORD_Q);
    __m512i halves = _mm512_mask_mov_epi32((__m512i)nearest, is_nan, (__m512i)quiet);
    _mm256_mask_storeu_epi16(p, there, _mm512_cvtepi32_epi16(halves));
#else
    bits = (NAME(bits))NAME(select)((NAME(ints))(v != v), (NAME(vector))quiet, (NAME(vector))nearest);
    NAME(halves) halves = __builtin_convertvector(bits, NAME(halves));
    memcpy(p, &halves, count < LANES ? 2 * count : 2 * LANES);
#endif
}

/* a where it is larger, else b. */
static inline NAME(vector) NAME(larger)(NAME(vector) a, NAME(vector) b)
{
#if LANES == 16
    return (NAME(vector))_mm512_max_ps((__m512)a, (__m512)b);
#elif LANES == 8
    return (NAME(vector))_mm256_max_ps((__m256)a, (__m256)b);
#else
    return NAME(select)(a > b, a, b);
#endif
}

/* 2^x for x <= 0, zero below 2^-126.5; a polynomial around the nearest whole number, which the
   sum with 1.5 * 2^23 leaves in the lowest bits. */
static inline NAME(vector) NAME(exp2)(NAME(vector) x)
{
    const float biased = 12582912.0f + 127;
    x = NAME(larger)((NAME(vector)){0} - 127.0f, x);
    NAME(vector) whole = x + biased;
    NAME(vector) r = x - (whole - biased), r2 = r * r;
    NAME(vector) power = r * 1.326472731e-3f + 9.671512991e-3f;
    power = r2 * power + (r * 5.550733581e-2f + 2.402224243e-1f);
    power = r2 * power + (r * 6.931470037e-1f + 1.0f);
    return power * (NAME(vector))((NAME(bits))whole << 23);
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
#if LANES == 16
    const __mmask16 from_b = 0xffff / ((1 << step) + 1) << step;
    same = (NAME(vector))_mm512_mask_blend_ps(from_b, (__m512)a, (__m512)b);
#else
    same = __builtin_shuffle(a, b, lane + of_b);
#endif
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
