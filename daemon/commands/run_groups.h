/* Which runs repeat one job with another seed, and what to call them in a figure's legend. Pure; any thread.
 *
 * Two runs are of one group when their jobs are equal in every key but /seed. A group's label has the keys in
 * which the groups differ, by the last part of their pointers ("lr 0.001"), or by the whole pointer where two
 * of these keys end alike, and the number of its runs: "lr 0.001, 5 seeds". Where the label would be longer
 * than RUN_LABEL_CHARACTERS_MAX, or no key differs, the name of the group's first run stands in place of the
 * keys. */
#ifndef DAEMON_COMMANDS_RUN_GROUPS_H
#define DAEMON_COMMANDS_RUN_GROUPS_H

#include "kernels/base/status.h"

#include <stddef.h>

enum { RUN_LABEL_BYTES = 512, RUN_LABEL_CHARACTERS_MAX = 100 };

struct run_group {
    size_t first; /* the number of its first run */
    size_t runs;
    char label[RUN_LABEL_BYTES];
};

struct run_groups {
    size_t count;
    struct run_group *groups; /* (count) by their first runs */
    size_t *group_of;         /* the group of each run */
};

/* `jobs`: the text of each run's job.json, every key with its value. `names`: the runs' names, for labels.
 * STATUS_INVALID: a text is not JSON; STATUS_NO_MEMORY. run_groups_fini follows in either case. */
enum status run_groups_make(struct run_groups *groups, const char *const *jobs, const char *const *names,
                            size_t count, struct error *error);
void run_groups_fini(struct run_groups *groups);

#endif
