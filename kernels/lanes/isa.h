/* The room of vector code. Each *_lanes.c is compiled once per instruction set, and a process picks one of
 * them at run time. The room includes kernels/base/; the CPU backend, the policy and worker/data/ include it.
 *
 *     instruction set   baseline (SSE2), AVX2 or AVX-512
 *     lane              one of 16 numbers that are computed side by side, whatever a register's width
 *     body, tail        an array's whole registers, and the elements after them
 *     chain             fused multiply-adds, each of which adds to the result of the one before
 *     table             the functions of one *_lanes.c for one instruction set
 *     the same bits     a result that does not depend on the instruction set or on how an array is cut
 *
 * This header chooses the instruction set of the process. */
#ifndef KERNELS_LANES_ISA_H
#define KERNELS_LANES_ISA_H

#include "kernels/base/status.h"

enum isa { ISA_BASELINE, ISA_AVX2, ISA_AVX512, ISA_COUNT };

/* The best one this processor has, or the one that COALESCED_ISA in the environment names ("avx512", "avx2",
 * "baseline"; a test and debugging aid). STATUS_INVALID: an unknown name. STATUS_UNAVAILABLE: one that this
 * processor lacks. */
enum status isa_choose(enum isa *out, struct error *error);

/* isa_choose's, or baseline where it fails: for callers whose process has been told already. */
enum isa isa_or_baseline(void);

/* The initializer of an array indexed by enum isa: a function of a *_lanes.c, or the address of a table. */
#define ISA_EACH(name)                                                                                       \
    {                                                                                                        \
        [ISA_BASELINE] = name##_baseline, [ISA_AVX2] = name##_avx2, [ISA_AVX512] = name##_avx512             \
    }

#endif
