/* Which of the kernels' instruction sets is used, and which sources they are from. */

#include <stdint.h>
#include <string.h>

int convattn_instruction_set;

static const char *const NAMES[] = {"portable", "avx2", "avx512"};

static int available(int set)
{
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (set == 1)
        return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    if (set == 2)
        return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
               __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
               __builtin_cpu_supports("fma");
#endif
    return set == 0;
}

/* Takes the one of that name, the best one for NULL. Returns whether the CPU has it. */
int convattn_choose(const char *name)
{
    for (int set = 2; set >= 0; set--)
        if ((!name || !strcmp(name, NAMES[set])) && available(set)) {
            convattn_instruction_set = set;
            return 1;
        }
    return 0;
}

__attribute__((constructor)) static void choose_the_best(void)
{
    convattn_choose(NULL);
}

const char *convattn_instructions(void)
{
    return NAMES[convattn_instruction_set];
}

/* Their checksum, for callers to compare: other sources would misread what they pass. */
uint32_t convattn_sources(void)
{
    return CONVATTN_SOURCES;
}
