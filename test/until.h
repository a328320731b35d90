/* Waiting in a test: until something is so, however long that takes on a loaded machine. A wait that counts
 * its turns fails where messages are slower than turns; this one ends a hang, and measures nothing. */
#ifndef TEST_UNTIL_H
#define TEST_UNTIL_H

#include "kernels/base/monotime.h"

#include <check.h>

/* Runs `step` again and again until `condition`, which is asked first. A minute without it fails the test. */
#define UNTIL(condition, step)                                                                               \
    do {                                                                                                     \
        const struct monotime until_limit = monotime_add_us(monotime_now(), 60000000);                       \
        while (!(condition)) {                                                                               \
            ck_assert_msg(monotime_before(monotime_now(), until_limit), "never: %s", #condition);            \
            step;                                                                                            \
        }                                                                                                    \
    } while (0)

#endif
