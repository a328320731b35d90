/* Waits for a condition in a test, for a minute at most: long enough for a loaded machine. (A wait of a fixed
 * number of turns fails where messages are slower than turns.) */
#ifndef TEST_UNTIL_H
#define TEST_UNTIL_H

#include "kernels/base/monotime.h"

#include <check.h>

/* Repeats `step` until `condition` holds; `condition` is evaluated first. Fails the test after a minute. */
#define UNTIL(condition, step)                                                                               \
    do {                                                                                                     \
        const struct monotime until_limit = monotime_add_us(monotime_now(), 60000000);                       \
        while (!(condition)) {                                                                               \
            ck_assert_msg(monotime_before(monotime_now(), until_limit), "never: %s", #condition);            \
            step;                                                                                            \
        }                                                                                                    \
    } while (0)

#endif
