/* The policy that a job's /policy describes for an environment, and what it computes on. */
#ifndef WORKER_REINFORCE_POLICY_SHAPE_H
#define WORKER_REINFORCE_POLICY_SHAPE_H

#include "worker/environment/environment.h"
#include "worker/job/job.h"
#include "worker/model/policy_config.h"

/* The dropout of the policy that can have it, where the job names none: the tutorial's. */
#define POLICY_SHAPE_DROPOUT 0.6

/* The spec's arrays outlive the configuration. The members for a backend stay 0. */
struct policy_config policy_config_of(const struct job *job, const struct environment_spec *spec);

struct backend;

/* Opens what the policy computes on, by the job's /device; *out is NULL where that is the CPU without a
 * backend. Blocks while a plug-in is loaded. STATUS_INVALID: the job wants a GPU, and the policy cannot use
 * one. Other errors as device_open. */
enum status policy_open_backend(struct backend **out, const struct policy_config *config,
                                const struct job *job, struct error *error);

#endif
