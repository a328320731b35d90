/* A policy that plays without a job's workers: for evaluation, and for people who watch. One process, one
 * thread, no messages. Episode i is that of environment i in the job's episode 0, and training begins with
 * episode 1: the first states follow from the job's seed, are none of training's, and the same for every
 * checkpoint. */
#ifndef WORKER_REINFORCE_PLAYER_H
#define WORKER_REINFORCE_PLAYER_H

#include "worker/environment/environments.h"
#include "worker/job/job.h"
#include "worker/model/policy.h"
#include "worker/reinforce/episode_metrics.h"

#include <stdbool.h>

struct player {
    struct policy *policy;
    struct backend *backend; /* the policy's; NULL: it needs none */
    struct environments *environments;
    const struct environment_buffers *buffers;
    const char *checkpoint; /* for errors */
    uint32_t episodes, agents;
    uint32_t step;                  /* of the episodes that go on */
    uint32_t alive;                 /* how many go on */
    uint32_t *live;                 /* (alive) ascending */
    uint32_t *rows;                 /* (alive * agents) their rows */
    uint32_t *steps;                /* (alive * agents) `step` */
    uint16_t *dropout;              /* (episodes * agents, policy_dropout_words) */
    double *rewards;                /* (episodes) so far; of several agents the mean */
    struct episode_metrics metrics; /* of the rows that have ended */
};

/* Opens the job's environments, one for each episode, and its policy with the model of `checkpoint`, a
 * checkpoint's folder or a safetensors file with the names of the policy's parameters. *player is all zero.
 * Errors as checkpoint_load_model and job_environments_open; STATUS_NO_MEMORY. player_close also follows a
 * failure. `checkpoint` and `job` outlive the player. */
enum status player_open(struct player *player, const char *checkpoint, const struct job *job,
                        uint32_t episodes, struct error *error);
void player_close(struct player *player);

/* Begins `count` episodes from `first` on; they go on until each is over. */
enum status player_begin(struct player *player, uint32_t first, uint32_t count, struct error *error);

/* One step of every episode that goes on. The policy takes the most probable action, the first of equal ones,
 * and drops nothing; or, `sampled`, it draws as in training. STATUS_CORRUPT: the model's numbers are not
 * finite, or the environment's. */
enum status player_step(struct player *player, bool sampled, struct error *error);

#endif
