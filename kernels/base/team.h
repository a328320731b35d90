/* A team: threads that share the pieces of one computation, with the thread that calls.
 *
 * Which thread computes which piece is left to chance, so a result must not depend on it: each piece writes
 * memory of its own, and what the pieces have in common is added afterwards, in the pieces' order. Between
 * two calls the threads spin for some microseconds and then sleep. */
#ifndef KERNELS_BASE_TEAM_H
#define KERNELS_BASE_TEAM_H

#include "kernels/base/status.h"

#include <stdint.h>

struct team;

typedef void team_work(void *context, uint32_t piece);

/* A team of `threads` threads, the caller's among them: 1 starts none. Every signal is blocked in the
 * threads. STATUS_NO_MEMORY; STATUS_IO when the system starts no further thread. */
enum status team_new(struct team **out, uint32_t threads, struct error *error);
/* Ends the threads. NULL is allowed. */
void team_free(struct team *team);

/* Calls work(context, piece) once for each piece in [0, pieces), and returns when all calls have returned.
 * One thread at a time may call this, and no work does. Allocates nothing. */
void team_run(struct team *team, uint32_t pieces, team_work *work, void *context);

#endif
