/* Translates a job's keys into the configurations of its environments and its policy, and opens them. Runs in
 * the process that steps the environments, or on a command's thread. */
#include "worker/reinforce/job_open.h"

#include "worker/device.h"
#include "worker/environment/environment_load.h"
#include "worker/environment/environment_spec.h"
#include "worker/environment/python_environments.h"
#include "worker/model/onnx.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>

_Static_assert((int)JOB_WIDTHS_MAX == (int)POLICY_LAYERS_MAX, "every list of widths is a policy's");

/* Opens environments in Python in a child. */
static enum status open_python(struct environments **out, const struct job *job, uint32_t count,
                               int rendering, struct error *error)
{
    struct environments_config config = {.plugin = &python_environments_plugin,
                                         .failure = python_environments_failure,
                                         .seed = job->seed,
                                         .count = count,
                                         .frames = job->environment.frames};
    struct python_environments_config python = {
        .interpreter = job->environment.python, .count = count, .rendering = rendering};
    size_t bytes;
    char *text = job_format(job, &bytes);
    if (text == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for the job");
    python.job = text;
    const enum status status =
        python_environments_open(&config.opened, &config.spec, &config.name, &python, error);
    free(text);
    return status == STATUS_OK ? environments_open(out, &config, error) : status;
}

enum status job_command_environments_open(struct environments **out, const struct job *job, uint32_t count,
                                          int rendering, struct error *error)
{
    *out = NULL;
    return job_has_python_environments(job) ? open_python(out, job, count, rendering, error)
                                            : job_environments_open(out, job, 0, count, error);
}

enum status job_environments_open(struct environments **out, const struct job *job, uint32_t first,
                                  uint32_t count, struct error *error)
{
    const bool is_built_in = !job->environment.has_plugin;
    const char *from = is_built_in ? job->environment.name : job->environment.plugin;
    const struct environment_plugin *plugin;
    *out = NULL;
    assert(!job_has_python_environments(job));
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

enum status job_read_environment(struct environment_description *out, struct path checkpoint,
                                 struct error *error)
{
    char *text;
    size_t bytes;
    struct error why;
    *out = (struct environment_description){0};
    enum status status = checkpoint_read(checkpoint, CHECKPOINT_DESCRIPTION, &text, &bytes, error);
    if (status != STATUS_OK)
        return status;
    if (text == NULL)
        return error_set(error, STATUS_NOT_FOUND, "%.300s: it has no environment.json", checkpoint.text);
    status = environment_description_read(out, text, bytes, &why);
    free(text);
    return status == STATUS_OK ? status : error_set(error, status, "%.300s: %s", checkpoint.text, why.text);
}

enum status job_check_environment(struct path checkpoint, const struct environment_spec *spec,
                                  struct error *error)
{
    struct environment_description was;
    struct error why;
    enum status status = job_read_environment(&was, checkpoint, error);
    if (status == STATUS_OK && environment_spec_compare(&was.spec, spec, &why) != STATUS_OK)
        status = error_set(error, STATUS_INVALID, "%.300s: the environment has changed since: %s",
                           checkpoint.text, why.text);
    environment_description_fini(&was);
    return status == STATUS_NOT_FOUND ? STATUS_OK : status;
}

/* ---- the policy ---- */

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

/* By sb3-contrib's keys; where the value shares the hidden layers by the job's own word, as CleanRL has it.
 */
static enum policy_critic critic_of(const struct job *job)
{
    if (job->policy.has_value_network && job->policy.value_network == JOB_VALUE_NETWORK_SHARED)
        return POLICY_CRITIC_SHARED;
    if (job->policy.enable_critic_lstm)
        return POLICY_CRITIC_OWN;
    return job->policy.shared_lstm ? POLICY_CRITIC_DETACHED : POLICY_CRITIC_LINEAR;
}

static void describe_memory(struct policy_config *config, const struct job *job)
{
    if (!job->policy.has_recurrent)
        return;
    config->memory = job->policy.recurrent == JOB_RECURRENT_LSTM ? POLICY_LSTM : POLICY_GRU;
    config->memory_units = job->policy.lstm_hidden_size;
    config->memory_layers = job->policy.n_lstm_layers;
    config->critic = critic_of(job);
}

static void copy_widths(const struct job_widths *from, uint32_t *count, uint32_t width[])
{
    *count = from->count;
    for (uint32_t l = 0; l < from->count; l++)
        width[l] = from->value[l];
}

/* Of a policy that learns from a replay buffer. */
static void describe_q(struct policy_config *config, const struct job *job)
{
    static const enum policy_learning learning[] = {
        [JOB_ALGORITHM_DQN] = POLICY_DQN, [JOB_ALGORITHM_SAC] = POLICY_SAC, [JOB_ALGORITHM_TD3] = POLICY_TD3};
    static const enum policy_noise noises[] = {
        [JOB_NOISE_NORMAL] = POLICY_NORMAL_NOISE, [JOB_NOISE_ORNSTEIN_UHLENBECK] = POLICY_ORNSTEIN_UHLENBECK};
    if (!job_is_off_policy(job))
        return;
    const double components = policy_components(config);
    config->learning = learning[job->algorithm.name];
    config->q = (struct policy_q_config){
        .gamma = job->returns.gamma,
        .tau = job->replay.tau,
        .batch_rows = job->algorithm.batch_size,
        .double_q = job->replay.double_q,
        .dueling = job->policy.dueling,
        .max_norm = job->algorithm.has_max_grad_norm ? job->algorithm.max_grad_norm : (double)INFINITY,
        .critics = job->replay.n_critics,
        .noise = job->replay.has_noise_type ? noises[job->replay.noise_type] : POLICY_NO_NOISE,
        .noise_std = job->replay.noise_std,
        .learns_entropy = job->replay.ent_coef.automatic,
        .entropy_coefficient = job->replay.ent_coef.number,
        .target_entropy =
            job->replay.target_entropy.automatic ? -components : job->replay.target_entropy.number,
        .target_interval = job->replay.target_update_interval,
        .expln = job->replay.use_expln,
        .policy_delay = job->replay.policy_delay,
        .target_noise = job->replay.target_policy_noise,
        .target_noise_clip = job->replay.target_noise_clip};
    /* The function of gSDE is drawn anew with each training, or as the key says. */
    if (!job->algorithm.has_sde_sample_freq && !job->replay.train_freq.episodes)
        config->noise_steps = job->replay.train_freq.count;
}

struct policy_config policy_config_of(const struct job *job, const struct environment_spec *spec)
{
    static const enum policy_network_kind networks[] = {
        [JOB_NETWORK_MLP] = POLICY_MLP, [JOB_NETWORK_CNN] = POLICY_CNN};
    static const enum policy_activation activations[] = {
        [JOB_ACTIVATION_RELU] = POLICY_RELU, [JOB_ACTIVATION_TANH] = POLICY_TANH};
    struct policy_config config = {
        .observation = spec->observation,
        .part_count = spec->part_count,
        .parts = spec->parts,
        .action = spec->action,
        .has_mask = spec->has_mask != 0,
        .network = networks[job->policy.network],
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
    copy_widths(&job->policy.hidden[0], &config.layers, config.width);
    if (config.has_value)
        copy_widths(&job->policy.hidden[1], &config.value_layers, config.value_width);
    describe_memory(&config, job);
    describe_q(&config, job);
    copy_widths(&job->policy.hidden[1], &config.q.critic_layers, config.q.critic_width);
    if (job->policy.has_dropout)
        config.dropout = job->policy.dropout;
    else if (policy_form(&config) == POLICY_FORM_TUTORIAL)
        config.dropout = POLICY_DROPOUT;
    return config;
}

enum status policy_open_backend(struct backend **out, const struct policy_config *config,
                                const struct job *job, struct error *error)
{
    const enum policy_device device = policy_device(config);
    struct job resolved = *job;
    *out = NULL;
    const bool on_backend = device == POLICY_ON_BACKEND;
    if (config->learning != POLICY_ON_ROLLOUTS && !on_backend && job->device == JOB_DEVICE_GPU)
        return error_set(error, STATUS_INVALID,
                         "/device: expected \"auto\" or \"cpu\": dqn, sac and td3 learn on the CPU, but for "
                         "dqn with the network \"cnn\"");
    if (on_backend && job_is_off_policy(job) && job->algorithm.overlap > 0)
        return error_set(
            error, STATUS_INVALID,
            "/algorithm/overlap: expected 0, got %u: dqn's network \"cnn\" acts and learns on one "
            "backend",
            job->algorithm.overlap);
    job_resolve(&resolved);
    if (on_backend)
        return device_open(out, &resolved, resolved.policy.threads, true, error);
    return device == POLICY_ON_CPU && job->device == JOB_DEVICE_AUTO ? STATUS_OK
                                                                     : device_open_gpu(out, job, error);
}

enum status policy_values_load(struct policy_values *values, const struct policy_config *config,
                               const char *checkpoint, struct error *error)
{
    *values = (struct policy_values){0};
    const enum status status = policy_values_open(values, config, error);
    const struct checkpoint_values of = {.params = values->params};
    return status == STATUS_OK ? checkpoint_load_model(path_of(checkpoint), &of, error) : status;
}

enum status policy_export(const char *path, const char *checkpoint, const struct job *job,
                          const struct environment_spec *spec, struct error *error)
{
    struct policy_values values;
    const struct policy_config config = policy_config_of(job, spec);
    enum status status = policy_check(&config, error);
    if (status != STATUS_OK)
        return status;
    status = policy_values_load(&values, &config, checkpoint, error);
    if (status == STATUS_OK)
        status = onnx_write_policy(path, &config, values.params, error);
    policy_values_close(&values);
    return status;
}
