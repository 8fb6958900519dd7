/* What composite attention does with a tile of scores between its matrix products, on a CPU. Sums do
   not depend on the number of threads. */

#include "attention_scores.h"

#define CHUNK 32 /* queries of a piece of work */

typedef struct {
    const tile *t;
    int pass;
    int64_t chunks, next;
} job;

/* Some queries of one head: of all sentences where they add to the same diagonals. */
static void work_on(const job *j, int64_t head, int64_t chunk)
{
    const tile *t = j->t;
    int64_t end = within((chunk + 1) * CHUNK, t->rows);
    for (int64_t sentence = 0; sentence < t->sentences; sentence++)
        for (int64_t i = chunk * CHUNK; i < end; i++) {
            int64_t n = sentence * t->heads + head;
            float *diagonals = row_of(t->diagonals, head, chunk);
            if (j->pass == GRADIENT)
                find_gradient(t, n, i, diagonals ? diagonals - i : 0);
            else
                find_scores(t, n, i, j->pass);
        }
}

static void work(void *argument)
{
    job *j = argument;
    for (;;) {
        int64_t n = __atomic_fetch_add(&j->next, 1, __ATOMIC_RELAXED);
        if (n >= j->t->heads * j->chunks)
            return;
        work_on(j, n / j->chunks, n % j->chunks);
    }
}

/* `pass` is one of the enumeration above, `parallel` OpenMP's GOMP_parallel, or NULL for one
   thread. */
void convattn_attend(const tile *t, int pass, unsigned threads, run_in_parallel *parallel)
{
    job j = {t, pass, (t->rows + CHUNK - 1) / CHUNK, 0};
    if (parallel && threads > 1 && t->heads * j.chunks > 1)
        parallel(work, &j, threads, 0);
    else
        work(&j);
}

int convattn_chunk_of_attention(void)
{
    return CHUNK;
}
