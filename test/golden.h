/* Compares a training run with the record of PyTorch's (made and described by test/golden/problem.py).
 *
 * A number's bound is five times the deviation in its record, at least 1e-6 of the record's largest value,
 * and 1e-7 more for gradients. For a run in double the bound is 1e-8 of the record's largest value: the
 * records have ten digits. Numbers out of bounds are counted by kind, not asserted, so that a test can also
 * show which kinds a wrong run violates. A malformed file and a missing record fail the running check. */
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

/* Reads test/golden/NAME.txt for one run. `state` is the generator's state after the problem's data; it must
 * equal the file's. `exact`: the run computes in double. */
struct golden *golden_open(const char *name, uint64_t state, bool exact);
void golden_close(struct golden *golden);

/* Compares a tensor (canonical, `count` values) with its record or records. Steps count from 1. */
void golden_check(struct golden *golden, uint32_t step, enum golden_kind kind, const char *name,
                  const double *values, size_t count);

/* The count of numbers out of bounds, of one step (0: all steps) and kind. */
uint32_t golden_violations(const struct golden *golden, uint32_t step, enum golden_kind kind);

/* Fails the running check if a number is out of bounds, or if a record was never compared. */
void golden_assert_all(const struct golden *golden);

#endif
