/* Sets the number of OpenMP threads, for the library's parallel regions and our own. */
#include "kernels/onednn/onednn.h"

/* The library brings OpenMP with it. Weak, because a build without OpenMP of our own (under the thread
 * sanitizer) does not link it; then too the library's regions must be as wide as was asked. */
extern void omp_set_num_threads(int threads) __attribute__((weak));
extern int omp_get_max_threads(void) __attribute__((weak));
extern int omp_pause_resource_all(int kind) __attribute__((weak));
enum { OMP_PAUSE_HARD = 2 }; /* OpenMP 5.0's omp_pause_hard */

void onednn_use_threads(const struct onednn *onednn)
{
    if (omp_get_max_threads != NULL && omp_get_max_threads() != onednn->threads)
        omp_set_num_threads(onednn->threads);
}

void onednn_end_threads(void)
{
    if (omp_pause_resource_all != NULL)
        omp_pause_resource_all(OMP_PAUSE_HARD);
}
