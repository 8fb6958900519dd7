/* The work on one row of scores, for one instruction set; see instruction_sets.h. */

/* Adds (step + steps_j) log2(e) to s_j; `steps` may be NULL. */
static void NAME(add)(float *s, long count, float step, const float *steps)
{
    for (long j = 0; j < count; j += LANES) {
        NAME(vector) more = (NAME(vector)){0} + step;
        if (steps)
            more += NAME(load)(steps + j, count - j, 0);
        NAME(store)(s + j, count - j, NAME(load)(s + j, count - j, 0) + more * LOG2_E);
    }
}

/* s_j + curve_j + column_j log2(e), to base 2; `column` may be NULL. Lanes beyond the row are
   -infinity. */
static inline NAME(vector) NAME(score)(
    const float *s, const float *curve, const float *column, long j, long count)
{
    NAME(vector) score = NAME(load)(s + j, count - j, -INFINITY);
    score += NAME(load)(curve + j, count - j, 0);
    if (column)
        score += NAME(load)(column + j, count - j, 0) * LOG2_E;
    return score;
}

/* s_j becomes 2^(score_j - largest), where the largest is `lowest` at least. Returns the sum;
   writes the largest. */
static float NAME(unnormalized_weights)(
    float *s, const float *curve, const float *column, long count, float lowest, float *largest)
{
    NAME(vector) most = (NAME(vector)){0} + lowest, sum = {0};
    for (long j = 0; j < count; j += LANES) {
        NAME(vector) score = NAME(score)(s, curve, column, j, count);
        NAME(store)(s + j, count - j, score);
        most = NAME(larger)(score, most);
    }
    *largest = most[0];
    for (int i = 1; i < LANES; i++)
        *largest = most[i] > *largest ? most[i] : *largest;
    for (long j = 0; j < count; j += LANES) {
        NAME(vector) power = NAME(exp2)(NAME(load)(s + j, count - j, -INFINITY) - *largest);
        NAME(store)(s + j, count - j, power);
        sum += power;
    }
    float total = 0;
    for (int i = 0; i < LANES; i++)
        total += sum[i];
    return total;
}

/* s_j becomes 2^(score_j - lse). */
static void NAME(weights)(
    float *s, const float *curve, const float *column, long count, float lse)
{
    for (long j = 0; j < count; j += LANES)
        NAME(store)(s + j, count - j,
                    NAME(exp2)(NAME(score)(s, curve, column, j, count) - lse));
}

/* The factors of dropout: `factor` where half of the hash of (key, column, second key) is below `kept`,
   else 0. */
static inline NAME(vector) NAME(factors)(NAME(bits) column, const dropout *of_row)
{
    NAME(bits) x = column + of_row->key;
    x = ((x ^ x >> 16) * FIRST) ^ of_row->second_key;
    x = (x ^ x >> 15) * SECOND;
    x ^= x >> 15;
    return NAME(select)((NAME(ints))(x >> 1) < of_row->kept, (NAME(vector)){0} + of_row->factor,
                        (NAME(vector)){0});
}

/* Multiplies weights by dropout's factors. */
static void NAME(drop)(float *weights, long count, const dropout *of_row)
{
    NAME(bits) column = *(const NAME(bits) *)LANE;
    for (long j = 0; j < count; j += LANES, column += LANES)
        NAME(store)(weights + j, count - j,
                    NAME(load)(weights + j, count - j, 0) * NAME(factors)(column, of_row));
}

/* With dropout, if not NULL, multiplies gradients by its factors, and turns the sign of weights that
   it drops. Returns the sum of weights times gradients, divided by that of weights, which rounding of
   large scores makes differ from 1. */
static float NAME(delta)(float *d, float *weights, long count, const dropout *of_row)
{
    NAME(bits) column = *(const NAME(bits) *)LANE;
    NAME(vector) sum = {0}, all = {0};
    for (long j = 0; j < count; j += LANES, column += LANES) {
        NAME(vector) weight = NAME(load)(weights + j, count - j, 0);
        NAME(vector) of_weight = NAME(load)(d + j, count - j, 0);
        if (of_row) {
            NAME(vector) factor = NAME(factors)(column, of_row);
            of_weight *= factor;
            NAME(store)(d + j, count - j, of_weight);
            NAME(store)(weights + j, count - j, NAME(select)(factor > 0, weight, -weight));
        }
        sum += weight * of_weight;
        all += weight;
    }
    float total = 0, weight = 0;
    for (int i = 0; i < LANES; i++)
        total += sum[i], weight += all[i];
    return weight > 0 ? total / weight : 0;
}

/* d_j becomes weights_j (d_j - delta), which is added to diagonals_j, if not NULL. With dropout, weights
   become those that it leaves. */
static void NAME(gradient)(
    float *d, float *weights, long count, float delta, float *diagonals, const dropout *of_row)
{
    for (long j = 0; j < count; j += LANES) {
        NAME(vector) weight = NAME(load)(weights + j, count - j, 0);
        NAME(vector) size = NAME(larger)(weight, -weight);
        NAME(vector) of_score = size * (NAME(load)(d + j, count - j, 0) - delta);
        NAME(store)(d + j, count - j, of_score);
        if (of_row)
            NAME(store)(weights + j, count - j,
                        NAME(larger)(weight, (NAME(vector)){0}) * of_row->factor);
        if (diagonals)
            NAME(store)(diagonals + j, count - j,
                        NAME(load)(diagonals + j, count - j, 0) + of_score);
    }
}

static void NAME(accumulate)(float *to, const float *x, long count)
{
    for (long j = 0; j < count; j += LANES)
        NAME(store)(to + j, count - j,
                    NAME(load)(to + j, count - j, 0) + NAME(load)(x + j, count - j, 0));
}

static float NAME(sum)(const float *x, long count)
{
    NAME(vector) sum = {0};
    for (long j = 0; j < count; j += LANES)
        sum += NAME(load)(x + j, count - j, 0);
    float total = 0;
    for (int i = 0; i < LANES; i++)
        total += sum[i];
    return total;
}
