/* Opens what a job of the kind `reinforce` describes: its environments, and its policy. */
#ifndef WORKER_REINFORCE_JOB_OPEN_H
#define WORKER_REINFORCE_JOB_OPEN_H

#include "worker/checkpoint/checkpoint.h"
#include "worker/environment/environment_description.h"
#include "worker/environment/environments.h"
#include "worker/job/job.h"
#include "worker/model/policy.h"

/* The dropout of the policy that can have it, where the job names none: the tutorial's. */
#define POLICY_DROPOUT 0.6

/* Loads the job's plug-in, if it names one, and opens `count` of its environments. The first one has the
 * job-wide number `first`. `job` outlives *out. They are not in Python. Errors as
 * environment_load and environments_open. */
enum status job_environments_open(struct environments **out, const struct job *job, uint32_t first,
                                  uint32_t count, struct error *error);

/* Opens the job's environments from number 0 on for a command, also those in Python. `rendering` is the kind
 * of picture that the command will ask for, or 0. Errors as job_environments_open and
 * python_environments_open. */
enum status job_command_environments_open(struct environments **out, const struct job *job, uint32_t count,
                                          int rendering, struct error *error);

/* Reads the description of the environment that the policy of a checkpoint has learned with.
 * environment_description_fini follows after either result. STATUS_NOT_FOUND: the checkpoint has none, or is
 * no checkpoint's folder; errors as checkpoint_read and environment_description_read. */
enum status job_read_environment(struct environment_description *out, struct path checkpoint,
                                 struct error *error);

/* Whether the policy of a checkpoint fits environments of `spec` by its description, if it has one.
 * STATUS_INVALID: it does not (environment_spec_compare). */
enum status job_check_environment(struct path checkpoint, const struct environment_spec *spec,
                                  struct error *error);

/* The policy that /policy describes for environments of this spec, whose arrays outlive the configuration.
 * The members for a backend stay 0. */
struct policy_config policy_config_of(const struct job *job, const struct environment_spec *spec);

/* Opens what the policy computes on, by the job's /device; *out is NULL where that is the CPU without a
 * backend. Blocks while a plug-in is loaded. Errors as device_open. */
enum status policy_open_backend(struct backend **out, const struct policy_config *config,
                                const struct job *job, struct error *error);

/* Opens *values with the parameters of `checkpoint`: a checkpoint's folder, or a safetensors file with the
 * names of the policy's parameters. Errors as policy_values_open and checkpoint_load_model.
 * policy_values_close also follows a failure. */
enum status policy_values_load(struct policy_values *values, const struct policy_config *config,
                               const char *checkpoint, struct error *error);

/* The command `export`: writes the policy of `checkpoint`, for environments of this spec, to the ONNX file
 * `path` (worker/model/onnx.h). Errors as policy_check, policy_values_load and onnx_write_policy. */
enum status policy_export(const char *path, const char *checkpoint, const struct job *job,
                          const struct environment_spec *spec, struct error *error);

#endif
