/* The record of one episode of the job: the observations, actions, masks and rewards of every column.
 *
 * A column is one agent of one environment: column = environment * agents + agent, in the numbering of the
 * whole job. A step's rows are copied here from its message, once: the policy acts on them here, and the
 * learner reads them here. Row (step, column) stands at step * columns + column, so that one launch touches
 * one stretch of memory. What the rows hold is what the environment's spec says (environment.h).
 *
 * A column's rows fall into segments. A segment ends with a row whose flags are not 0, or with the column's
 * last row. In `episode` mode there is one segment; in `steps` mode a segment ends where the environment was
 * reset. An agent that is absent has rows that say nothing, until its environment is reset.
 *
 * Of a policy with memory, a row also has the state before it. The state after a column's row is the one
 * before its next row, whose start says whether an episode ended between the two: then the policy reads
 * zeros. The states before the closing step are those with which the next rollout begins.
 *
 * A rollout that bootstraps (ppo.h) has one step more, the closing one: rows of number steps_max, with
 * an observation and nothing else. And it keeps the last observation of each episode that was truncated,
 * which the environment's reset has replaced in the next row.
 *
 *     rollout_record, a step  ->  rollout_gather, once for each step  ->  rollout_act  ->  rollout_actions
 *
 * One thread. No I/O; only rollout_act blocks, for the policy's arithmetic. */
#ifndef WORKER_REINFORCE_ROLLOUT_H
#define WORKER_REINFORCE_ROLLOUT_H

#include "kernels/base/archive.h"
#include "kernels/base/region.h"
#include "kernels/base/status.h"
#include "worker/model/policy.h"
#include "worker/reinforce/step_message.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct rollout_config {
    uint32_t environments, agents; /* agents of each environment */
    uint32_t steps_max;
    size_t observation_bytes, action_bytes; /* of one row */
    /* What an observation is made of, which outlives the rollout; only where an image is among the parts. */
    uint32_t part_count;
    const struct environment_part *parts;
    uint32_t choices;       /* bytes of a row's action mask; 0: it has none */
    uint32_t dropout_words; /* of a row's dropout mask */
    bool clips_rewards;     /* the sign of a reward is learned from */
    bool bootstraps;        /* keeps the closing step, last observations, log-probabilities and values */
    size_t state_floats;    /* policy_state_floats; 0 unless it bootstraps */
};

struct rollout {
    struct rollout_config config;
    struct region region; /* all of the memory, but for the arrays last_… */
    uint32_t columns;
    uint32_t episode;    /* of the job, from 1: keys every draw */
    uint32_t *lengths;   /* (columns) rows so far */
    char *observations;  /* (steps_max, columns, observation_bytes) */
    char *actions;       /* (steps_max, columns, action_bytes) */
    uint8_t *allowed;    /* (steps_max, columns, choices); NULL without action masks */
    float *rewards;      /* (steps_max, columns): the reward that the row's action earned */
    uint8_t *before;     /* (steps_max + 1, columns) what ended before the row. In step 0: 0, or
                            ENVIRONMENT_ABSENT for an agent that is away from the start */
    uint8_t *flags;      /* (steps_max, columns) what the row's action ended, environment.h's: `before` from
                            step 1 on */
    uint16_t *masks;     /* (steps_max, columns, dropout_words): dropout's keep bits */
    uint32_t *order;     /* (rows_max) row indices by (column, step): reinforce_weigh fills it */
    float *coefficients; /* (rows_max) in the same order; reinforce_weigh fills it */

    /* With config.bootstraps: */
    float *log_probabilities; /* (steps_max, columns) of the row's action, when it was drawn */
    float *values;            /* (steps_max + 1, columns) of the row's observation, then */
    uint32_t last_count, last_capacity;
    uint32_t *last_rows;     /* (last_count) the rows that were truncated; ascending */
    char *last_observations; /* (last_count, observation_bytes) where each of these steps led */
    float *last_values;      /* (last_count) for the learner */
    float *states;           /* (steps_max + 1, columns, state_floats) before the row; NULL without memory */
    float *last_states;      /* (last_count, state_floats) rollout_recall_last fills it */

    /* The batch: */
    uint32_t batch_rows;                             /* in it so far */
    uint32_t *batch_row, *batch_column, *batch_step; /* (columns) */
    void *answer;                                    /* (columns, action_bytes) of rollout_actions */
};

/* Allocates all memory. STATUS_INVALID when the rows are none or above JOB_ROLLOUT_ROWS_MAX
 * (worker/job/job.h), or take more memory than this machine has; STATUS_NO_MEMORY names the rows. */
enum status rollout_new(struct rollout **out, const struct rollout_config *config, struct error *error);
void rollout_free(struct rollout *rollout);

/* Forgets all rows and begins episode `episode`, with the states before the closing step of the one before.
 */
void rollout_begin(struct rollout *rollout, uint32_t episode);

/* Copies a rollout of the same configuration, or moves it to a checkpoint or back. *fits false: the bytes are
 * of another shape, and nothing is changed. False: they are no rollout, or STATUS_NO_MEMORY is in *error. Of
 * rollouts that bootstrap. STATUS_NO_MEMORY. */
enum status rollout_copy(struct rollout *to, const struct rollout *from, struct error *error);
bool rollout_archive(struct rollout *rollout, struct archive *archive, bool *fits, struct error *error);

static inline uint32_t rollout_row(const struct rollout *rollout, uint32_t step, uint32_t column)
{
    return step * rollout->columns + column;
}

/* The reward that the learner takes for the row: its own, or the sign of that. */
static inline float rollout_learned_reward(const struct rollout *rollout, size_t row)
{
    const float reward = rollout->rewards[row];
    return rollout->config.clips_rewards ? (float)((reward > 0) - (reward < 0)) : reward;
}

/* Records a step: what its rows show, and what the step before earned and ended. STATUS_NO_MEMORY;
 * STATUS_INVALID: its sender has changed the observations (step_check_copy), and the step counts as not
 * recorded. */
enum status rollout_record(struct rollout *rollout, const struct step *step, struct error *error);

/* Keeps the last observations of the episodes that the step before has truncated: the part of rollout_record
 * that is done again where a recorded step comes again. Errors as there. */
enum status rollout_record_last(struct rollout *rollout, const struct step *step, struct error *error);

/* Adds a recorded step's rows to the batch. No column is twice in a batch. */
void rollout_gather(struct rollout *rollout, const struct step *step);

/* Has the policy act on the batch, and begins an empty one. Errors as policy_act. */
enum status rollout_act(struct rollout *rollout, struct policy *policy, struct error *error);

/* The actions of a step that was acted on, (rows, components), within their bounds; valid until the next
 * call.
 */
const void *rollout_actions(struct rollout *rollout, const struct policy *policy, const struct step *step);

/* `count` rows of the rollout, by their numbers `row`, for the policy. */
struct policy_rows rollout_batch(const struct rollout *rollout, uint32_t count, const uint32_t *row);

/* Compares a step with the recorded one. `count` environments from `first` on could have rows in it. Returns
 * which part of a row differs, and sets *environment to that row's environment. NULL: none differs. */
const char *rollout_compare(const struct rollout *rollout, const struct step *step, uint32_t first,
                            uint32_t count, uint32_t *environment);

/* Forgets the environment's rows from `step` on. False: it has fewer rows, and they stay. */
bool rollout_truncate(struct rollout *rollout, uint32_t environment, uint32_t step);

/* Whether the step is the closing one, which asks for no actions. */
static inline bool rollout_is_closing(const struct rollout *rollout, const struct step *step)
{
    return step->number == rollout->config.steps_max;
}

/* Whether the row says nothing: an earlier step, or rollout, has left its agent absent, and its environment
 * went on. */
bool rollout_is_absent(const struct rollout *rollout, uint32_t step, uint32_t column);

/* The place of the row among the last observations, or last_count: its episode was not truncated there. */
uint32_t rollout_find_last(const struct rollout *rollout, uint32_t row);

/* Fills rollout->last_states with the states before the last observations. */
void rollout_recall_last(struct rollout *rollout);

/* Returns the state with which the column's next rollout begins, after writing zeros there if an episode has
 * ended. Of a policy with memory; NULL without one. */
float *rollout_zero_ended_state(struct rollout *rollout, uint32_t column);

/* The environments of columns first … first + count - 1 begin anew in step 0: their states become zeros. */
void rollout_forget_states(struct rollout *rollout, uint32_t first, uint32_t count);

/* Forgets the last observations of columns first … first + count - 1. */
void rollout_forget_last(struct rollout *rollout, uint32_t first, uint32_t count);

/* Rows in all, without the closing ones. */
uint64_t rollout_rows(const struct rollout *rollout);

/* The sum of rewards of the column's first episode, with all of its lives, over columns: the least, or the
 * mean. */
double rollout_reward(const struct rollout *rollout, bool least);

/* The mean of one agent's, over the environments. */
double rollout_reward_of_agent(const struct rollout *rollout, uint32_t agent);

#endif
