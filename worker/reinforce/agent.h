/* The room of the job kind `reinforce`: one agent, which acts and learns, and its observers, which step the
 * environments. Each is one thread. The data flow:
 *
 *     request   an observer sends rows of (environment, observation, reward, flags)   observer.c
 *     row       checked, and copied from the frame into the rollout                   agent_step.c
 *     launch    a batch is due: one pass of the policy over its rows                  coalescer.c
 *     reply     the actions, to every request of the batch                            agent_step.c
 *     rollout   every row of the episode, with its reward                             rollout.c
 *     returns   rewards discounted, normalized and scaled                             returns.c
 *     learner   forward again, backward, Adam; then the next episode                  learner.c
 *
 * agent.c (the loop), agent_open.c and agent_step.c share this header. The room may include the frame
 * (worker/), job, net, environment and model (scripts/rooms); no other room includes it. */
#ifndef WORKER_REINFORCE_AGENT_H
#define WORKER_REINFORCE_AGENT_H

#include "worker/environment/environment.h"
#include "worker/net/rpc.h"
#include "worker/reinforce/coalescer.h"
#include "worker/reinforce/learner.h"
#include "worker/reinforce/rollout.h"
#include "worker/worker.h"

/* The phases of an episode, in order. */
enum agent_phase {
    AGENT_GATHERING, /* not every observer has said HELLO */
    AGENT_PLAYING,   /* run_episode is out at every observer; steps come in */
    AGENT_LEARNING,  /* every row is in; the policy learns from them */
    AGENT_REPORTING, /* waits until the predecessor's record is in the logs, then reports this one's */
    AGENT_CLOSING,   /* waits until the last record is in the logs */
    AGENT_OVER,      /* FINISHED is reported; waits for the order to leave */
};

/* One observer in the running episode. */
struct agent_seat {
    struct agent *agent;
    uint16_t worker;       /* its number; its environments are those of seat `worker` - 1 */
    uint32_t first;        /* its first environment */
    uint32_t next_step;    /* the step that its next request must be for */
    bool waiting;          /* its request is in the coalescer's line */
    struct future *called; /* run_episode */
    enum status returned;  /* the answer's status, by agent_returned */
};

struct agent {
    struct worker *worker;
    uint32_t environments; /* of the whole job */
    uint32_t per_observer;
    struct rpc *rpc;
    struct backend *backend; /* the policy's; NULL: it computes on the CPU */
    struct policy *policy;
    struct coalescer *coalescer;
    struct rollout *rollout;
    struct returns_config returns;

    enum agent_phase phase;
    uint64_t episode;
    struct monotime episode_begin;
    double running_reward;
    enum control_end end;
    uint32_t joined;
    struct agent_seat *seats;   /* (observers) */
    uint32_t playing;           /* observers that have not answered run_episode */
    uint32_t live;              /* environments whose episode is not over */
    uint8_t *alive;             /* (environments) */
    struct monotime serve_next; /* while learning: when the loop is served again */
    struct learner_result learned;
    struct error launch_error; /* of the first launch that failed; STATUS_OK: none did */
    struct {
        uint32_t *row, *environment, *step; /* (environments) of one launch */
        uint8_t *actions;                   /* (environments) of one reply */
    } batch;
};

/* ---- agent_open.c ---- */

/* Opens all of it, up to the bound socket. agent_close also follows a failure. */
enum status agent_open(struct agent *agent, struct worker *worker, struct error *error);
void agent_close(struct agent *agent);

/* Answers a waiting request with SHUTDOWN; for coalescer_clear. */
void agent_drop_request(void *context, void *request);

/* ---- agent_step.c ---- */

/* METHOD_STEP's handler: checks an observer's rows, stores them in the rollout, puts the request in line. */
rpc_handler agent_step;

/* The coalescer's launch: one pass of the policy over the batch, then every request's reply. */
coalescer_launch agent_launch;

/* Stores the last rewards, which an observer's answer to run_episode carries. For rpc_call_then; arg: the
 * seat. The seat's `returned` is STATUS_INVALID when the answer does not match the observer's steps. */
future_then_function agent_returned;

#endif
