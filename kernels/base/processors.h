/* How many processors this process may run on. */
#ifndef KERNELS_BASE_PROCESSORS_H
#define KERNELS_BASE_PROCESSORS_H

#include <stdint.h>

/* The size of the calling thread's affinity mask, on machines of any size; 1 when the kernel does not say. */
uint32_t processors_count(void);

#endif
