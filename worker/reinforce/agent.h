/* The room of the job kind `reinforce`: one agent, which acts and learns, and its observers, which step the
 * environments. Each is one thread. The data flow:
 *
 *     spaces    an observer describes its environment; policy and rollout fit it      agent_describe.c
 *     request   an observer sends rows of (environment, observation, reward, flags)   observer.c
 *     row       checked, and copied from the frame into the rollout                   agent_step.c
 *     launch    a batch is due: one pass of the policy over its rows                  coalescer.c
 *     reply     the actions, to every request of the batch                            agent_step.c
 *     rollout   every row of the episode, with its reward                             rollout.c
 *     returns   rewards discounted, normalized and scaled                             returns.c
 *     learner   forward again, backward, Adam                                         learner.c
 *     ppo       in place of these two, PPO or A2C: advantages, epochs of minibatches  ppo.c
 *     evaluator episodes apart from training, if they are due                         agent_evaluate.c,
 *                                                                         evaluation_shares.c
 *     saver     the values, to a checkpoint if one is due; then the next episode      agent_checkpoint.c
 *
 * A job without observers has its environments in the agent's own process, agent_own.c: the rows go the same
 * way without request and reply.
 *
 * agent.c (the loop), agent_open.c, agent_own.c, agent_evaluate.c, agent_describe.c, agent_step.c,
 * agent_return.c, agent_states.c, agent_replay.c and agent_checkpoint.c share this header. The room may
 * include the frame (worker/), job, net, environment, model and checkpoint (scripts/rooms). */
#ifndef WORKER_REINFORCE_AGENT_H
#define WORKER_REINFORCE_AGENT_H

#include "worker/checkpoint/checkpoint_saver.h"
#include "worker/environment/environment_description.h"
#include "worker/environment/environment_spec.h"
#include "worker/model/policy_values.h"
#include "worker/net/rpc.h"
#include "worker/net/segment.h"
#include "worker/reinforce/coalescer.h"
#include "worker/reinforce/episode_metrics.h"
#include "worker/reinforce/episode_returns.h"
#include "worker/reinforce/learner.h"
#include "worker/reinforce/ppo.h"
#include "worker/reinforce/rollout.h"
#include "worker/worker.h"

/* The phases of an episode, in order. */
enum agent_phase {
    AGENT_GATHERING,  /* not every observer has described its environment */
    AGENT_PLAYING,    /* run_episode is out at every observer; steps come in */
    AGENT_LEARNING,   /* every row is in; the policy learns from them */
    AGENT_EVALUATING, /* run_evaluation is out at observers, or has been answered by all */
    AGENT_REPORTING,  /* waits until the predecessor's record is in the logs, then reports this one's */
    AGENT_SAVING,     /* waits until a checkpoint that is due can be begun */
    AGENT_CLOSING,    /* waits for the last record's line and, if there is no hurry, the last checkpoint */
    AGENT_OVER,       /* FINISHED is reported; waits for the order to leave */
};

/* A group of an observer's environments in the running episode: its steps come one after the other. */
struct agent_group {
    struct agent_seat *seat;
    uint32_t first, count;       /* its environments, in the numbering of the job */
    uint32_t next_step;          /* the step that its next request must be for */
    uint32_t recorded;           /* its steps in the rollout; above next_step while a successor plays again */
    struct rpc_request *waiting; /* for the last recorded step, in the coalescer's line; NULL: none */
    struct rpc_request *parked;  /* a successor's request for that step; NULL: none */
    struct step step;            /* the one of `waiting` */
};

/* One observer in the running episode. When it dies, its successor plays the episode again from the first
 * step, and gets the recorded actions up to the step at which its predecessor stopped (agent_replay.c). */
struct agent_seat {
    struct agent *agent;
    uint16_t worker;            /* its number; its environments are those of seat `worker` - 1 */
    bool described;             /* its session has begun, and it has described its environment */
    bool played;                /* it has answered an episode to this agent */
    bool fresh;                 /* its session has played no episode: its environments are nowhere yet */
    char *states;               /* (state_bytes) its environments' after the last episode it answered */
    size_t state_bytes;         /* 0: they save none, or there was no such episode */
    bool lost;                  /* its session has ended: the next one is asked to play the episode */
    struct future *called;      /* run_episode, or run_evaluation */
    enum status returned;       /* the answer's status, by agent_returned */
    struct agent_group *groups; /* (groups) */
};

struct agent {
    struct worker *worker;
    uint32_t environments; /* of the whole job */
    uint32_t per_observer;
    uint32_t groups; /* of each observer */
    struct rpc *rpc;
    struct segment outbox;        /* never mapped: the agent lends nothing, and reads what observers lend */
    struct coalescer_stats stats; /* of the running episode */
    struct coalescer *
        *coalescers; /* (groups) one for the groups of each number: the others' rows may be away */

    /* After the first description: */
    struct backend *backend; /* the policy's; NULL: it needs none */
    char *text; /* the description; NULL: there is none yet, and nothing of what follows is open */
    struct environment_description world;
    struct policy *policy;
    struct rollout *rollout;
    struct returns_config returns;
    struct episode_returns episode_returns; /* used where rollouts go on */
    struct episode_metrics metrics;         /* of the running episode */

    enum agent_phase phase;
    bool ready;  /* READY is reported */
    bool warned; /* of what a death or a resume costs (environment_loss) */
    bool told;   /* that an environment takes another course when it is played again */
    uint64_t episode;
    struct monotime episode_begin;
    double running_reward;
    enum control_end end;
    uint32_t described;         /* seats that are described */
    struct agent_seat *seats;   /* (observers) */
    struct agent_group *all;    /* (observers * groups) the seats' */
    struct agent_own *own;      /* the agent's own environments; NULL: the job has observers */
    uint32_t playing;           /* observers that have not answered `called`, the lost ones included */
    uint32_t lost;              /* seats that are lost */
    uint32_t *live;             /* (groups) environments whose episode is not over, in groups of a number */
    uint8_t *alive;             /* (environments) */
    struct monotime serve_next; /* while learning: when the loop is served again */
    struct learner_result learned;
    struct ppo ppo;                    /* used where the algorithm is ppo or a2c */
    struct control_ppo figures;        /* likewise: of the last update */
    struct agent_evaluator *evaluator; /* NULL: the job has no evaluations */
    double evaluated;                  /* the mean reward of the last evaluation; NaN: there was none */
    struct policy_values values;       /* of the newest checkpoint; the saver's until that is written */
    char *saved_states;                /* likewise */
    struct checkpoint_saver saver;
    struct error failure; /* the first one within a callback, which ends the job; STATUS_OK: none */
    struct {
        uint32_t *row, *column, *step; /* (columns) of one launch */
        void *actions;                 /* (columns, action_bytes) of one reply */
    } batch;
};

static inline bool agent_is_actor_critic(const struct agent *agent)
{
    return job_is_actor_critic(&agent->worker->job);
}

/* ---- agent_open.c ---- */

/* Opens all that does not depend on the environment, up to the bound socket. agent_close also follows a
 * failure. */
enum status agent_open(struct agent *agent, struct worker *worker, struct error *error);
void agent_close(struct agent *agent);

/* Answers all requests that wait in the coalescers with SHUTDOWN. */
void agent_drop_waiting(struct agent *agent);

/* ---- agent_describe.c ---- */

/* METHOD_DESCRIBE's handler. The first description opens policy, rollout and checkpoint; every further one
 * must be the same text. What cannot be opened, and a second environment, end the job. */
rpc_handler agent_describe;

/* Reports READY, once: a failure before it is the job's own, and no reason to start again. */
void agent_report_ready(struct agent *agent);

void agent_close_world(struct agent *agent);

/* All that depends on the environment, by its description, which is good text. */
enum status agent_open_world(struct agent *agent, const char *text, size_t bytes, struct error *error);

/* ---- agent_own.c ---- */

/* Opens the agent's own environments, and with them the world; nothing where the job has observers. Errors as
 * observer_group_open and agent_open_world. */
enum status agent_own_open(struct agent *agent, struct error *error);
void agent_own_close(struct agent *agent);

/* Begins the rollout. Errors as observer_group_begin. */
enum status agent_own_begin(struct agent *agent, struct error *error);

/* Plays for 10 ms, or to the rollout's end. With an order to hurry the rollout is cut short. Errors as
 * observer_group_advance and policy_act. */
enum status agent_own_play(struct agent *agent, struct error *error);

/* Whether the rollout is over; and whether it was cut short. */
bool agent_own_is_over(const struct agent *agent);
bool agent_own_is_cut(const struct agent *agent);

/* The environments' states, as agent_states.c lays them out. Save returns their bytes, and writes nothing
 * where `capacity` is less; 0: they cannot be saved. Load's errors as observer_group_load. */
size_t agent_own_save(struct agent *agent, char *out, size_t capacity);
enum status agent_own_load(struct agent *agent, const char *states, size_t length, struct error *error);

/* ---- agent_evaluate.c ---- */

/* Opens the evaluations; nothing, where the job has none. Errors as player_open. */
enum status agent_evaluate_open(struct agent *agent, struct error *error);
void agent_evaluate_close(struct agent *agent);

/* Whether an evaluation follows the running episode's update. */
bool agent_evaluates(const struct agent *agent);

/* Begins an evaluation of the policy as it is now. Environments in C: plays all of it, and calls `progress`
 * after each step; STATUS_SHUTDOWN: an order to hurry has cut it short; errors as player_step. Environments
 * in Python: calls the observers, of which agent->playing then counts those that have not answered. */
enum status agent_evaluate_begin(struct agent *agent, policy_progress *progress, struct error *error);

/* Asks the seat's observer for its share of the evaluation. Errors as rpc_call_then. */
enum status agent_evaluate_call(struct agent_seat *seat, struct error *error);

/* METHOD_STEP of an observer that plays its share. */
void agent_evaluate_step(struct agent_seat *seat, struct rpc_request *request, const struct step *s);

/* Puts what the episodes, which have all been played, have come to into agent->figures and agent->evaluated.
 */
void agent_evaluate_end(struct agent *agent);

/* ---- agent_checkpoint.c ---- */

/* In a run that resumes, also gives the policy its values, and the agent its counters. After agent_open has
 * opened policy and rpc. STATUS_INVALID: the checkpoint is of another kind of job, or of another shape. */
enum status agent_checkpoint_open(struct agent *agent, struct error *error);
/* Waits for the saver's thread. Before the rpc is freed. */
void agent_checkpoint_close(struct agent *agent);

/* Between two episodes: begins a checkpoint if one is due. `last`: the job ends here. STATUS_AGAIN: one is
 * due, and the one before is not done; call again after the next turn. */
enum status agent_checkpoint_begin(struct agent *agent, bool last, struct error *error);

/* In every turn: continues the checkpoint that is being taken. Does not block. */
enum status agent_checkpoint_advance(struct agent *agent, struct error *error);

/* ---- agent_step.c ---- */

/* METHOD_STEP's handler: checks an observer's rows, stores them in the rollout, puts the request in line. */
rpc_handler agent_step;

/* The coalescer's launch: one pass of the policy over the batch, then every request's reply. */
coalescer_launch agent_launch;

/* Writes a step's rows, of a request that is good, into the rollout. A failure goes into agent->failure. */
void agent_record(struct agent *agent, const struct step *step);

/* The part of it that keeps what the step before has ended: last observations and metrics; at step 0 the
 * episodes whose environments could not go on. */
void agent_take_ends(struct agent *agent, const struct step *step);

/* Draws the actions of recorded rows, and writes them to batch.actions too, within their bounds. Errors as
 * policy_act. */
enum status agent_act(struct agent *agent, const struct step *step, struct error *error);

/* The group's environments send no rows any more in this episode. */
void agent_retire_group(struct agent_group *group);

/* Tells the coalescers how many rows live. */
void agent_set_live(struct agent *agent);

/* Answers METHOD_STEP with the actions of its rows, which are in the rollout. */
void agent_reply(struct agent *agent, struct rpc_request *request, const struct step *step);

/* ---- agent_return.c ---- */

/* Stores the last rewards, which an observer's answer to run_episode carries. For rpc_call_then; arg: the
 * seat. An answer that does not match the observer's steps costs the session. */
future_then_function agent_returned;

/* ---- agent_states.c ---- */

/* Whether the answer's last tensor holds a state of each of the seat's environments, in a job that wants
 * them. */
bool agent_states_are_good(const struct agent_seat *seat, const struct step_end *end);

/* Keeps the states of an answer, or that there are none. */
void agent_states_keep(struct agent_seat *seat, const struct step_end *end);

/* Writes into the request of run_episode how the seat's environments begin. False: they should go on, but the
 * observer is new and nothing saved is there: they are reset. The states stay the seat's. */
bool agent_states_give(const struct agent_seat *seat, struct rpc_message *message);

/* Then: warns, and forgets the unfinished episodes. */
void agent_states_lost(struct agent_seat *seat);

/* Warns, once, of what a death or a resume costs with the job's environments (environment_loss). */
void agent_states_warn(struct agent *agent, bool can_save);

/* The unfinished episodes of environments first … first + count - 1 have come to nothing. */
void agent_states_forget(struct agent *agent, uint32_t first, uint32_t count);

/* All that the next episode depends on, beside the policy, as the bytes of a checkpoint's file. In a job that
 * begins with resets: none, *out is NULL. The caller frees *out. Load, before the first episode: no bytes are
 * a checkpoint without them. STATUS_INVALID: they are another job's; the sentence begins behind the path. */
enum status agent_states_save(struct agent *agent, char **out, size_t *bytes, struct error *error);
enum status agent_states_load(struct agent *agent, const char *from, size_t bytes, struct error *error);

/* ---- agent_replay.c ---- */

/* Sends the seat's observer a request whose answer ends what it plays. Before its description the seat is
 * lost. Errors as rpc_call_then. */
enum status agent_call_seat(struct agent_seat *seat, enum wire_method method,
                            const struct rpc_message *message, future_then_function *then,
                            struct error *error);

/* Asks the seat's observer to play the running episode. Errors as agent_call_seat. */
enum status agent_call_observer(struct agent_seat *seat, struct error *error);

/* Asks the successors of lost observers, as far as they are described, for what the phase has the lost ones
 * play. */
enum status agent_call_successors(struct agent *agent, struct error *error);

/* Whether the request, whose tensors are good, repeats a recorded step. If a recorded step comes out as
 * another one, the record of the observer is forgotten from there on. */
bool agent_replays(struct agent_group *group, const struct step *step);

/* The group's episodes are over. Records beyond their ends are forgotten, too. */
void agent_replay_end(struct agent_group *group);

/* Says, once, that the environment takes another course when it is played again. `where` ends the clause. */
void agent_replay_tell(struct agent *agent, uint32_t environment, const char *where);

/* A step that is repeated. Answers the request, or parks it until the launch. */
void agent_replay_step(struct agent_group *group, struct rpc_request *request, const struct step *step);

/* Ends the parked requests of all groups with STATUS_SHUTDOWN. */
void agent_drop_parked(struct agent *agent);

#endif
