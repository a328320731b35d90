/* A group of an observer's environments: they are stepped together, and one METHOD_STEP asks for their
 * actions. An observer with several groups steps one while the agent acts on another. One thread.
 *
 *     begin -> ask, step, ask, step, … until observer_group_is_done */
#ifndef WORKER_REINFORCE_OBSERVER_GROUP_H
#define WORKER_REINFORCE_OBSERVER_GROUP_H

#include "worker/environment/environments.h"
#include "worker/job/job.h"
#include "worker/net/rpc.h"

#include <stdbool.h>

/* What run_episode's answer says of each environment, or of each of its rows. */
struct observer_last {
    float *rewards;  /* (rows) of the last step */
    float *metrics;  /* (rows, metrics) where the last step ended the row */
    uint8_t *flags;  /* (rows) */
    uint32_t *steps; /* (count) */
};

struct observer_group {
    struct environments *environments;
    const struct environment_spec *spec;
    const struct environment_buffers *buffers;
    size_t observation_bytes, action_bytes; /* of a row */
    uint32_t agents, flags_bytes;           /* of an environment; of a row of STEP_FLAGS */
    uint32_t number;                        /* of the group */
    uint32_t count, rows, first; /* environments; their rows; the first environment's number in the job */
    struct observer_last last;   /* the caller's memory, set before the first step; NULLs: nobody asks */
    struct future *answer;       /* of the METHOD_STEP under way; NULL: there is none */

    uint32_t episode, step;      /* the step that is asked next */
    uint32_t steps;              /* how many there are; 0: until each environment's episode is over */
    bool continues;              /* from the rollout before */
    bool closes;                 /* the closing step is not answered yet (step_message.h) */
    uint32_t live;               /* environments whose episode goes on */
    uint32_t *indices, *numbers; /* (live) local; job-wide */
    uint32_t *over;              /* (count) environments that wait for a reset */
    uint32_t ended;              /* rows that ended an episode in the last step, of live environments */
    uint32_t *ended_rows;        /* (ended) */
    /* What a step sends: */
    char *observations;     /* (rows + ended, observation_bytes), unless all are live */
    char *own_observations; /* the same; NULL: it is the caller's memory */
    float *rewards;         /* (rows + ended * metrics) */
    uint8_t *flags;         /* (rows, flags_bytes) */
};

/* Opens `count` environments of the job, the first one with the job-wide number `first`. Errors as
 * job_environments_open. observer_group_close also follows a failure. */
enum status observer_group_open(struct observer_group *group, const struct job *job, uint32_t number,
                                uint32_t first, uint32_t count, struct error *error);
void observer_group_close(struct observer_group *group);

/* The memory from which the group's observations can be lent (worker/net/segment.h): the environments write
 * them there. 0: they are too small to be lent. `memory` holds zeros, begins at a multiple of 64, and
 * outlives the group; before the first episode. */
size_t observer_group_lent_bytes(const struct observer_group *group);
void observer_group_lend(struct observer_group *group, void *memory);

/* Begins an episode with all environments, by run_episode's args (step_message.h). Saved states have been
 * loaded before. Errors as environments_reset. */
enum status observer_group_begin(struct observer_group *group, const uint64_t args[WIRE_ARGS],
                                 struct error *error);

/* The states of the group's environments behind each other, each behind its length in a uint32. Save appends
 * them to *bytes bytes of `out`, of `capacity`, and adds theirs to *bytes, also where they have no room: then
 * nothing is written. False: an environment cannot be saved. Load reads from `states`, and sets *bytes to
 * what it has read. STATUS_INVALID: these are no such states. */
bool observer_group_save(struct observer_group *group, void *out, size_t capacity, size_t *bytes);
enum status observer_group_load(struct observer_group *group, const void *states, size_t length,
                                size_t *bytes, struct error *error);

/* Whether it has made all of its steps. */
bool observer_group_is_done(const struct observer_group *group);

/* Fills METHOD_STEP's request with the live environments' rows; its data stay the group's, until it is
 * advanced. */
void observer_group_rows(struct observer_group *group, struct rpc_message *rows);

/* Steps the live environments with their actions, in the order of the rows, and resets those that this has
 * ended. Errors as environments_step and environments_reset. */
enum status observer_group_advance(struct observer_group *group, const void *actions, struct error *error);

/* Sends the live environments' rows. Does not wait. Errors as rpc_call_async. */
enum status observer_group_ask(struct observer_group *group, struct rpc *rpc, struct error *error);

/* Tells the agent that the group, which is done, asks nothing more in this episode: other observers' groups
 * of its number wait for it otherwise. Does not wait. Errors as rpc_call_async. */
enum status observer_group_tell_done(const struct observer_group *group, struct rpc *rpc,
                                     struct error *error);

/* Waits for the actions, and steps the live environments with them; or, behind the last step, waits for the
 * answer to the closing step. Errors as rpc_wait, environments_step and
 * environments_reset; STATUS_INVALID: the agent's answer has another form. */
enum status observer_group_step(struct observer_group *group, struct rpc *rpc, struct error *error);

#endif
