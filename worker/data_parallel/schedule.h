/* The schedule of a parameter server's job: ends of epochs, evaluations, the last update, the learning rate.
 * Pure functions of the update's number, so that a resumed run continues as if it had never stopped. */
#ifndef WORKER_DATA_PARALLEL_SCHEDULE_H
#define WORKER_DATA_PARALLEL_SCHEDULE_H

#include "worker/data/dataset.h"
#include "worker/job/job.h"

struct schedule {
    uint64_t epoch_updates;    /* updates of an epoch; 0: the data has none */
    uint64_t updates;          /* of the job: the first of its limits */
    uint64_t evaluation_every; /* in updates; 0: never */
    double lr;
    int lr_schedule; /* enum job_schedule */
};

/* An epoch is floor(samples / (trainers * batch)) updates. The remaining samples are left out: other samples
 * in each epoch, since each epoch is shuffled anew. With `async` an epoch has `trainers` times as many
 * updates, each of one batch. Data without epochs: synthetic, and that of a class without a number of
 * samples. STATUS_INVALID: fewer samples than one update takes; or a limit in epochs alone for data without
 * epochs. */
enum status schedule_of(struct schedule *schedule, const struct job *job, const struct dataset_info *info,
                        struct error *error);

/* The learning rate of update `update` (from 1). constant: lr; linear: lr (1 - (update - 1) / updates). */
double schedule_lr(const struct schedule *schedule, uint64_t update);

/* Whether `update` ends an epoch, and whether an evaluation is due after it. The job's last update ends the
 * running epoch, whole or not, and is evaluated if any is. */
bool schedule_ends_epoch(const struct schedule *schedule, uint64_t update);
bool schedule_evaluates(const struct schedule *schedule, uint64_t update);

#endif
