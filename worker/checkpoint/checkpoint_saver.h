/* Takes checkpoints beside a running loop: one state machine for every job kind, and for every server of a
 * job.
 *
 * In the process that publishes (the only server, server 0, a model-parallel job's lead):
 *
 *     IDLE -> MAKING -> GATHERING -> WRITING -> PUBLISHING -> IDLE
 *
 *     MAKING      thread   checkpoint_begin makes N.tmp
 *     GATHERING   loop     config.gather, until it no longer answers STATUS_AGAIN; and until the supervisor
 *                          has told the place in the logs
 *     WRITING     thread   checkpoint_write
 *     PUBLISHING  thread   checkpoint_publish
 *
 * In another server, which only writes its shard into N.tmp:
 *
 *     IDLE -> GATHERING -> WRITING -> IDLE          WRITING: checkpoint_write_shard
 *
 * A job kind calls checkpoint_saver_due at its own boundaries, passes the values as struct checkpoint_saving,
 * and calls checkpoint_saver_advance in every turn of its loop. A process may have several savers with
 * different run_dirs. The struct is embedded; its members are for this module alone, but for those marked
 * `read`. */
#ifndef WORKER_CHECKPOINT_CHECKPOINT_SAVER_H
#define WORKER_CHECKPOINT_CHECKPOINT_SAVER_H

#include "kernels/base/monotime.h"
#include "worker/background.h"
#include "worker/checkpoint/checkpoint.h"

struct checkpoint_saver_config {
    struct path run_dir;   /* its text outlives the saver */
    const struct job *job; /* its group `checkpoint` */
    struct rpc *rpc;       /* a turn of this rpc ends when the thread is done */
    bool publishes;        /* false: writes a shard alone */
    uint64_t saved;        /* the update with which the run begins */
    bool again;            /* the run goes on after a break: see checkpoint_saver_due */

    /* Collects what other processes hold, or waits for values that are not here yet. STATUS_AGAIN: call again
     * after the next turn. NULL: everything is at hand at checkpoint_saver_begin. */
    enum status (*gather)(void *context, struct error *error);
    /* The thread, ahead of the checkpoint's files: puts on the disk what the checkpoint needs beside them.
     * NULL: nothing. */
    enum status (*flush)(void *context, struct error *error);
    void *context;

    /* The loop's thread: a checkpoint that was asked for, of this place, is visible. No record was reported
     * since it began: checkpoint_saver_holds, or a loop that waits for the saver in any case (a pserver). */
    void (*published)(const struct run_place *place);
};

/* One checkpoint. */
struct checkpoint_saving {
    struct checkpoint_counters counters; /* counters.update names it */
    struct checkpoint_values values;     /* must stay unchanged while the saver is WRITING */
    const struct checkpoint_extra *extra;
    struct run_place place; /* in the logs; the saver sets it */
    bool asked; /* by the supervisor: the job reports nothing before it is visible (checkpoint_saver_holds) */
    bool competes; /* with /checkpoint/best: it becomes the best one if its score is better */
};

enum checkpoint_saver_state {
    CHECKPOINT_IDLE,
    CHECKPOINT_MAKING,
    CHECKPOINT_GATHERING,
    CHECKPOINT_WRITING,
    CHECKPOINT_PUBLISHING,
};

struct checkpoint_saver {
    struct checkpoint_saver_config config;
    enum checkpoint_saver_state state; /* read */
    uint64_t saved;                    /* the newest update that was published, or began the run */
    struct monotime last;              /* of that */
    double soon_s;                     /* after a break: the time to the next checkpoint; else infinite */
    struct checkpoint_score best;      /* of RUN/checkpoints/best; the thread's while it publishes */
    struct checkpoint_saving saving;   /* read; the thread's from MAKING on */
    struct background thread;
};

/* Reads the best checkpoint's score where the job keeps that one. Afterwards, and after a failure,
 * checkpoint_saver_close. Errors also of checkpoint_best_score. */
enum status checkpoint_saver_open(struct checkpoint_saver *saver,
                                  const struct checkpoint_saver_config *config, struct error *error);

/* Waits for the thread and removes an unfinished folder. Does nothing to a saver that is all zero. */
void checkpoint_saver_close(struct checkpoint_saver *saver);

/* Whether `update` must be saved: it is the run's last one; a multiple of checkpoint.every; or the newest
 * checkpoint is checkpoint.every_s old, and no other is being taken. Never twice. A run that goes on after a
 * break saves sooner at first, after 0.25 s, 0.5 s, 1 s, up to 16 s: where workers die often, the next death
 * must not undo all that came after the last one. */
bool checkpoint_saver_due(const struct checkpoint_saver *saver, uint64_t update, bool last);

/* Whether a checkpoint of this score would become the best one. The saver must be idle. */
bool checkpoint_saver_improves(const struct checkpoint_saver *saver, const struct checkpoint_score *score);

/* Begins a checkpoint; the saver must be idle. */
void checkpoint_saver_begin(struct checkpoint_saver *saver, const struct checkpoint_saving *saving);

/* Continues the running checkpoint. `place`: its place in the logs; NULL: not known yet, or no matter, where
 * the saver does not publish. STATUS_AGAIN while the checkpoint is being taken, STATUS_OK when the saver is
 * idle. After a failure the saver is idle, the unfinished folder is removed, and the older checkpoints are
 * unchanged. */
enum status checkpoint_saver_advance(struct checkpoint_saver *saver, const struct run_place *place,
                                     struct error *error);

/* Whether a checkpoint that was asked for is being taken: no record may be reported meanwhile. */
bool checkpoint_saver_holds(const struct checkpoint_saver *saver);

/* Whether the thread is at work: closing would wait for it. */
bool checkpoint_saver_busy(const struct checkpoint_saver *saver);

#endif
