/* Chooses the instruction set. Any thread. */
#include "kernels/lanes/isa.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

static bool has_avx2(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}

static bool has_avx512(void)
{
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}

static bool has_baseline(void)
{
    return true;
}

enum status isa_choose(enum isa *out, struct error *error)
{
    static const struct {
        enum isa isa;
        const char *name;
        bool (*supported)(void);
    } choices[] = {{ISA_AVX512, "avx512", has_avx512},
                   {ISA_AVX2, "avx2", has_avx2},
                   {ISA_BASELINE, "baseline", has_baseline}};
    const char *wanted = getenv("COALESCED_ISA");
    for (size_t i = 0; i < sizeof choices / sizeof *choices; i++) {
        bool named = wanted != NULL && strcmp(wanted, choices[i].name) == 0;
        if (choices[i].supported() && (named || wanted == NULL)) {
            *out = choices[i].isa;
            return STATUS_OK;
        }
        if (named)
            return error_set(error, STATUS_UNAVAILABLE,
                             "COALESCED_ISA=%s: this processor has no such instructions", wanted);
    }
    return error_set(error, STATUS_INVALID, "COALESCED_ISA: expected avx512, avx2 or baseline, got \"%.40s\"",
                     wanted);
}

enum isa isa_or_baseline(void)
{
    enum isa isa;
    return isa_choose(&isa, NULL) == STATUS_OK ? isa : ISA_BASELINE;
}
