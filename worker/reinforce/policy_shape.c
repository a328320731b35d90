/* Translates a job's keys into the policy's configuration. */
#include "worker/reinforce/policy_shape.h"

#include "worker/device.h"

_Static_assert((int)JOB_WIDTHS_MAX == (int)POLICY_LAYERS_MAX, "every list of widths is a policy's");

static struct adam_settings optimizer_of(const struct job *job)
{
    if (job->algorithm.use_rms_prop)
        return (struct adam_settings){.lr = job->optimizer.lr,
                                      .beta2 = 0.99, /* torch.optim.RMSprop's alpha */
                                      .epsilon = job->algorithm.rms_prop_eps,
                                      .uncorrected = true};
    return (struct adam_settings){.lr = job->optimizer.lr,
                                  .beta1 = job->optimizer.beta1,
                                  .beta2 = job->optimizer.beta2,
                                  .epsilon = job->optimizer.epsilon};
}

/* Whether the value shares the policy's hidden layers. The job's null is Stable-Baselines3's choice: its
 * CnnPolicy shares them, its MlpPolicy does not. */
static bool shares_value(const struct job *job)
{
    if (!job_is_actor_critic(job))
        return false;
    return job->policy.has_value_network ? job->policy.value_network == JOB_VALUE_NETWORK_SHARED
                                         : job->policy.network == JOB_NETWORK_CNN;
}

struct policy_config policy_config_of(const struct job *job, const struct environment_spec *spec)
{
    static const enum policy_network_kind networks[] = {
        [JOB_NETWORK_MLP] = POLICY_MLP, [JOB_NETWORK_CNN] = POLICY_CNN};
    static const enum policy_activation activations[] = {
        [JOB_ACTIVATION_RELU] = POLICY_RELU, [JOB_ACTIVATION_TANH] = POLICY_TANH};
    struct policy_config config = {
        .observation = spec->observation,
        .action = spec->action,
        .has_mask = spec->has_mask != 0,
        .network = networks[job->policy.network],
        .layers = job->policy.hidden.count,
        .activation = activations[job->policy.activation],
        .seed = job->seed,
        .adam = optimizer_of(job),
        .has_value = job_is_actor_critic(job),
        .shared_value = shares_value(job),
        .orthogonal = job->policy.ortho_init,
        .log_std_init = job->policy.log_std_init,
        .state_dependent = job->algorithm.use_sde,
        .noise_steps = job->algorithm.has_sde_sample_freq ? job->algorithm.sde_sample_freq : 0,
        .normalizes = job->normalize.observations,
        .minibatch_rows = job->algorithm.batch_size,
        .clip = job->normalize.clip_observations};
    for (uint32_t l = 0; l < config.layers; l++)
        config.width[l] = job->policy.hidden.value[l];
    if (job->policy.has_dropout)
        config.dropout = job->policy.dropout;
    else if (policy_form(&config) == POLICY_FORM_TUTORIAL)
        config.dropout = POLICY_SHAPE_DROPOUT;
    return config;
}

enum status policy_open_backend(struct backend **out, const struct policy_config *config,
                                const struct job *job, struct error *error)
{
    struct job resolved = *job;
    *out = NULL;
    job_resolve(&resolved);
    switch (policy_device(config)) {
    case POLICY_ON_EITHER:
        return device_open_gpu(out, job, error);
    case POLICY_ON_BACKEND:
        return device_open(out, &resolved, resolved.policy.threads, true, error);
    default:
        return policy_check(config, job->device == JOB_DEVICE_GPU, error);
    }
}
