/* `coalesced evaluate`: prints how well a model of a checkpoint does. The command's process; its own thread
 * and the math library's. */
#include "daemon/commands/commands.h"
#include "daemon/commands/job_files.h"
#include "daemon/log/runlog.h"
#include "worker/data_parallel/evaluation.h"
#include "worker/model_parallel/language.h"
#include "worker/reinforce/evaluator.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

static enum status evaluate_images(const struct arguments *arguments, const struct job *job,
                                   struct error *error)
{
    struct evaluation sums;
    enum status status = evaluation_run(&sums, arguments->checkpoint, job, error);
    if (status != STATUS_OK)
        return status;
    double samples = (double)sums.samples;
    printf("Accuracy: %.2f %% (%" PRIu64 " of %" PRIu64 ")\tLoss: %.4f\n",
           100 * (double)sums.correct / samples, sums.correct, sums.samples, sums.loss_sum / samples);
    return STATUS_OK;
}

static enum status evaluate_text(const struct arguments *arguments, const struct job *job,
                                 struct error *error)
{
    uint64_t tokens = 0;
    double loss = 0;
    enum status status = job_files_check_folder(arguments->checkpoint, error);
    if (status == STATUS_OK)
        status = language_evaluate(job, arguments->checkpoint, &loss, &tokens, error);
    if (status == STATUS_OK)
        printf("Perplexity: %.2f (%" PRIu64 " tokens)\tLoss: %.4f\n", exp(loss), tokens, loss);
    return status;
}

static enum status evaluate_policy(const struct arguments *arguments, const struct job *job,
                                   struct error *error)
{
    const uint32_t episodes = arguments->episodes > 0 ? arguments->episodes : 100;
    struct evaluation_summary found;
    char metrics[EPISODE_MEANS_BYTES];
    const enum status status = policy_evaluate(&found, arguments->checkpoint, job, episodes, error);
    if (status != STATUS_OK)
        return status;
    episode_means_text(metrics, &found.metrics);
    printf("Mean reward: %.2f\tStandard deviation: %.2f\tMinimum: %.2f\tMaximum: %.2f%s\t(%" PRIu32
           " episodes)\n",
           found.mean, found.deviation, found.least, found.most, metrics, episodes);
    return STATUS_OK;
}

enum status evaluate(const struct arguments *arguments, struct job *job, struct error *error)
{
    job_resolve(job);
    if (job->kind == JOB_REINFORCE)
        return evaluate_policy(arguments, job, error);
    return job->kind == JOB_MODEL_PARALLEL ? evaluate_text(arguments, job, error)
                                           : evaluate_images(arguments, job, error);
}
