/* The time of one mark of the profile (kernels/base/profile.h), while the thread is profiled and while it is
 * not. */
#include "kernels/base/profile.h"

#include <stdio.h>
#include <stdlib.h>

enum { MARKS = 10000000, ROUNDS = 7 };

static int compare(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Each mark changes the kind, so that each reads the clock. */
static double mark_ns(void)
{
    const struct monotime begin = monotime_now();
    for (unsigned i = 0; i < MARKS; i++) {
        profile_enter(i % 2 == 0 ? PROFILE_WAITING : PROFILE_TRANSPORT);
        __asm__ volatile("" ::: "memory"); /* a loop of marks that are off would be one branch */
    }
    return (double)(monotime_now().ns - begin.ns) / MARKS;
}

int main(void)
{
    double off[ROUNDS], on[ROUNDS];
    for (unsigned i = 0; i < ROUNDS; i++) {
        off[i] = mark_ns();
        profile_begin(monotime_now());
        on[i] = mark_ns();
        profile_end(monotime_now());
    }
    qsort(off, ROUNDS, sizeof off[0], compare);
    qsort(on, ROUNDS, sizeof on[0], compare);
    printf("a mark, off: %.1f ns (%.1f..%.1f)\n", off[ROUNDS / 2], off[0], off[ROUNDS - 1]);
    printf("a mark, on: %.1f ns (%.1f..%.1f)\n", on[ROUNDS / 2], on[0], on[ROUNDS - 1]);
    return 0;
}
