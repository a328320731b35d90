/* Whole episodes that a policy plays apart from training: the evaluations within a job, and the commands
 * `evaluate` and `play`.
 *
 * Episode i is that of environment i in the job's episode 0, and training begins with episode 1. The first
 * states follow from the job's seed, are none of training's, and are the same for every checkpoint: so
 * `evaluate` finds the mean of an evaluation again in the same checkpoint. Unless actions are sampled, the
 * policy takes the most probable one, the first of equal ones, and drops nothing.
 *
 * Environments in C are stepped here. Environments in Python are the observers': observer i of k plays one
 * share of the n episodes, those from n * i / k on, all at once. METHOD_RUN_EVALUATION names the share. The
 * observer makes environments for it beside those of training, once, and asks for every action by
 * METHOD_STEP of episode 0, group 0. So a message of an evaluation is never taken for one of training, and
 * nothing of a rollout, its environments or its draws is touched.
 *
 * The result does not depend on how the episodes are spread. Each request is answered at once, by a batch of
 * its own, and the policy's choice for a row does not depend on the batch. An episode's sums are formed in
 * order of its steps, those over episodes in order of their numbers. The successor of an observer that died
 * plays the share from its first step; what the predecessor has reported of the share is forgotten.
 *
 * One thread, the agent's or the command's. */
#ifndef WORKER_REINFORCE_EVALUATOR_H
#define WORKER_REINFORCE_EVALUATOR_H

#include "worker/control.h"
#include "worker/job/job.h"
#include "worker/model/policy.h"
#include "worker/reinforce/step_message.h"

enum { POLICY_EPISODES_MAX = 1000000 };

/* ---- the commands: no messages, on the CPU; environments in Python have a process of their own ---- */

struct evaluation_summary {
    double mean, deviation, least, most; /* of the rewards; deviation: the sample's, over n - 1; 0 of one */
    double length;                       /* mean steps */
    struct control_metrics metrics;      /* means */
};

/* Plays `episodes` (1..POLICY_EPISODES_MAX) with the model of `checkpoint` (policy_values_load). Errors as
 * job_command_environments_open and policy_values_load; STATUS_NO_MEMORY; STATUS_CORRUPT: the model's numbers
 * are not finite, or the environment's. */
enum status policy_evaluate(struct evaluation_summary *summary, const char *checkpoint, const struct job *job,
                            uint32_t episodes, struct error *error);

/* A picture of the environment: before the first step of an episode, and after each. */
struct play_frame {
    uint32_t episode, step; /* from 1; from 0 */
    double reward;          /* of the episode, so far */
    uint32_t width, height; /* of an RGB picture: pixels (height, width, 3); 0 of a text */
    const void *bytes;      /* valid during the call */
    size_t size;
};

struct play_settings {
    uint32_t episodes;
    bool sampled; /* actions are drawn as in training */
    int picture;  /* of environment.h: ENVIRONMENT_TEXT or ENVIRONMENT_RGB; 0: none is drawn */
    /* Called with each frame, if there are pictures; an error ends the play. */
    enum status (*show)(void *context, const struct play_frame *frame, struct error *error);
    /* Called after each episode: its number from 1, its reward, its steps, its metrics (of several agents the
     * means). */
    void (*over)(void *context, uint32_t episode, double reward, uint32_t steps,
                 const struct control_metrics *metrics);
    void *context;
};

/* Plays one episode after the other, for people who watch. Errors as policy_evaluate; STATUS_UNAVAILABLE: the
 * environment draws no such picture; those of `show`. */
enum status policy_play(const char *checkpoint, const struct job *job, const struct play_settings *settings,
                        struct error *error);

/* ---- within a job ---- */

struct worker;
struct evaluator;

/* METHOD_RUN_EVALUATION's args. Its answer has the form of METHOD_RUN_EPISODE's, of the share's episodes. */
enum { EVALUATION_FIRST, EVALUATION_EPISODES, EVALUATION_STEPS };

/* Opens the evaluations of the worker's job; *out is NULL where it has none. `worker` and `spec` outlive it.
 * worker->evaluation counts the episodes that have ended. Errors as job_environments_open; STATUS_NO_MEMORY.
 * evaluator_free also follows a failure; NULL is allowed. */
enum status evaluator_new(struct evaluator **out, struct worker *worker, const struct environment_spec *spec,
                          struct error *error);
void evaluator_free(struct evaluator *evaluator);

/* Begins an evaluation of the policy as it is now. Environments in C: plays all of it, and calls `progress`
 * after each step; STATUS_SHUTDOWN: an order to hurry has cut it short; other errors as policy_evaluate. */
enum status evaluator_begin(struct evaluator *evaluator, struct policy *policy, policy_progress *progress,
                            void *context, struct error *error);

/* Environments in Python: begins the share of observer `seat`, or begins it again, and writes the request
 * METHOD_RUN_EVALUATION. False: there is nothing to ask of this observer. */
bool evaluator_begin_share(struct evaluator *evaluator, uint32_t seat, struct rpc_message *request);

/* Takes an observer's decoded METHOD_STEP, and writes its answer, whose data stay valid until the next call.
 * STATUS_INVALID: the step is not the share's next one, or no share is asked for; nothing is changed. Other
 * errors as policy_evaluate. */
enum status evaluator_step(struct evaluator *evaluator, uint32_t seat, const struct step *step,
                           struct rpc_message *answer, struct error *error);

/* Ends the share of observer `seat` with its answer. `evaluator`: a struct evaluator (seats_answer).
 * STATUS_INVALID: the answer does not match the steps. */
enum status evaluator_end_share(void *evaluator, uint32_t seat, const struct rpc_message *answer);

/* What the episodes, which have all been played, have come to. */
struct control_evaluation evaluator_end(const struct evaluator *evaluator);

#endif
