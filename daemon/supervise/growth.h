/* What a host brings: the number of observers or trainers follows the hosts that join a running job, and that
 * leave it again.
 *
 * The number is fixed within a generation. When it changes, the lead is told to drain: it finishes the round
 * and writes a checkpoint. Then all workers start again under the next generation, from that checkpoint. So
 * no episode or update is lost or computed again, and no worker has to know how another one grows. The
 * clients of a host that is lost run elsewhere until the round is over.
 *
 * Supervisor process; its only thread; no lock. No call blocks. */
#ifndef DAEMON_SUPERVISE_GROWTH_H
#define DAEMON_SUPERVISE_GROWTH_H

#include "daemon/supervise/generation.h"

/* Checks that the job can have `count` more clients of the role `role` (enum wire_role). STATUS_INVALID, with
 * a sentence that begins with the job: another kind of job, or more than it may have. */
enum status growth_check(const struct generation *g, uint32_t role, uint32_t count, struct error *error);

/* A host has come or gone: has the lead drain if the number of clients changes with it. `why` is a sentence
 * that names the host. The caller makes sure that the job is not ending. */
void growth_follow(struct generation *g, const char *why);

/* The clients that the host has brought leave with it. `end` says how the host ends: "is lost". */
void growth_take_away(struct generation *g, uint16_t host, const char *end, bool job_is_ending);

/* "observers" or "trainers"; with a count of 1 "observer" or "trainer". */
const char *growth_unit(const struct generation *g, uint32_t count);

#endif
