/* The command `coalesced plot`, and the figure of a sweep: curves of several runs, as median and band over
 * the seeds of each job. The command's process; one thread; blocks on the runs' files and on gnuplot. */
#ifndef DAEMON_COMMANDS_PLOT_H
#define DAEMON_COMMANDS_PLOT_H

#include "daemon/commands/arguments.h"
#include "daemon/commands/curve.h"
#include "kernels/base/status.h"
#include "worker/job/job.h"

#include <stddef.h>

struct plot_request {
    const char *const *runs; /* (count) run directories, at least one */
    size_t count;
    const char *output;     /* a figure's path (daemon/commands/figure.h) */
    struct curve_keys keys; /* NULL: chosen by the runs' jobs */
};

struct plot_summary {
    size_t groups, runs; /* those in the figure */
};

/* Draws a figure. Where no keys are given, they are running_reward over the episodes of reinforce,
 * ep_rew_mean over the steps of ppo and a2c, running_reward over the steps of both together, and loss over
 * the updates of the other kinds. A run that is named twice counts once, with a warning. A run without a
 * point is left out, with a warning; another warning names lines that are none of a log. Errors: those of
 * resume_read_job, curve_read and figure_write; STATUS_NOT_FOUND: no run has a point, or a directory is a
 * sweep's; STATUS_INVALID: the kinds of the jobs differ and no key `y` is given, or the numbers `x` of a run
 * decrease where a median is drawn. */
enum status plot_runs(struct plot_summary *summary, const struct plot_request *request, struct error *error);

/* The number that plot and sweep show where no key is given, of a run of `job` beside runs of which they show
 * `others` (NULL: there are none): running_reward, of ppo and a2c ep_rew_mean, of both together
 * running_reward; loss of the other kinds, and where another kind is beside one of these. */
const char *plot_default_y(const char *others, const struct job *job);

/* Draws arguments->runs into arguments->output and prints its name. */
enum status plot(const struct arguments *arguments, struct job *job, struct error *error);

#endif
