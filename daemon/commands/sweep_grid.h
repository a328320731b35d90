/* The runs of a sweep: the product of the values of all --over. Pure; any thread.
 *
 * An --over is /POINTER=VALUES. VALUES are JSON values between commas; a comma inside a string, an array or
 * an object belongs to the value, A..B stands for all integers from A to B, and what is not JSON is a string,
 * as with --set. The values of the last --over change fastest. */
#ifndef DAEMON_COMMANDS_SWEEP_GRID_H
#define DAEMON_COMMANDS_SWEEP_GRID_H

#include "kernels/base/status.h"

#include <stddef.h>

enum { SWEEP_RUNS_MAX = 4096, SWEEP_AXES_MAX = 16, SWEEP_NAME_BYTES = 201 };

struct sweep_axis {
    char *pointer; /* "/optimizer/lr" */
    char **values; /* (count) as written */
    size_t count;
};

struct sweep_grid {
    struct sweep_axis axes[SWEEP_AXES_MAX];
    size_t axis_count;
    size_t runs; /* the product of the counts, at most SWEEP_RUNS_MAX */
};

/* Reads the arguments of all --over. STATUS_INVALID: one is not as above, a pointer or a value is given
 * twice, there are too many, or two runs would have one name; STATUS_NO_MEMORY. sweep_grid_fini follows in
 * either case. */
enum status sweep_grid_read(struct sweep_grid *grid, const char *const *overs, size_t count,
                            struct error *error);
void sweep_grid_fini(struct sweep_grid *grid);

/* The value of an axis in run number `run`; the grid's. */
const char *sweep_grid_value(const struct sweep_grid *grid, size_t run, size_t axis);

/* The argument of --set that gives run number `run` its value of an axis, "/optimizer/lr=0.001": malloc'ed.
 * NULL: no memory. */
char *sweep_grid_override(const struct sweep_grid *grid, size_t run, size_t axis);

/* The run's name, which is also its folder's: "lr=0.001,seed=1". A key is the last part of its pointer, or
 * all parts, joined by dots, where two pointers end alike. Of a value the letters, digits and .+=_- stay,
 * quotes and brackets go, a comma becomes +, and all else _. */
void sweep_grid_name(const struct sweep_grid *grid, size_t run, char name[SWEEP_NAME_BYTES]);

#endif
