/* When things are due in a parameter server's job: epochs, evaluations, the end, the learning rate. Pure
 * functions of the update's number, so that a resumed run continues as if it had never stopped. */
#ifndef WORKER_SERVER_SCHEDULE_H
#define WORKER_SERVER_SCHEDULE_H

#include "worker/data/dataset.h"
#include "worker/job/job.h"

struct schedule {
    uint64_t epoch_updates;    /* updates of an epoch; 0: the data has none (synthetic) */
    uint64_t updates;          /* of the job: the first of its limits */
    uint64_t evaluation_every; /* in updates; 0: never */
    double lr;
    int lr_schedule; /* enum job_schedule */
};

/* An epoch is floor(samples / (trainers * batch)) updates, whose remainder of samples is left out (another
 * one each epoch, as each is shuffled anew); `async` makes `trainers` times as many, each of one batch.
 * STATUS_INVALID: fewer samples than one update takes; epochs as the only limit of data that has none. */
enum status schedule_of(struct schedule *schedule, const struct job *job, const struct dataset_info *info,
                        struct error *error);

/* Of update `update` (from 1). constant: lr; linear: lr (1 - (update - 1) / updates). */
double schedule_lr(const struct schedule *schedule, uint64_t update);

/* Whether `update` ends an epoch, and whether an evaluation is due after it. The job's last update ends the
 * running epoch, whole or not, and is evaluated if any is. */
bool schedule_ends_epoch(const struct schedule *schedule, uint64_t update);
bool schedule_evaluates(const struct schedule *schedule, uint64_t update);

#endif
