/* Computes how many updates and epochs a job has, from the job file and the size of its data. */
#include "worker/data_parallel/schedule.h"

static uint64_t schedule_product(uint64_t a, uint64_t b)
{
    uint64_t result;
    return __builtin_mul_overflow(a, b, &result) ? UINT64_MAX : result;
}

static bool schedule_has_epochs(const struct job *job, const struct dataset_info *info)
{
    return job->data.kind == JOB_DATA_CLASS ? info->train > 0 : job->data.kind != JOB_DATA_SYNTHETIC;
}

enum status schedule_of(struct schedule *schedule, const struct job *job, const struct dataset_info *info,
                        struct error *error)
{
    const uint64_t samples = (uint64_t)job->trainers.count * job->trainers.batch;
    *schedule = (struct schedule){.lr = job->optimizer.lr, .lr_schedule = job->optimizer.schedule};
    if (schedule_has_epochs(job, info)) {
        schedule->epoch_updates = info->train / samples;
        if (schedule->epoch_updates == 0)
            return error_set(error, STATUS_INVALID,
                             "%llu training samples: one step of %u trainers with batches of %u takes %llu",
                             (unsigned long long)info->train, job->trainers.count, job->trainers.batch,
                             (unsigned long long)samples);
        if (job->server.round.name == JOB_ROUND_ASYNC)
            schedule->epoch_updates *= job->trainers.count;
        if (job->evaluation.has_every && info->evaluation > 0)
            schedule->evaluation_every = schedule_product(job->evaluation.every, schedule->epoch_updates);
    }
    schedule->updates = job_updates(job, schedule->epoch_updates);
    if (schedule->updates == UINT64_MAX)
        return error_set(error, STATUS_INVALID, "%s data has no epochs: expected a limit in /stop/updates%s",
                         job->data.kind == JOB_DATA_CLASS ? "the class's" : "synthetic",
                         job->data.kind == JOB_DATA_CLASS ? ", or a train_size of the class" : "");
    return STATUS_OK;
}

double schedule_lr(const struct schedule *schedule, uint64_t update)
{
    if (schedule->lr_schedule == JOB_SCHEDULE_CONSTANT)
        return schedule->lr;
    return schedule->lr * (1 - (double)(update - 1) / (double)schedule->updates);
}

bool schedule_ends_epoch(const struct schedule *schedule, uint64_t update)
{
    return update > 0 && schedule->epoch_updates > 0 &&
           (update % schedule->epoch_updates == 0 || update == schedule->updates);
}

bool schedule_evaluates(const struct schedule *schedule, uint64_t update)
{
    return update > 0 && schedule->evaluation_every > 0 &&
           (update % schedule->evaluation_every == 0 || update == schedule->updates);
}
