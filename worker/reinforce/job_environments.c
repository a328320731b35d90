/* Loads the plug-in that the job's keys name, and opens its environments. Runs in the process that steps
 * them. */
#include "worker/reinforce/job_environments.h"

#include "worker/environment/environment_frames.h"
#include "worker/environment/environment_load.h"
#include "worker/environment/environment_spec.h"

_Static_assert((int)JOB_FRAMES_MAX == (int)ENVIRONMENT_FRAMES_MAX, "a job's frames can be stacked");

enum status job_environments_open(struct environments **out, const struct job *job, uint32_t first,
                                  uint32_t count, struct error *error)
{
    const bool is_built_in = !job->environment.has_plugin;
    const char *from = is_built_in ? job->environment.name : job->environment.plugin;
    const struct environment_plugin *plugin;
    *out = NULL;
    if (job_has_python_environments(job))
        return error_set(error, STATUS_UNAVAILABLE,
                         "%.100s is an environment in Python, which only a job's observers can step",
                         job->environment.has_gymnasium ? job->environment.gymnasium
                                                        : job->environment.class);
    enum status status = environment_load(&plugin, from, error);
    if (status != STATUS_OK)
        return status;
    const struct environments_config config = {.plugin = plugin,
                                               .name = job->environment.has_name ? job->environment.name
                                                                                 : plugin->names[0],
                                               .options = job->environment.options,
                                               .seed = job->seed,
                                               .first = first,
                                               .count = count,
                                               .frames = job->environment.frames};
    if (!environment_has_name(plugin, config.name))
        return error_set(error, STATUS_NOT_FOUND, "%.300s has no environment %s: its first one is %.100s",
                         from, config.name, plugin->names[0]);
    return environments_open(out, &config, error);
}
