/* The end of denormal numbers: the program takes them for 0 of the same sign.
 *
 * The moments of a unit that gets no gradient shrink by a factor a step, until they are denormal; a denormal
 * operand makes an operation many times slower. Here they become 0.
 *
 * The bits stay the same on every instruction set. SSE, AVX2 and AVX-512 obey the one register MXCSR; all of
 * them round first and flush then. The baseline's fused operation computes in double, where no product of
 * floats is denormal, and flushes as it rounds to float. oneDNN computes with the same instructions. The
 * plug-in for GPUs is compiled with -ftz=true.
 *
 * A new thread inherits the register from its creator: the teams, OpenMP's threads, those of a user's
 * plug-in. A plug-in that gcc linked with -ffast-math sets the same bits when it is loaded: nothing changes.
 * exec clears them, so programs in Python keep denormal numbers. */
#ifndef KERNELS_BASE_DENORMALS_H
#define KERNELS_BASE_DENORMALS_H

#include <pmmintrin.h>

/* Denormal operands (DAZ) and results (FTZ) are 0 from here on, in the calling thread and in each that it
 * starts. main calls this before anything else; so does every test program. */
static inline void denormals_flush(void)
{
    _MM_SET_FLUSH_ZERO_MODE(_MM_FLUSH_ZERO_ON);
    _MM_SET_DENORMALS_ZERO_MODE(_MM_DENORMALS_ZERO_ON);
}

#endif
