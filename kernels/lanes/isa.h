/* Which of the instruction sets that kernels/lanes/ is built for this process computes with. */
#ifndef KERNELS_LANES_ISA_H
#define KERNELS_LANES_ISA_H

#include "kernels/base/status.h"

enum isa { ISA_BASELINE, ISA_AVX2, ISA_AVX512, ISA_COUNT };

/* The best one this processor has, or the one that COALESCED_ISA in the environment names ("avx512", "avx2",
 * "baseline"; a test and debugging aid). STATUS_INVALID: an unknown name. STATUS_UNAVAILABLE: one that this
 * processor lacks. */
enum status isa_choose(enum isa *out, struct error *error);

#endif
