/* Which of the kernels' instruction sets is used, and which sources they are from. */

#include <stdint.h>
#include <string.h>

#include "amx.h"
#if defined(HAS_AMX)
#include <sys/syscall.h>
#include <unistd.h>
#endif

int convattn_instruction_set;

static const char *const NAMES[] = {"portable", "avx2", "avx512", "amx"};

/* Whether AMX is there, and Linux lets this process use its registers. */
static int amx_available(void)
{
#if defined(HAS_AMX)
    const int request = 0x1023, tile_data = 18; /* ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA */
    return __builtin_cpu_supports("amx-bf16") && __builtin_cpu_supports("avx512bf16") &&
           !syscall(SYS_arch_prctl, request, tile_data);
#else
    return 0;
#endif
}

static int available(int set)
{
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (set == 1)
        return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    if (set == 2 || (set == 3 && amx_available()))
        return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
               __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
               __builtin_cpu_supports("fma");
#endif
    return set == 0;
}

/* Takes the one of that name, the best one for NULL. Returns whether the CPU has it. */
int convattn_choose(const char *name)
{
    for (int set = 3; set >= 0; set--)
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
