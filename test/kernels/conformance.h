/* Shared by the conformance tests: a backend beside ref, and messages about their differences. */
#ifndef TEST_KERNELS_CONFORMANCE_H
#define TEST_KERNELS_CONFORMANCE_H

#include "test/kernels/op_run.h"

/* ref itself (its given memory, its subsets, its bits); onednn on one thread, on two, and on lesser
 * instruction sets, whose layouts are others; cuda. */
enum { CONFORMANCE_BACKENDS = 6 };

struct conformance {
    char name[32]; /* "onednn, 2 threads" */
    struct backend *ref, *backend;
    struct arena *ref_arena, *arena;
    unsigned complaints;
    bool quiet; /* complaints are counted, not printed */
};

/* Opens the pair in this process; once per process, for no math library survives a fork. Fails the test when
 * the CPU's is not there. False when this machine has no GPU or no such instructions, which `announce` says
 * in a line. With TEST_BACKEND in the environment ("cuda"), that plug-in alone is opened, and must be there.
 */
bool conformance_open(struct conformance *pair, unsigned number, bool announce);

/* ref beside a table that the test brings. */
void conformance_open_ops(struct conformance *pair, const char *name, const struct backend_ops *ops);
void conformance_close(struct conformance *pair);

/* One line on stdout that names the backend. */
void conformance_complain(struct conformance *pair, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Complains when `got` is further from `expected` than the bound allows. */
void conformance_compare(struct conformance *pair, const char *what, const struct values *expected,
                         const struct values *got, double bound);

/* Everything that a backend has to do with one row of the table. */
void conformance_case(struct conformance *pair, const struct op_case *op_case);

#endif
