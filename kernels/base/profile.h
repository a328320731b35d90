/* Where a thread's time goes: a switch that is always in one position, the kind of work being done. Each
 * change adds the time since the last one to the total of the kind that ends. Recent long stretches of one
 * kind are also kept one by one, for a trace. Here, and not beside the workers' frame, because the rpc and
 * the distributed autograd, which know no frame, compute and wait too.
 *
 * One thread of a process is profiled: the one that calls profile_begin. For other threads, and before
 * profile_begin, profile_enter and profile_leave are one branch that is never taken. While profiling, a
 * change reads the clock once (about 30 ns). Nothing here blocks, allocates or fails.
 *
 *     enum profile_kind before = profile_enter(PROFILE_ENVIRONMENT);
 *     …
 *     profile_leave(before);
 */
#ifndef KERNELS_BASE_PROFILE_H
#define KERNELS_BASE_PROFILE_H

#include "kernels/base/monotime.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum profile_kind {
    PROFILE_OTHER,
    PROFILE_ENVIRONMENT, /* steps and resets of environments */
    PROFILE_DATA,        /* waiting for a batch of the data set */
    PROFILE_TRANSPORT,   /* sending, receiving and checking messages, with the handlers' copies */
    PROFILE_WAITING,     /* nothing to do until a message or a deadline comes */
    PROFILE_INFERENCE,   /* forward passes that nothing is learned from */
    PROFILE_LEARNING,    /* forward and backward passes; the agent's whole learner */
    PROFILE_UPDATE,      /* the optimizer of a parameter server or of an owner of parameters */
    PROFILE_CHECKPOINT,  /* taking a checkpoint; another thread writes its files */
    PROFILE_KINDS
};

enum {
    PROFILE_SPAN_NS_MIN = 10000, /* shorter stretches count in the totals only */
    PROFILE_SPANS_MAX = 4096     /* so many of the newest are kept */
};

/* One stretch of one kind. */
struct profile_span {
    uint64_t begin_ns; /* as struct monotime */
    uint64_t ns;
    uint32_t kind, zero;
};

struct profile {
    struct monotime begin;
    uint64_t ns[PROFILE_KINDS];                   /* their sum: the time since `begin` */
    uint64_t span_count;                          /* all that were long enough, also those no longer kept */
    struct profile_span spans[PROFILE_SPANS_MAX]; /* span i is at i % PROFILE_SPANS_MAX */
};

/* "environment" */
const char *profile_kind_name(enum profile_kind kind);

/* Profiles the calling thread from `now` on; it does PROFILE_OTHER. At most one thread at a time. */
void profile_begin(struct monotime now);

/* Ends profiling; the result is valid until the next profile_begin. NULL: the calling thread is not profiled.
 */
const struct profile *profile_end(struct monotime now);

/* Kept spans, from the oldest on: the first one's number. */
static inline uint64_t profile_first_span(const struct profile *profile)
{
    return profile->span_count > PROFILE_SPANS_MAX ? profile->span_count - PROFILE_SPANS_MAX : 0;
}

extern _Thread_local bool profile_is_on;

/* profile_enter with a clock of one's own, of a thread that is profiled. */
enum profile_kind profile_enter_at(enum profile_kind kind, struct monotime now);

/* For profile_enter: reads the clock where the kind changes. */
enum profile_kind profile_switch(enum profile_kind kind);

/* From now on the thread does `kind`. Returns what it did before, for profile_leave. */
static inline enum profile_kind profile_enter(enum profile_kind kind)
{
    return profile_is_on ? profile_switch(kind) : PROFILE_OTHER;
}

static inline void profile_leave(enum profile_kind before)
{
    profile_enter(before);
}

#endif
