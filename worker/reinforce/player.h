/* A policy that plays apart from training: for evaluations, and for people who watch. One thread, no
 * messages. Episode i is that of environment i in the job's episode 0, and training begins with episode 1:
 * the first states follow from the job's seed, are none of training's, and the same for every checkpoint.
 *
 * A player has environments of its own, in C. Or the observers have them, in Python: then evaluation_shares.h
 * plays, with the player's policy and into its sums. */
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
    const struct environment_spec *spec;
    struct environments *environments; /* NULL: others have them */
    const struct environment_buffers *buffers;
    const char *model; /* for errors: a path, or words */
    uint32_t episodes, agents;
    uint32_t steps_max; /* an episode is over after so many steps at the latest; 0: nothing cuts it */
    uint32_t step;      /* of the episodes that go on */
    uint32_t alive;     /* how many go on */
    uint32_t *live;     /* (alive) ascending */
    uint32_t *rows;     /* (alive * agents) their rows */
    uint32_t *steps;    /* (alive * agents) `step` */
    uint16_t *dropout;  /* (episodes * agents, policy_dropout_words) */
    double *rewards;    /* (episodes) so far; of several agents the mean */
    uint32_t *lengths;  /* (episodes) steps so far */
    struct episode_metrics metrics; /* of the rows that have ended */
};

/* Opens the job's environments, one for each episode, and its policy, which has no values yet. *player is all
 * zero. Errors as job_environments_open; STATUS_NO_MEMORY. player_close also follows a failure. `job`
 * outlives the player. */
enum status player_open(struct player *player, const struct job *job, uint32_t episodes, struct error *error);

/* The same for environments that others have. Without player_begin and player_step. `spec` outlives the
 * player.
 */
enum status player_open_apart(struct player *player, const struct job *job,
                              const struct environment_spec *spec, uint32_t episodes, struct error *error);

/* player_open, and the model of `checkpoint`, a checkpoint's folder or a safetensors file with the names of
 * the policy's parameters. Errors also as checkpoint_load_model. `checkpoint` outlives the player. */
enum status player_open_checkpoint(struct player *player, const char *checkpoint, const struct job *job,
                                   uint32_t episodes, struct error *error);

void player_close(struct player *player);

/* Forgets what `count` episodes from `first` on have come to. */
void player_forget(struct player *player, uint32_t first, uint32_t count);

/* Forgets and begins `count` episodes from `first` on; they go on until each is over. */
enum status player_begin(struct player *player, uint32_t first, uint32_t count, struct error *error);

/* Writes the actions of a batch. player->rows and player->steps have the number and the step of each of its
 * rows: actions that are drawn, `sampled`, are drawn by them. Errors as policy_act and policy_choose, behind
 * the model's name. */
enum status player_act(struct player *player, const struct policy_rows *rows, bool sampled,
                       struct error *error);

/* What the episodes have come to, after all of them are over. */
struct player_summary {
    double mean, deviation, least, most; /* of the rewards; deviation: the sample's, over n - 1; 0 of one */
    double length;                       /* mean steps */
    struct control_metrics metrics;      /* means */
};
struct player_summary player_summarize(const struct player *player);

/* One step of every episode that goes on. The policy takes the most probable action, the first of equal ones,
 * and drops nothing; or, `sampled`, it draws as in training. STATUS_CORRUPT: the model's numbers are not
 * finite, or the environment's. */
enum status player_step(struct player *player, bool sampled, struct error *error);

#endif
