/* Records of PyTorch's training runs (test/golden/problem.py makes them and says what they hold), and what a
 * run of ours is held to.
 *
 * The bound for each number is five times the deviation that stands beside it, at least 1e-6 of the record's
 * largest value, and 1e-7 more for gradients. For a run in double it is 1e-8 of the record's largest value:
 * the records hold ten digits. What is out of bounds is counted by kind and not asserted, so that a test can
 * also show what a wrong run breaks. Anything wrong with the file itself, or a record asked for that is not
 * in it, fails the running check. */
#ifndef TEST_GOLDEN_H
#define TEST_GOLDEN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum golden_kind {
    GOLDEN_OUTPUT,
    GOLDEN_LOSS,
    GOLDEN_GRADIENT,
    GOLDEN_UPDATE,
    GOLDEN_STATISTIC,
    GOLDEN_KINDS
};

struct golden;

/* Reads test/golden/NAME.txt, for one run. `state`: where the generator stands after the problem's data,
 * which must be where the file says it is. `exact`: the run computes in double. */
struct golden *golden_open(const char *name, uint64_t state, bool exact);
void golden_close(struct golden *golden);

/* Holds a tensor (canonical, `count` values) to its record, or records. Steps count from 1. */
void golden_check(struct golden *golden, uint32_t step, enum golden_kind kind, const char *name,
                  const double *values, size_t count);

/* Numbers out of bounds, of one step (0: of all) and kind. */
uint32_t golden_violations(const struct golden *golden, uint32_t step, enum golden_kind kind);

/* Fails the running check if anything is out of bounds, or if a record was not asked for. */
void golden_assert_all(const struct golden *golden);

#endif
