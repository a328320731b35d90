/* What the agent's two files share: agent.c runs the job, agent_step.c answers the observers' steps. One
 * thread. */
#ifndef WORKER_REINFORCE_AGENT_H
#define WORKER_REINFORCE_AGENT_H

#include "worker/environment/environment.h"
#include "worker/net/rpc.h"
#include "worker/reinforce/coalescer.h"
#include "worker/reinforce/learner.h"
#include "worker/reinforce/rollout.h"
#include "worker/worker.h"

/* Where the agent is in an episode. */
enum agent_phase {
    AGENT_GATHERING, /* not every observer has said HELLO */
    AGENT_PLAYING,   /* run_episode is out at every observer; steps come in */
    AGENT_LEARNING,  /* every row is in; the policy learns from them */
    AGENT_REPORTING, /* the episode's record goes out once its predecessor is in the logs */
    AGENT_CLOSING,   /* the last record is on its way into the logs */
    AGENT_OVER,      /* FINISHED is said; waits for the order to leave */
};

/* One observer as the agent sees it, in the present episode. */
struct agent_seat {
    struct agent *agent;
    uint16_t worker;       /* its number; its environments are those of seat `worker` - 1 */
    uint32_t first;        /* its first environment */
    uint32_t next_step;    /* the step that its next request must be for */
    bool waiting;          /* a request of its is in the coalescer's line */
    struct future *called; /* run_episode itself, and what agent_step made of its answer */
    struct future *returned;
};

struct agent {
    struct worker *worker;
    const struct environment_spec *spec;
    uint32_t environments; /* of the whole job */
    uint32_t per_observer;
    struct rpc *rpc;
    struct backend *backend; /* the policy's; NULL: it computes on the CPU */
    struct policy *policy;
    struct coalescer *coalescer;
    struct rollout *rollout;
    struct rollout_returns returns;

    enum agent_phase phase;
    uint64_t episode;
    struct monotime episode_begin;
    double running_reward;
    enum control_end end;
    uint32_t joined;
    struct agent_seat *seats;   /* (observers) */
    struct future **returned;   /* (observers) scratch for future_all */
    struct future *all;         /* of the present episode */
    uint32_t live;              /* environments whose episode is not over */
    uint8_t *alive;             /* (environments) */
    struct monotime serve_next; /* while learning: when the loop is served again */
    struct learner_result learned;
    struct error launch_error; /* of the launch that failed; STATUS_OK: none has */
    struct {
        uint32_t *row, *environment, *step; /* (environments) of one launch */
        uint8_t *actions;                   /* (environments) of one reply */
    } batch;
};

/* ---- agent_step.c ---- */

/* METHOD_STEP's handler: checks an observer's rows, takes them into the rollout, puts the request in line. */
rpc_handler agent_step;

/* The coalescer's launch: one pass of the policy over the batch, then every request's reply. */
coalescer_launch agent_launch;

/* Takes an observer's answer to run_episode: its environments' last rewards. For future_then; arg: seat. */
future_then_function agent_returned;

#endif
