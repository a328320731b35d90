/* The room of vector code: each *_lanes.c is compiled once per instruction set and picked at run time. It
 * includes kernels/base/; the CPU backend, the policy and worker/data/ include it.
 *
 * This header: the instruction set that this process computes with. */
#ifndef KERNELS_LANES_ISA_H
#define KERNELS_LANES_ISA_H

#include "kernels/base/status.h"

enum isa { ISA_BASELINE, ISA_AVX2, ISA_AVX512, ISA_COUNT };

/* The best one this processor has, or the one that COALESCED_ISA in the environment names ("avx512", "avx2",
 * "baseline"; a test and debugging aid). STATUS_INVALID: an unknown name. STATUS_UNAVAILABLE: one that this
 * processor lacks. */
enum status isa_choose(enum isa *out, struct error *error);

#endif
