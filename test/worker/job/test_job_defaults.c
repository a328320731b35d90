/* What a job of each kind is where its file says no more. */
#include "test/worker/job/job_fixture.h"
#include "test/workplace.h"
#include "worker/job/job_table.h"

#include <math.h>
#include <stdlib.h>

START_TEST(defaults_of_reinforce)
{
    struct job job = parse_job(minimal_reinforce, NULL, 0);
    ck_assert_str_eq(job.name, "job");
    ck_assert_uint_eq(job.seed, 543);
    ck_assert_int_eq(job.device, JOB_DEVICE_AUTO);
    ck_assert(job.observers.count == 1 && job.observers.environments == 1);
    ck_assert(job.rollout.mode == JOB_ROLLOUT_STEPS && job.rollout.steps == 500);
    ck_assert(job.coalesce.mode == JOB_COALESCE_BARRIER);
    ck_assert(job.coalesce.max_batch == 64 && job.coalesce.max_delay_us == 0);
    ck_assert(job.policy.hidden[0].count == 1 && job.policy.hidden[0].value[0] == 128 &&
              !job.policy.has_dropout);
    ck_assert(job.returns.gamma == 1.0 && !job.returns.normalize);
    ck_assert_int_eq(job.loss.reduction, JOB_REDUCTION_SUM);
    ck_assert(job.optimizer.lr == 0.01 && job.optimizer.beta1 == 0.9 && job.optimizer.beta2 == 0.999);
    ck_assert(job.optimizer.epsilon == 1e-8);
    ck_assert(job.running_reward.of == JOB_OF_MEAN && job.running_reward.weight == 0.5);
    ck_assert(job.stop.has_episodes && job.stop.episodes == 10 && !job.stop.has_running_reward);
    ck_assert(job.log.every == 1 && job.supervise.hang_s == 10);
    ck_assert(job.optimizer.momentum == 0 && job.trainers.count == 0);
    ck_assert(!job.checkpoint.has_every && job.checkpoint.has_every_s && job.checkpoint.every_s == 2);
    ck_assert_uint_eq(job.checkpoint.keep, 3);
}
END_TEST

/* Those of Stable-Baselines3's PPO. */
START_TEST(defaults_of_ppo)
{
    struct job job = parse_job(minimal_ppo, NULL, 0);
    ck_assert(job.kind == JOB_REINFORCE && job_variant(&job) == JOB_VARIANT_PPO);
    ck_assert(job.rollout.steps == 2048 && job.algorithm.batch_size == 64 && job.algorithm.n_epochs == 10);
    ck_assert(job.returns.gamma == 0.99 && job.algorithm.gae_lambda == 0.95);
    ck_assert(job.algorithm.clip_range == 0.2 && !job.algorithm.has_clip_range_vf);
    ck_assert(job.algorithm.normalize_advantage && job.algorithm.ent_coef == 0 &&
              job.algorithm.vf_coef == 0.5);
    ck_assert(job.algorithm.has_max_grad_norm && job.algorithm.max_grad_norm == 0.5);
    ck_assert(!job.algorithm.has_target_kl && job.algorithm.bootstrap_truncated);
    ck_assert(job.optimizer.lr == 3e-4 && job.optimizer.epsilon == 1e-5 && job.optimizer.beta1 == 0.9);
    ck_assert(job.policy.hidden[0].count == 2 && job.policy.hidden[0].value[0] == 64 &&
              job.policy.ortho_init);
    ck_assert_int_eq(job.policy.activation, JOB_ACTIVATION_TANH);
    ck_assert(job.rollout.mode == JOB_ROLLOUT_STEPS && job.rollout.begin == JOB_BEGIN_CONTINUE);
    ck_assert(job.stop.steps == 1000000 && !job.stop.has_episodes && !job.stop.has_running_reward);
}
END_TEST

/* Those of Stable-Baselines3's A2C, and what makes PPO of it. */
START_TEST(defaults_of_a2c)
{
    struct job job = parse_job(minimal_a2c, NULL, 0);
    ck_assert(job.kind == JOB_REINFORCE && job_variant(&job) == JOB_VARIANT_A2C && job_is_actor_critic(&job));
    ck_assert(job.rollout.steps == 5 && job.returns.gamma == 0.99 && job.algorithm.gae_lambda == 1);
    ck_assert(job.optimizer.lr == 7e-4 && job.algorithm.use_rms_prop && job.algorithm.rms_prop_eps == 1e-5);
    ck_assert(!job.algorithm.normalize_advantage && job.algorithm.vf_coef == 0.5);
    ck_assert(job.algorithm.has_max_grad_norm && job.algorithm.max_grad_norm == 0.5);
    ck_assert(job.algorithm.n_epochs == 1 && job.algorithm.batch_size == JOB_ROLLOUT_ROWS_MAX);
    ck_assert(isinf(job.algorithm.clip_range) && !job.algorithm.has_clip_range_vf);
}
END_TEST

static int allocations_left;

static void *allocate_some(size_t bytes)
{
    return allocations_left-- > 0 ? malloc(bytes) : NULL;
}

START_TEST(defaults_without_memory)
{
    cJSON_Hooks hooks = {.malloc_fn = allocate_some, .free_fn = free};
    struct job job;
    int granted = 0;
    cJSON_InitHooks(&hooks);
    for (; granted < 10000; granted++) {
        allocations_left = granted;
        const enum status status = job_defaults(&job, JOB_KINDS_OF(JOB_VARIANT_PPO));
        if (status == STATUS_OK)
            break;
        ck_assert_int_eq(status, STATUS_NO_MEMORY);
    }
    ck_assert(granted > 10 && granted < 10000);
    ck_assert_str_eq(job.environment.options, "{}");
}
END_TEST

/* The tutorial's own job. */
START_TEST(defaults_of_a_parameter_server)
{
    struct job job = parse_job(minimal_server, NULL, 0);
    ck_assert_int_eq(job.kind, JOB_PARAMETER_SERVER);
    ck_assert(job.seed == 543 && job.device == JOB_DEVICE_AUTO && job.transport == JOB_TRANSPORT_SHARED);
    ck_assert(job.model.name == JOB_MODEL_RESNET50 && job.model.classes == 30 && job.model.width == 64);
    ck_assert(!job.init.has_path && job.init.path[0] == '\0');
    ck_assert(job.trainers.count == 5 && job.trainers.batch == 20 && !job.trainers.has_threads);
    ck_assert(job.server.count == 1 && job.server.round.name == JOB_ROUND_ALL);
    ck_assert_int_eq(job.loss.name, JOB_LOSS_MSE);
    ck_assert(job.optimizer.lr == 0.001 && job.optimizer.momentum == 0.9);
    ck_assert_int_eq(job.optimizer.schedule, JOB_SCHEDULE_CONSTANT);
    ck_assert(job.data.kind == JOB_DATA_SYNTHETIC && job.data.path[0] == '\0' && job.data.size == 64);
    ck_assert(job.data.fit == JOB_FIT_RESIZE && job.data.channels == 3);
    ck_assert(job.data.mean.count == 1 && job.data.mean.value[0] == 0);
    ck_assert(job.data.std.count == 1 && job.data.std.value[0] == 1);
    ck_assert(job.data.crop == 0 && !job.data.flip && !job.data.has_limit);
    ck_assert(job.evaluation.has_every && job.evaluation.every == 1 && job.evaluation.batch == 100);
    ck_assert(job.stop.has_updates && job.stop.updates == 6 && !job.stop.has_epochs);
    ck_assert(job.log.every == 1 && job.supervise.hang_s == 10);
    ck_assert(job.checkpoint.has_every && job.checkpoint.every == 100 && !job.checkpoint.has_every_s);
    ck_assert_uint_eq(job.checkpoint.keep, 3);
    ck_assert(job.observers.count == 0 && !job.stop.has_episodes && job.optimizer.beta1 == 0);
}
END_TEST

/* The tutorial's, with the loss that it should have. */
START_TEST(defaults_of_a_model_parallel)
{
    struct job job = parse_job(minimal_parallel, NULL, 0);
    ck_assert_int_eq(job.kind, JOB_MODEL_PARALLEL);
    ck_assert(job.seed == 543 && job.device == JOB_DEVICE_AUTO && job.transport == JOB_TRANSPORT_SHARED);
    ck_assert(job.rnn.has_tokens && job.rnn.tokens == 10 && job.rnn.embedding == 2 && job.rnn.hidden == 3);
    ck_assert(job.rnn.layers == 4 && job.rnn.dropout == 0.5);
    ck_assert(job.placement[JOB_LAYER_EMBEDDING].name == JOB_ON_SERVER &&
              job.placement[JOB_LAYER_EMBEDDING].number == 0);
    ck_assert(job.placement[JOB_LAYER_LSTM].name == JOB_ON_TRAINER &&
              job.placement[JOB_LAYER_LSTM].number == 0);
    ck_assert(job.placement[JOB_LAYER_DECODER].name == JOB_ON_SERVER &&
              job.placement[JOB_LAYER_DECODER].number == 0);
    for (int layer = 0; layer < JOB_LAYERS; layer++)
        ck_assert(!job.threads[layer].has && job.threads[layer].count == 0);
    ck_assert(!job.init.has_path && !job.trainers.has_threads);
    ck_assert(job.trainers.count == 1 && job.trainers.batch == 3);
    ck_assert(job.server.count == 1 && job.server.round.name == JOB_ROUND_ALL);
    ck_assert_int_eq(job.sequence.classes, JOB_CLASSES_TOKENS);
    ck_assert(job.optimizer.lr == 0.05 && job.optimizer.momentum == 0 && job.sequence.decay == 0.25);
    ck_assert(job.optimizer.schedule == JOB_SCHEDULE_CONSTANT && !job.sequence.has_max_norm);
    ck_assert(job.data.kind == JOB_DATA_SYNTHETIC && job.data.path[0] == '\0' && job.sequence.steps == 5);
    ck_assert(job.sequence.updates == 5 && job.sequence.minimum_count == 1 && job.sequence.held_out == 0.1);
    ck_assert(job.evaluation.has_every && job.evaluation.every == 1 && job.evaluation.batch == 10);
    ck_assert(!job.stop.has_updates && job.stop.has_epochs && job.stop.epochs == 10);
    ck_assert(job.checkpoint.has_every && job.checkpoint.every == 100 && job.checkpoint.keep == 3);
    ck_assert(job.model.width == 0 && job.data.size == 0 && job.optimizer.beta1 == 0);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("job_defaults");
    TCase *core = tcase_create("core");
    tcase_add_test(core, defaults_of_reinforce);
    tcase_add_test(core, defaults_of_ppo);
    tcase_add_test(core, defaults_of_a2c);
    tcase_add_test(core, defaults_without_memory);
    tcase_add_test(core, defaults_of_a_parameter_server);
    tcase_add_test(core, defaults_of_a_model_parallel);
    suite_add_tcase(suite, core);
    return suite_run(suite);
}
