/* The round: when it is complete, which contributions make the next version, and which slot is free for it.
 *
 * A contribution is one trainer's gradient of one step, computed from one version of the model. Contributions
 * are keyed by (trainer, step): a replay replaces its original and never counts twice. The job's rule says
 * which of them make a round:
 *
 *   all       every trainer's contribution from the current version
 *   first k   the first k that were computed from the current version; a contribution from an older version
 *             is late. A contribution after the k-th waits until the round is made, and is late then
 *   async s   each contribution is a round of its own, in order of arrival; one whose base lies more than s
 *             versions behind is late
 *
 * A late contribution is dropped and counted, and its sender goes on from the newest model. The members of a
 * round are listed in the order of their numbers, so sums do not depend on the order of arrival.
 * server_update.c sums a round with backend_sgd_round, whose loop on the CPU is
 * kernels/lanes/sgd_round_lanes.c.
 *
 * ---- Slots ----
 * Every version lies in a slot until the slot is written anew. A trainer holds one version, the one that it
 * was given last, from then until it contributes. A slot may be written when its version is not the current
 * one and no trainer holds it. `all` needs 2 slots, `first` 3, `async` s + 2; at most one per trainer and one
 * more can be in use, for at least one trainer has just contributed and holds none.
 *
 * With no slot free the update waits, and the wait ends: a trainer that has contributed holds nothing, so
 * every holder of a version is computing with it. Next that trainer contributes (and, if late, is answered,
 * which needs no slot) or dies; both release its version. With one slot beside the current one, the last
 * holder of an old version to do so frees one; the other slots only make this rare. Evaluations and
 * checkpoints read the current version and end before the next update is made, so they hold nothing. Readers
 * of chunks hold nothing either: their bytes are copied at once.
 *
 * Pure: no sockets, no kernels, no clock, no memory of its own; one thread. */
#ifndef WORKER_DATA_PARALLEL_ROUND_H
#define WORKER_DATA_PARALLEL_ROUND_H

#include "kernels/base/status.h"
#include "worker/job/job.h"

#define ROUND_NO_VERSION UINT64_MAX

/* The round's record of one trainer. */
struct round_seat {
    uint64_t step; /* the next one */
    uint64_t held; /* ROUND_NO_VERSION: none */
    bool waiting;  /* the contribution of `step` is in */
    uint64_t base; /* its version */
    uint64_t turn; /* its place in the order of arrival */
};

/* Others read it; the functions below alone change it. */
struct round {
    int rule;              /* enum job_round */
    uint32_t number;       /* first: k, 1..trainers; async: s */
    uint32_t trainers;     /* 1..JOB_TRAINERS_MAX */
    uint32_t first_worker; /* the first trainer's worker number: messages name trainers by worker number */
    uint64_t version;      /* the newest */
    uint32_t newest;       /* its slot */
    uint64_t late;         /* contributions so far that were late */
    uint64_t turns;        /* contributions so far */
    uint32_t slots;        /* at least 2 */
    uint64_t slot[JOB_TRAINERS_MAX + 1];      /* (slots) the version in each, or ROUND_NO_VERSION */
    struct round_seat seat[JOB_TRAINERS_MAX]; /* (trainers) */
};

/* The round of a job whose newest version is `version`, in slot 0. steps (trainers): each one's next. */
void round_open(struct round *round, const struct job *job, uint64_t version, const uint64_t *steps);

/* The number of contributions that wait. */
uint32_t round_waiting(const struct round *round);

/* The slot in which `version` still lies. */
bool round_slot_of(const struct round *round, uint64_t version, uint32_t *slot);

/* The trainer is given `version`, which lies in a slot, and holds it from now on. */
void round_hold(struct round *round, uint32_t trainer, uint64_t version);

/* STATUS_INVALID, unless `step` is the trainer's next one; the text names trainer, got and expected. */
enum status round_check_step(const struct round *round, uint32_t trainer, uint64_t step, struct error *error);

/* Takes in the contribution of the trainer's next step and releases the version that its sender held.
 * *replay: it replaced one of the same step. STATUS_INVALID, with nothing changed: a base newer than the
 * newest version, or a base other than the version that the trainer holds (for a replay: held). */
enum status round_add(struct round *round, uint32_t trainer, uint64_t base, bool *replay,
                      struct error *error);

/* Drops the trainer's waiting contribution: it is being sent again, or is bad. */
void round_withdraw(struct round *round, uint32_t trainer);

/* The trainer is gone: drops its hold and its contribution. Its next step is unchanged. */
void round_forget(struct round *round, uint32_t trainer);

/* Takes out one contribution that is late by now: counts it and moves its sender on to its next step. False:
 * there is none. */
bool round_take_late(struct round *round, uint32_t *trainer);

/* Writes the members of the next round into `members` (trainers), ascending. Returns their number; 0: the
 * round is not full. */
uint32_t round_members(const struct round *round, uint32_t *members);

/* A slot into which the next version may be written. False: the update has to wait. */
bool round_free_slot(const struct round *round, uint32_t *slot);

/* The next version lies in `slot`, made of `count` members: it is the newest from now on, and the members go
 * on to their next steps. They hold nothing until round_hold. */
void round_advance(struct round *round, uint32_t slot, const uint32_t *members, uint32_t count);

#endif
