/* What a run is doing, as one picture: for `coalesced status`, for /metrics, for the page.
 *
 * The room: daemon/watch shows a run to those who watch it, in each form that they ask for.
 *
 *     status    the picture: the run's state, its totals, and each worker's
 *     totals    sums over the records that this process has seen; they start at 0 when a run is resumed
 *     page      HTML at /metrics/listen, which follows the run by a stream of events; or of `coalesced page`
 *     metrics   the status as numbers for Prometheus (openmetrics.h)
 *     document  an answer of the HTTP server: page, metrics, status or event (http/http.h, run_history.h)
 *     listener  the HTTP server's address and plug-in (listener.h)
 *
 * The supervisor paints the picture (daemon/supervise/run_view.c). Pure; the supervisor's only thread. */
#ifndef DAEMON_WATCH_RUN_STATUS_H
#define DAEMON_WATCH_RUN_STATUS_H

#include "daemon/log/progress.h"
#include "kernels/base/monotime.h"
#include "worker/control.h"
#include "worker/job/job.h"

#include <stdio.h>
#include <sys/types.h>

enum {
    RUN_STALENESS_BUCKETS = 12, /* 0, 1, 2 … 10 versions; the last: more */
    RUN_ROUND_BUCKETS = 15,
};

struct run_totals {
    uint64_t episodes, environment_steps;        /* kind reinforce */
    uint64_t updates, samples, late;             /* the other kinds; late: contributions dropped */
    uint64_t launches, launched_rows, rows_most; /* rows_most: of one launch */
    uint64_t batches[CONTROL_BATCH_BUCKETS];     /* launches by rows, as struct control_episode has them */
    uint64_t waits[CONTROL_WAIT_BUCKETS];        /* requests by their wait for the launch */
    double wait_s;                               /* the sum of these waits */
    uint64_t rounds, round_waits[RUN_ROUND_BUCKETS]; /* of parameter servers: from a round's first
                                                        contribution to its last */
    double round_wait_s;
    uint64_t staleness[RUN_STALENESS_BUCKETS]; /* contributions by the versions since their model */
    uint64_t staleness_sum;
    double learn_s;

    struct monotime at; /* rates: over the last second or more before this time */
    uint64_t before;    /* steps or samples until then */
    double per_s;       /* steps of environments, samples or tokens; 0: not known yet */

    bool has_episode, has_update, has_epoch, has_evaluation;
    struct control_episode episode; /* the newest of each; without an episode's metrics */
    struct control_update update;
    struct control_epoch epoch; /* `evaluated` 0: none was evaluated so far; else the newest that was */
    struct control_evaluation evaluation; /* the newest; most episodes have none */
};

/* Takes an episode, an update or an epoch. */
void run_totals_add(struct run_totals *totals, const struct control_message *record, struct monotime now);

/* Counts by bucket: in bucket i what was above limit(i - 1) and at most limit(i). The last one has no limit.
 */
struct run_histogram {
    const char *member, *metric, *unit, *help; /* its names in the status and in the metrics */
    const uint64_t *counts;                    /* (buckets), in the totals */
    int buckets;
    double (*limit)(int bucket);
    double sum;
};

/* Rows and waits of an agent's launches, then waits and staleness of a parameter server's rounds. */
enum { RUN_HISTOGRAMS = 4, RUN_FIRST_ROUND_HISTOGRAM = 2 };
void run_histograms(struct run_histogram histograms[RUN_HISTOGRAMS], const struct run_totals *totals);

/* Writes `text` as a JSON string. */
void run_status_write_string(FILE *out, const char *text);

struct worker_status {
    uint16_t worker;
    const char *role, *state;
    int64_t pid; /* 0: not known, on another host */
    uint16_t host;
    const char *host_name; /* "": the leader's */
    uint32_t incarnation;
    uint32_t restarts; /* starts of this worker after its first one */
    bool has_use;      /* false: no beat has come; work_per_s, cores and `use` are not known */
    double work_per_s, cores;
    double staleness; /* of its newest contribution, in versions; NaN: none, or not of this role */
    double wait_s;    /* agent: a request's wait, the median; pserver: the round's; NaN: not of this role */
    struct control_beat use;
};

struct run_status {
    const char *path; /* of the run directory, absolute */
    const struct job *job;
    const char *state; /* "starting", "training", "stopping", "waiting for hosts", "ending" */
    pid_t pid;
    double started_unix_s, up_s;
    uint32_t generation;
    uint64_t update;         /* the newest episode or update, also of an earlier process */
    double running_reward;   /* kind reinforce */
    uint64_t checkpoint;     /* the newest; 0: there is none */
    double checkpoint_age_s; /* NaN: there is none */
    const struct run_totals *totals;
    const struct progress *progress;
    uint32_t worker_count;
    struct worker_status *workers; /* (worker_count) */
};

/* One JSON object, ended by a newline. `workers` is the list of the workers. The caller frees the text. NULL:
 * no memory. The README of a status's members is coalesced(1), STATUS. */
char *run_status_json(const struct run_status *status);

#endif
