/* Counts the processors of the affinity mask. A cpu_set_t holds 1,024 processors, and the kernel refuses a
 * set that is too small for the machine with EINVAL; so the buffer grows. Any thread. */
#include "kernels/base/processors.h"

#include <errno.h>
#include <sched.h>

uint32_t processors_count(void)
{
    uint32_t processors = 1;
    for (size_t most = CPU_SETSIZE; most <= 64 * CPU_SETSIZE; most *= 2) {
        cpu_set_t *set = CPU_ALLOC(most);
        if (set == NULL)
            return 1;
        int failed = sched_getaffinity(0, CPU_ALLOC_SIZE(most), set);
        if (failed == 0)
            processors = (uint32_t)CPU_COUNT_S(CPU_ALLOC_SIZE(most), set);
        CPU_FREE(set);
        if (failed == 0 || errno != EINVAL)
            break;
    }
    return processors;
}
