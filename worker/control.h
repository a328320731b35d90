/* The control line between the supervisor and one worker: a SOCK_SEQPACKET socketpair.
 *
 * The supervisor sends orders, the worker sends beats and reports. Both ends run on the same host, and all
 * but the workers in Python (worker/python/worker_session.py) run the same binary, so messages are plain
 * structs; PROTOCOL.md has those that such a worker needs. Each end still checks kind and length before it
 * reads a message, so that a worker with damaged memory cannot crash the supervisor. Either end reads
 * end-of-file when the other is gone. Sending never blocks: an end whose queue is full has stopped reading.
 */
#ifndef WORKER_CONTROL_H
#define WORKER_CONTROL_H

#include "kernels/base/profile.h"
#include "kernels/base/status.h"
#include "worker/job/job.h"
#include "worker/net/host_keys.h"
#include "worker/net/wire.h"
#include "worker/roster.h"
#include "worker/run_place.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    CONTROL_FD = 3,      /* where a worker finds its end */
    CONTROL_RUN_FD = 4,  /* where a worker finds the run's directory, open */
    CONTROL_CALL_FD = 5, /* where a worker finds memory for its struct plugin_call; may be closed */
    CONTROL_ADDRESS_BYTES = 160,
    CONTROL_PATH_BYTES = 4096,
    CONTROL_BODY_BYTES_MAX = 48 * 1024,
    CONTROL_FAR_BYTES = 64,
    CONTROL_LEADERS_MAX = 16, /* addresses at which a host looks for the leader */
    CONTROL_HOST_NAME_BYTES = 64,
    CONTROL_NO_WORKER = UINT16_MAX,
    CONTROL_METRICS_MAX = 64,
    CONTROL_BATCH_BUCKETS = 16,
    CONTROL_WAIT_BUCKETS = 15,
    CONTROL_METRIC_NAME_BYTES = 64, /* with the zero at the end */
    CONTROL_SPANS_MAX = 1024,
};

enum control_kind {
    /* supervisor to worker */
    CONTROL_START = 1, /* struct control_start, then the resolved job's JSON */
    CONTROL_CONNECT,   /* every worker that this one dials is bound */
    CONTROL_DIED,      /* struct control_died: another worker is gone */
    CONTROL_LOGGED,    /* struct control_logged, to the lead: so many of its records are in the logs */
    CONTROL_DRAIN,     /* to the lead (roster.h): finish the round, then say FINISHED */
    CONTROL_HURRY,     /* complete everything pending with STATUS_SHUTDOWN, then as DRAIN */
    CONTROL_EXIT,      /* say BYE and exit */
    /* worker to supervisor */
    CONTROL_BOUND, /* nothing, or struct control_bound: a worker that others dial: its address can be dialed,
                      and will soon be answered */
    CONTROL_READY, /* this worker has its sessions and can begin to work */
    CONTROL_BEAT,  /* still turning; nothing, or struct control_beat */
    CONTROL_EPISODE,  /* struct control_episode: a record for the logs; LOGGED answers each record */
    CONTROL_UPDATE,   /* struct control_update: the same of an update */
    CONTROL_EPOCH,    /* struct control_epoch: the same of an epoch that has ended */
    CONTROL_STATUS,   /* struct control_status: the objects and references of a worker; the newest counts */
    CONTROL_FINISHED, /* struct control_finished: the lead's job is over */
    CONTROL_FAILED,   /* struct error: last words */
    /* supervisor to worker, in a job of several hosts */
    CONTROL_FAR,    /* struct control_far[], before CONNECT: the workers to dial that are on other hosts */
    CONTROL_PLACED, /* int16_t[] by worker number, to listeners: the host of each worker, -1: not known */
    /* between the supervisors of several hosts (daemon/hosts/relay.h), and to their links (worker/link.h) */
    CONTROL_LINK,   /* struct control_link: to a link, first */
    CONTROL_RELAY,  /* struct control_relay, then a message of or for a worker or a host */
    CONTROL_JOIN,   /* struct control_join: a host asks to take part */
    CONTROL_ADMIT,  /* struct control_admit: its answer */
    CONTROL_REFUSE, /* struct error: the other answer, and the host's end */
    CONTROL_KILL,   /* kill this worker */
    CONTROL_EXITED, /* struct control_exited: this worker is reaped */
    CONTROL_DEPART, /* the host asks to be left out from now on */
    CONTROL_OVER,   /* struct control_over: the job has ended, and so does the host's part in it */
    /* worker to supervisor */
    CONTROL_PROFILE, /* struct control_profile: where the worker's time went, when it leaves (/log/profile) */
    /* for a rotation of the logs */
    CONTROL_SAVE,  /* supervisor to lead: take a checkpoint at the end of the round */
    CONTROL_SAVED, /* struct control_saved, lead to supervisor: a checkpoint is visible, asked for or not */
    CONTROL_KINDS
};

struct control_start {
    uint16_t worker; /* this worker's number: servers from 0, then clients (worker/roster.h) */
    uint8_t role;    /* enum wire_role */
    uint32_t incarnation, generation;
    uint32_t added;                      /* struct job's */
    uint8_t secret[WIRE_SECRET_BYTES];   /* of this run of the job: worker/net/proof.h */
    char address[CONTROL_ADDRESS_BYTES]; /* worker N binds this with ".N" appended */
    char run_dir[CONTROL_PATH_BYTES];    /* absolute, for messages: CONTROL_RUN_FD is the directory */
    char resume[CONTROL_PATH_BYTES];     /* the checkpoint to go on from, below it; "": a fresh start */
    struct host_keys keys;               /* keys.count 0: the job has one host, and the next is "" */
    char far_address[CONTROL_FAR_BYTES]; /* "tcp://ADDRESS:*": what a listener binds for other hosts */
};

struct control_bound {
    uint16_t far_port; /* of the socket for other hosts; 0: the job has one host */
};

/* How far a worker's part of an evaluation has come: `done` of `total` episodes, samples or batches. Both are
 * equal after the part's end; `total` 0: the worker has no part. */
struct control_share {
    uint32_t done, total;
};

/* What a worker has done, used and dropped since its start. */
struct control_beat {
    uint64_t cpu_us, resident_bytes; /* processor time of the process; its memory now */
    uint64_t work; /* observer: steps of environments; agent: rows acted on, or steps of its own environments;
                      pserver: updates; trainer: steps */
    uint64_t bad, strangers, duplicates, stale,
        timeouts; /* messages: struct rpc_counters (worker/net/rpc.h) */
    uint32_t
        queue; /* agent: requests that wait for a launch; pserver: contributions that wait for the round */
    uint32_t zero;
    struct control_share evaluation;
};

struct control_far {
    uint16_t worker, host;
    char address[CONTROL_FAR_BYTES];
};

/* What a link does: binds `addresses[0]` (host 0), or connects to all of them and keeps the one that answers
 * first. */
struct control_link {
    struct host_keys keys;
    char addresses[CONTROL_LEADERS_MAX][CONTROL_FAR_BYTES]; /* "": no more */
    uint64_t build;                                         /* of this program: both ends must be the same */
};

/* The worker that the message behind this struct is of or for. The incarnation and generation tell a late
 * message of a predecessor. */
struct control_relay {
    uint16_t host;
    uint16_t worker; /* CONTROL_NO_WORKER: it is of or for the host itself */
    uint32_t kind;   /* of the message behind this struct */
    uint32_t incarnation, generation;
};

struct control_join {
    uint64_t attempt;                   /* a random number: the same JOIN comes by several addresses */
    char name[CONTROL_HOST_NAME_BYTES]; /* the host's, for messages */
    char leader[CONTROL_FAR_BYTES];     /* by which of the leader's addresses it reached the leader */
    char from[CONTROL_FAR_BYTES];       /* by the leader's link: the host's network address */
    uint64_t build;
    uint32_t brings; /* how many observers or trainers the job gets for this host (coalesced join) */
    uint32_t role;   /* enum wire_role, of those */
};

struct control_admit {
    double patience_s; /* how long to look for the leader once it is lost */
    uint64_t requeue;  /* 1: ask Slurm to put the job back into the queue then; else 0 */
};

struct control_exited {
    int64_t pid;
    char end[240]; /* how it ended: struct child */
};

struct control_over {
    int32_t exit_code;
    char text[200];
};

struct control_died {
    uint16_t worker;
    uint32_t incarnation; /* the one that is gone; its successor may have a session already */
    char text[200];       /* "observer 3 was killed by signal 9" */
};

/* The first comes ahead of all records, with `records` 0. */
struct control_logged {
    uint64_t records;       /* of this process that are in the logs; epochs count, too */
    struct run_place place; /* behind the newest of them */
};

struct control_saved {
    struct run_place place; /* that the checkpoint names */
};

/* What an environment reports of its ended episodes, by name; of several agents also their rewards. A mean
 * that is NaN: none has ended. */
struct control_metrics {
    uint32_t count;
    struct {
        char name[CONTROL_METRIC_NAME_BYTES];
        double mean;
    } of[CONTROL_METRICS_MAX];
};

/* Episodes that the policy has played apart from training. */
struct control_evaluation {
    double mean_reward, std_reward; /* over the episodes; std with n - 1, 0 of one episode */
    double mean_ep_length;
    double success_rate; /* the mean of the metric "is_success"; NaN: the environment has none */
};

/* What an update adds to its episode, under Stable-Baselines3's names; of every algorithm but reinforce.
 * Means are over the update's minibatches or gradient steps; approx_kl's over those of its last epoch. */
struct control_figures {
    int algorithm; /* enum job_algorithm: says which of the others there are (control_figure_list) */
    uint64_t total_timesteps;        /* environment steps so far */
    uint64_t n_updates;              /* epochs so far, or gradient steps */
    double ep_rew_mean, ep_len_mean; /* of the last episodes that have ended; NaN: none */
    double loss;                     /* of the last minibatch; a mean of dqn; else as critic_loss */
    double policy_loss, value_loss, entropy_loss, clip_fraction, approx_kl;
    double explained_variance;
    double learning_rate, clip_range;
    double std;                     /* a Gaussian's mean deviation; NaN: the action is a choice */
    double exploration_rate;        /* the probability of a random action */
    double actor_loss, critic_loss; /* NaN: there was no such step */
    double ent_coef, ent_coef_loss; /* the latter NaN: the coefficient is not learned */
    bool has_evaluation;
    struct control_evaluation evaluation;
};

/* Where a figure is shown: episodes.jsonl, TensorBoard's events, the metrics. */
enum { CONTROL_IN_LOG = 1, CONTROL_IN_EVENTS = 2, CONTROL_IN_METRICS = 4 };

/* A figure's row: each log and page shows those that the algorithm has. */
struct control_figure {
    const char *name, *group;   /* TensorBoard's tag is group/name */
    unsigned where, algorithms; /* sets: of the above; of 1 << enum job_algorithm */
    bool is_count;              /* it is a uint64_t, else a double */
    size_t offset;              /* in struct control_figures */
    const char *help;           /* what it is, for the metrics */
};
extern const struct control_figure control_figure_list[];
extern const size_t control_figure_count;

/* Whether the algorithm of these figures has the figure, and shows it there. */
bool control_figure_is_shown(const struct control_figure *figure, const struct control_figures *figures,
                             unsigned where);
double control_figure_value(const struct control_figure *figure, const struct control_figures *figures);

/* One episode, for both logs. Fields that may differ between two runs of one seed are in `timing`. */
struct control_episode {
    uint64_t episode; /* from 1 */
    double reward, running_reward, loss;
    uint64_t env_steps;
    struct {
        double episode_s, learn_s; /* the whole episode; the learner's part of it */
        uint64_t launches;
        uint64_t requests; /* step requests */
        double batch_mean; /* rows a launch */
        uint32_t batch_max;
        double wait_us_p50, wait_us_p99;         /* a request's wait for its launch */
        double wait_s;                           /* the sum of these waits */
        uint32_t batches[CONTROL_BATCH_BUCKETS]; /* [i]: launches of more than 2^(i-1) rows, at most 2^i; the
                                                    last: all greater ones */
        uint32_t waits[CONTROL_WAIT_BUCKETS]; /* [i]: waits above control_wait_limits_us[i - 1], at most [i];
                                                 the last: all longer ones */
    } timing;
    bool is_last; /* /stop ends the job here */
    bool has_figures;
    struct control_figures figures;
    struct control_metrics metrics; /* of the environments' episodes that ended within this one; last, because
                                       no more of them travel than there are */
};

/* The waits' buckets: the 1, 2.5 and 5 of each power of ten from 10 us to 0.25 s. */
extern const uint32_t control_wait_limits_us[CONTROL_WAIT_BUCKETS - 1];

/* The bytes of an episode that travel. */
static inline size_t control_episode_bytes(const struct control_episode *episode)
{
    return offsetof(struct control_episode, metrics.of) +
           episode->metrics.count * sizeof episode->metrics.of[0];
}

/* One update of a parameter server. A loss that is NaN belongs to a trainer that did not take part. Of a
 * model-parallel job: all updates since the line before, of which `loss` is the mean and `samples` the
 * tokens; `update` is the last one's, `round_s` the time of all, without the `samples_before` tokens that
 * were read before a resume. The trainers' losses and the other members below `samples` are unused. */
struct control_update {
    uint64_t update; /* from 1; also the version of the model that it made */
    double loss;     /* mean over the trainers that counted */
    double lr;
    uint64_t samples; /* that counted */
    uint64_t late;    /* contributions dropped since the last update */
    uint32_t trainers;
    bool is_last;                    /* /stop ends the job here */
    double losses[JOB_TRAINERS_MAX]; /* (trainers) */
    struct {
        double round_s;          /* since the update before */
        double wait_s;           /* from the first contribution of the round to its last */
        double update_s;         /* the pass over the parameters */
        uint64_t bytes;          /* gradients in and parameters out, be they copied or only read in place */
        uint64_t samples_before; /* of `samples`, a model-parallel job's; else 0 */
    } timing;
    int16_t staleness[JOB_TRAINERS_MAX]; /* (trainers) how many versions old the model was from which each
                                            computed; -1: it did not take part */
};

struct control_epoch {
    uint64_t epoch, update; /* epoch from 1; the update that ended it */
    double loss;            /* mean over the epoch's updates */
    uint64_t evaluated;     /* held-out samples; 0: it was not evaluated, and the next three mean nothing */
    double evaluation_loss; /* mean over them */
    uint64_t correct;
    double unigram_perplexity; /* a language model's yardstick (worker/data/corpus.h) */
    struct {
        double epoch_s, evaluation_s;
    } timing;
};

/* References and contexts of a worker (worker/reference/rref.h, dist.h): of all workers, from the lead, ahead
 * of its CONTROL_EPOCH; and a worker's own, as its last report when it leaves in good order and all counts
 * are zero. */
struct control_status {
    uint32_t worker;
    uint32_t objects, references, users, contexts, pieces;
    uint32_t users_of[JOB_SERVERS_MAX + JOB_TRAINERS_MAX]; /* `users` by the holder's number */
};

/* What profile_end has found. Its spans come in several messages, each with all that stands before them. */
struct control_profile {
    uint64_t begin_ns, end_ns; /* on the clock of the worker's host; it is reported at its end */
    uint64_t cpu_ns;           /* processor time of the process, all its threads */
    uint64_t ns[PROFILE_KINDS];
    uint64_t span_count;   /* all that were long enough */
    uint32_t first, count; /* of the spans that were kept, this message has [first, first + count) */
    struct profile_span spans[CONTROL_SPANS_MAX];
};

/* The bytes of a part of a profile that travel. */
static inline size_t control_profile_bytes(const struct control_profile *profile)
{
    return offsetof(struct control_profile, spans) + profile->count * sizeof profile->spans[0];
}

/* Why a job is over. */
enum control_end { CONTROL_END_FINISHED, CONTROL_END_SOLVED, CONTROL_END_STOPPED };

struct control_finished {
    uint32_t end;     /* enum control_end */
    uint64_t updates; /* of a model-parallel job, which need not have a line for its last one; else 0 */
    double reward; /* of a reinforce job: the last evaluation's (NaN: there was none) where its limit is for
                      that, else the running one */
};

struct control_message {
    uint32_t kind; /* enum control_kind */
    union {
        struct control_start start;
        struct control_died died;
        struct control_logged logged;
        struct control_saved saved;
        struct control_episode episode;
        struct control_update update;
        struct control_epoch epoch;
        struct control_status status;
        struct control_finished finished;
        struct error failed;
        struct control_bound bound;
        struct control_beat beat;
        struct control_far far[ROSTER_LISTENERS_MAX];
        int16_t host_of_worker[ROSTER_WORKERS_MAX];
        struct control_link link;
        struct control_relay relay;
        struct control_join join;
        struct control_admit admit;
        struct control_exited exited;
        struct control_over over;
        struct control_profile profile;
        char bytes[CONTROL_BODY_BYTES_MAX]; /* START's job text begins behind the struct */
    } body;
    size_t body_bytes; /* not sent: the packet's length says it */
};

/* The number of the episode or update that a CONTROL_EPISODE or CONTROL_UPDATE records. */
static inline uint64_t control_record_number(const struct control_message *record)
{
    return record->kind == CONTROL_EPISODE ? record->body.episode.episode : record->body.update.update;
}

/* Sends one message. Never raises SIGPIPE. Blocks only where the kernel lacks memory, for a tenth of a second
 * at most. STATUS_PEER_DIED: the other end is gone. STATUS_BUSY: its queue is full, or there is no memory. */
enum status control_send(int fd, enum control_kind kind, const void *body, size_t body_bytes);

/* Checks a message's kind and length. STATUS_INVALID. */
enum status control_check(const struct control_message *message);

/* Receives one message. STATUS_AGAIN: none is waiting (or, when `wait`, interrupted), or the kernel lacks
 * memory for it now. STATUS_PEER_DIED: end of file. STATUS_INVALID: a message of no known kind or too short
 * for it; one that is too short to have a kind has kind 0. */
enum status control_receive(int fd, bool wait, struct control_message *message);

#endif
