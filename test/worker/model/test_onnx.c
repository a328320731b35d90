/* Writes models as ONNX, with inputs and what our own code makes of them, into the folder ONNX_OUTPUTS, for
 * test_onnx.sh to compare; without it, into a folder that is removed. A policy's outputs are seen through
 * what it does: the log-probabilities of drawn actions, values, the choices, and of the tutorial's network
 * the probabilities. A policy with memory plays episodes step by step; its last states are seen too. */
#include "kernels/backend.h"
#include "kernels/policy/mlp.h"
#include "test/process.h"
#include "test/training.h"
#include "test/values.h"
#include "test/worker/model/policy_hidden.h"
#include "test/worker/model/policy_world.h"
#include "test/workplace.h"
#include "worker/environment/environment_spec.h"
#include "worker/model/classifier.h"
#include "worker/model/onnx.h"
#include "worker/model/policy.h"
#include "worker/model/resnet.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 64, COLUMNS = 4, STEPS = 80, ROWS_MAX = COLUMNS * STEPS };

static struct error error;

static void must(enum status status)
{
    ck_assert_msg(status == STATUS_OK, "%s", error.text);
}

static const char *output_path(const char *name, const char *ending)
{
    static char path[256];
    const char *folder = getenv("ONNX_OUTPUTS");
    snprintf(path, sizeof path, "%s/%s.%s", folder != NULL ? folder : workplace.folder, name, ending);
    return path;
}

static void put(const char *name, const char *ending, const void *values, size_t bytes)
{
    FILE *file = fopen(output_path(name, ending), "wb");
    ck_assert_ptr_nonnull(file);
    ck_assert_uint_eq(fwrite(values, 1, bytes, file), bytes);
    ck_assert_int_eq(fclose(file), 0);
}

/* ---- policies ---- */

static const struct environment_space vector = {.dtype = ENVIRONMENT_F32, .rank = 1, .shape = {7}},
                                      number = {.dtype = ENVIRONMENT_F32},
                                      table = {.dtype = ENVIRONMENT_U8, .rank = 2, .shape = {5, 3}},
                                      picture = {.dtype = ENVIRONMENT_U8, .rank = 3, .shape = {36, 44, 2}},
                                      floats = {.dtype = ENVIRONMENT_F32, .rank = 3, .shape = {45, 36, 1}};

static const struct policy_case {
    const char *name;
    const struct environment_space *seen;
    enum world_head head;
    struct policy_config config; /* the members that are not the world's */
} policy_cases[] = {
    {"tutorial", &vector, WORLD_CHOICE, {POLICY_HIDDEN(33)}},
    {"dense-relu", &vector, WORLD_FLOATS, {POLICY_HIDDEN(16, 9)}},
    {"no-layers", &number, WORLD_CHOICES, {.layers = 0, .has_value = true}},
    {"values-tanh",
     &vector,
     WORLD_CHOICE,
     {POLICY_HIDDEN(64, 64), .activation = POLICY_TANH, .has_value = true}},
    {"choices-of-bytes",
     &table,
     WORLD_CHOICES,
     {POLICY_HIDDEN(16, 8), .has_value = true, .shared_value = true}},
    {"gaussian-normalized",
     &vector,
     WORLD_FLOATS,
     {POLICY_HIDDEN(32, 16), .activation = POLICY_TANH, .has_value = true, .normalizes = true, .clip = 1.5}},
    {"gaussian-of-the-state",
     &vector,
     WORLD_FLOATS,
     {POLICY_HIDDEN(24), .activation = POLICY_TANH, .has_value = true, .state_dependent = true}},
    {"values-of-other-layers",
     &vector,
     WORLD_CHOICES,
     {POLICY_HIDDEN_POLICY(8), POLICY_HIDDEN_VALUE(16, 4), .activation = POLICY_TANH, .has_value = true}},
    {"values-without-layers",
     &vector,
     WORLD_FLOATS,
     {POLICY_HIDDEN_POLICY(24), .has_value = true, .state_dependent = true}},
    {"cnn", &picture, WORLD_CHOICES, {.network = POLICY_CNN}},
    {"cnn-values", &picture, WORLD_CHOICE, {.network = POLICY_CNN, .has_value = true, .shared_value = true}},
    {"cnn-gaussian",
     &floats,
     WORLD_FLOATS,
     {.network = POLICY_CNN, .has_value = true, .normalizes = true, .clip = 0.9}},
    {"dqn-dueling",
     &vector,
     WORLD_CHOICE,
     {.learning = POLICY_DQN, .q = {.batch_rows = 1, .dueling = true}, .layers = 2, .width = {16, 9}}},
    {"dqn-cnn",
     &picture,
     WORLD_CHOICE,
     {.learning = POLICY_DQN, .q = {.batch_rows = 1}, .network = POLICY_CNN}},
    {"dqn-cnn-dueling",
     &floats,
     WORLD_CHOICE,
     {.learning = POLICY_DQN, .q = {.batch_rows = 1, .dueling = true}, .network = POLICY_CNN}},
    {"lstm",
     &vector,
     WORLD_CHOICE,
     {POLICY_HIDDEN(16), .has_value = true, .memory = POLICY_LSTM, .memory_units = 32, .memory_layers = 1}},
    {"lstm-layers-linear",
     &table,
     WORLD_CHOICES,
     {POLICY_HIDDEN(16, 8), .has_value = true, .memory = POLICY_LSTM, .memory_units = 17, .memory_layers = 2,
      .critic = POLICY_CRITIC_LINEAR}},
    {"lstm-detached-of-the-state",
     &vector,
     WORLD_FLOATS,
     {POLICY_HIDDEN(24), .activation = POLICY_TANH, .has_value = true, .state_dependent = true,
      .normalizes = true, .clip = 1.5, .memory = POLICY_LSTM, .memory_units = 16, .memory_layers = 1,
      .critic = POLICY_CRITIC_DETACHED}},
    {"lstm-shared",
     &vector,
     WORLD_CHOICE,
     {POLICY_HIDDEN(16), .has_value = true, .shared_value = true, .memory = POLICY_LSTM, .memory_units = 16,
      .memory_layers = 1, .critic = POLICY_CRITIC_SHARED}},
    {"gru-layers",
     &number,
     WORLD_FLOATS,
     {POLICY_HIDDEN(16), .has_value = true, .memory = POLICY_GRU, .memory_units = 20, .memory_layers = 4}},
    {"gru-before-other-layers",
     &vector,
     WORLD_CHOICE,
     {POLICY_HIDDEN_POLICY(8), POLICY_HIDDEN_VALUE(16, 4), .has_value = true, .memory = POLICY_GRU,
      .memory_units = 12, .memory_layers = 1}},
    {"gru-without-layers",
     &vector,
     WORLD_CHOICES,
     {.has_value = true,
      .memory = POLICY_GRU,
      .memory_units = 33,
      .memory_layers = 1,
      .critic = POLICY_CRITIC_LINEAR}},
};
enum { POLICY_CASES = sizeof policy_cases / sizeof policy_cases[0] };

static void configure(struct policy_world *world, const struct policy_case *of)
{
    const struct policy_config *from = &of->config;
    struct policy_config *to = &world->config;
    const bool remembers = from->memory != POLICY_NO_MEMORY;
    const uint32_t rows = remembers ? ROWS_MAX : ROWS;
    policy_world_init(world, of->head, *of->seen, rows, 5);
    to->learning = from->learning;
    to->q = from->q;
    to->network = from->network;
    to->layers = from->layers;
    memcpy(to->width, from->width, sizeof to->width);
    to->value_layers = from->value_layers;
    memcpy(to->value_width, from->value_width, sizeof to->value_width);
    to->activation = from->activation;
    to->has_value = from->has_value;
    to->shared_value = from->shared_value;
    to->normalizes = from->normalizes;
    to->clip = from->clip;
    to->state_dependent = from->state_dependent;
    to->memory = from->memory;
    to->memory_units = from->memory_units;
    to->memory_layers = from->memory_layers;
    to->critic = from->critic;
    to->minibatch_rows = to->rows_max = rows;
    to->environments = remembers ? COLUMNS : rows;
    for (uint32_t i = 0; i < rows; i++) {
        world->row[i] = i;
        world->environment[i] = i % to->environments;
        world->step[i] = i / to->environments;
    }
}

/* Values that are no easy numbers, for the policy and its copy. */
static void set_values(struct policy *policy, struct policy_values *values)
{
    must(policy_save(policy, values, &error));
    struct parameter *log_std = params_find(values->params, "log_std");
    struct parameter *mean = params_find(values->params, "obs_rms.mean");
    struct parameter *variance = params_find(values->params, "obs_rms.var");
    for (size_t i = 0; log_std != NULL && i < shape_elements(&log_std->tensor.shape); i++)
        ((float *)log_std->tensor.data)[i] = 0.125F * (float)(i % 7) - 0.75F;
    for (size_t i = 0; mean != NULL && i < shape_elements(&mean->tensor.shape); i++) {
        ((float *)mean->tensor.data)[i] = 0.25F * (float)(i % 5) - 0.5F;
        ((float *)variance->tensor.data)[i] = 0.1F + 0.3F * (float)(i % 3);
    }
    must(policy_restore(policy, values, &error));
}

/* What the tutorial's kernel makes of each row, without dropout. */
static void put_probabilities(const char *name, const struct policy_world *world,
                              const struct policy_values *values)
{
    const struct mlp_shape shape = policy_mlp_shape(&world->config);
    float parameters[4096], probabilities[ROWS * MLP_ACTIONS_MAX];
    int32_t actions[ROWS];
    uint16_t masks[ROWS * 8];
    size_t count = 0;
    struct mlp *mlp;
    for (uint32_t i = 0; i < params_count(values->params); i++) {
        const struct tensor *tensor = &params_at(values->params, i)->tensor;
        memcpy(parameters + count, tensor->data, shape_elements(&tensor->shape) * sizeof *parameters);
        count += shape_elements(&tensor->shape);
    }
    const struct mlp_batch batch = {.count = ROWS,
                                    .row = world->row,
                                    .observations = world->observations,
                                    .masks = masks,
                                    .actions = actions};
    must(mlp_new(&mlp, &shape, 0, &error));
    mlp_load(mlp, parameters);
    mlp_act(mlp, &batch, 1, 1, world->environment, world->step, probabilities);
    mlp_free(mlp);
    put(name, "probabilities", probabilities, (size_t)ROWS * shape.actions * sizeof *probabilities);
}

/* Chooses the rows' actions, or draws them. A policy with memory plays episodes of environments side by side,
 * and some of them end. */
static void play(struct policy_world *world, struct policy *policy, struct policy_rows rows, bool draws)
{
    const uint32_t environments = world->config.environments, count = rows.count;
    for (uint32_t first = 0; first < count; first += rows.count) {
        rows.count = policy_state_floats(policy) > 0 ? environments : count;
        rows.row = world->row + first;
        must(draws ? policy_act(policy, &rows, 1, world->environment + first, world->step + first, &error)
                   : policy_choose(policy, &rows, &error));
    }
}

/* Of the rows of a policy with memory, by step and environment: which begin an episode, and what the policy
 * remembers, of which the first of both are zeros. */
static void open_states(struct policy_rows *rows, const struct policy *policy)
{
    uint8_t *starts = values_memory(ROWS_MAX, 1);
    for (uint32_t i = 0; i < ROWS_MAX; i++)
        starts[i] = i % 101 == 50;
    rows->starts = starts;
    rows->next = COLUMNS;
    rows->states = values_memory((ROWS_MAX + COLUMNS) * policy_state_floats(policy), sizeof(float));
}

static void put_states(const char *name, const struct policy_world *world, const struct policy_rows *rows)
{
    const size_t size = policy_config_state_floats(&world->config);
    put(name, "starts", rows->starts, ROWS_MAX);
    put(name, "states", rows->states + ROWS_MAX * size, COLUMNS * size * sizeof(float));
}

static void put_rows(const char *name, struct policy_world *world, struct policy *policy)
{
    const size_t element = world->config.observation.dtype == ENVIRONMENT_U8 ? 1 : sizeof(float);
    float log_probabilities[ROWS_MAX], estimates[ROWS_MAX];
    struct policy_rows rows = world->batch;
    const bool remembers = policy_state_floats(policy) > 0;
    if (remembers)
        open_states(&rows, policy);
    put(name, "observations", world->observations, rows.count * world->elements * element);
    if (world->config.action.choices != NULL)
        put(name, "choices", world->config.action.choices, world->components * sizeof(uint32_t));
    play(world, policy, rows, false);
    put(name, "chosen", rows.actions, policy_world_action_bytes(world));
    if (!world->config.has_value)
        return;
    rows.log_probabilities = log_probabilities;
    rows.values = estimates;
    play(world, policy, rows, true);
    put(name, "drawn", rows.actions, policy_world_action_bytes(world));
    put(name, "log_probabilities", log_probabilities, rows.count * sizeof *log_probabilities);
    put(name, "values", estimates, rows.count * sizeof *estimates);
    if (!remembers)
        return;
    put_states(name, world, &rows);
    free((void *)(uintptr_t)rows.starts);
    free(rows.states);
}

START_TEST(policies)
{
    const struct policy_case *of = &policy_cases[_i];
    struct policy_world world;
    struct policy_values values = {0};
    struct backend *backend = of->config.network == POLICY_CNN ? training_backend(0) : NULL;
    configure(&world, of);
    struct policy *policy = policy_world_open(&world, backend);
    must(policy_values_open(&values, &world.config, &error));
    set_values(policy, &values);
    must(onnx_write_policy(output_path(of->name, "onnx"), &world.config, values.params, &error));
    put_rows(of->name, &world, policy);
    if (policy_form(&world.config) == POLICY_FORM_TUTORIAL)
        put_probabilities(of->name, &world, &values);
    policy_values_close(&values);
    policy_free(policy);
    policy_world_fini(&world);
    backend_close(backend);
}
END_TEST

/* ---- ResNets ---- */

enum { SAMPLES = 3 };

static const char *const jobs[] = {
    "{\"kind\":\"parameter-server\",\"model\":{\"name\":\"resnet18\",\"classes\":7,\"width\":8},"
    "\"data\":{\"channels\":1,\"size\":33},\"stop\":{\"updates\":1}}",
    "{\"kind\":\"parameter-server\",\"model\":{\"name\":\"resnet50\",\"classes\":5,\"width\":16},"
    "\"data\":{\"size\":64},\"stop\":{\"updates\":1}}",
};
static const char *const job_names[] = {"resnet18", "resnet50"};

/* Params in host memory, with running statistics that are no easy numbers. */
static struct params *host_params(const struct job *job, struct backend *memory)
{
    struct params *params;
    struct classifier *classifier;
    uint64_t state = 3;
    must(params_new(&params, memory, &error));
    must(classifier_new(&classifier, job, params, &error));
    must(params_build(params, 11, &error));
    classifier_free(classifier);
    for (uint32_t i = 0; i < params_count(params); i++) {
        const struct parameter *parameter = params_at(params, i);
        const size_t count = shape_elements(&parameter->tensor.shape);
        const bool is_variance = strstr(parameter->name, "running_var") != NULL;
        if (parameter->kind == PARAMETER_COUNTER || parameter->tensor.shape.rank != 1)
            continue;
        float *numbers = training_numbers(&state, count, 0.25F), *to = parameter->tensor.data;
        for (size_t e = 0; e < count; e++)
            to[e] = is_variance ? 1.5F + numbers[e] : to[e] + numbers[e];
        free(numbers);
    }
    return params;
}

/* The logits of our own inference, on oneDNN, with the values of `from`. */
static void put_logits(const char *name, const struct job *job, struct params *from, const float *images)
{
    const struct resnet_config config = {job->model.name == JOB_MODEL_RESNET18 ? 18 : 50, job->data.channels,
                                         job->model.classes, job->model.width};
    struct backend *backend = training_backend(0);
    struct params *params;
    struct resnet *resnet;
    struct tape *tape;
    float logits[SAMPLES * 8];
    if (backend == NULL)
        return;
    must(params_new(&params, backend, &error));
    must(resnet_new(&resnet, &config, params, &error));
    must(params_build(params, 1, &error));
    for (uint32_t i = 0; i < params_count(params); i++)
        if (params_at(params, i)->kind != PARAMETER_COUNTER)
            must(params_write(params, params_at(params, i), DTYPE_F32, params_at(from, i)->tensor.data,
                              &error));
    must(tape_new(&tape, backend, &error));
    tape_begin(tape, TAPE_INFER, NULL);
    struct variable *input = tape_input(
        tape, SHAPE4(SAMPLES, config.channels, job->data.size, job->data.size), DTYPE_F32, "images", images);
    tape_read(tape, resnet_forward(resnet, tape, input, false), DTYPE_F32, logits);
    must(tape_finish(tape, &error));
    put(name, "logits", logits, (size_t)SAMPLES * config.classes * sizeof *logits);
    tape_free(tape);
    resnet_free(resnet);
    params_free(params);
    backend_close(backend);
}

START_TEST(resnets)
{
    const struct backend_settings settings = {.threads = 1};
    struct job job;
    struct backend *memory;
    char *problems = NULL;
    uint64_t state = 9;
    ck_assert_int_eq(job_parse(&job, jobs[_i], strlen(jobs[_i]), "job.json", NULL, 0, &problems), STATUS_OK);
    free(problems);
    must(backend_open(&memory, &memory_ops, &settings, &error));
    struct params *params = host_params(&job, memory);
    const size_t pixels = (size_t)SAMPLES * job.data.channels * job.data.size * job.data.size;
    float *images = training_numbers(&state, pixels, 1);
    must(onnx_write_classifier(output_path(job_names[_i], "onnx"), &job, params, &error));
    put(job_names[_i], "observations", images, pixels * sizeof *images);
    put_logits(job_names[_i], &job, params, images);
    free(images);
    params_free(params);
    backend_close(memory);
}
END_TEST

START_TEST(a_file_that_cannot_be_written_is_named)
{
    const struct backend_settings settings = {.threads = 1};
    static const char *const paths[] = {"/dev/full", "/nowhere/model.onnx"};
    static const char *const words[] = {"cannot write /dev/full: No space left on device",
                                        "cannot write /nowhere/model.onnx: No such file or directory"};
    struct job job;
    struct backend *memory;
    ck_assert_int_eq(job_parse(&job, jobs[0], strlen(jobs[0]), "job.json", NULL, 0, &(char *){NULL}),
                     STATUS_OK);
    must(backend_open(&memory, &memory_ops, &settings, &error));
    struct params *params = host_params(&job, memory);
    ck_assert_int_ne(onnx_write_classifier(paths[_i], &job, params, &error), STATUS_OK);
    ck_assert_str_eq(error.text, words[_i]);
    params_free(params);
    backend_close(memory);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("onnx");
    TCase *tests = tcase_create("onnx");
    tcase_add_checked_fixture(tests, workplace_open, workplace_close);
    tcase_add_loop_test(tests, policies, 0, POLICY_CASES);
    tcase_add_loop_test(tests, resnets, 0, 2);
    tcase_add_loop_test(tests, a_file_that_cannot_be_written_is_named, 0, 2);
    suite_add_tcase(suite, tests);
    return suite_run(suite);
}
