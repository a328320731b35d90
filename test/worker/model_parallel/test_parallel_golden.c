/* Whole jobs of the tutorial's language model, run by the real daemon with its parts on two workers, held to
 * PyTorch's single process (test/golden/rnn_parallel.py) and to the same model on one tape of ours.
 *
 * Every update makes a checkpoint. With a momentum of 1e-30 what it keeps of the optimizer is the update's
 * gradient itself: what is left of the one before vanishes in float32. */
#include "kernels/params/gradients.h"
#include "test/kernels/params/model_file.h"
#include "test/kernels/policy/mlp_problem.h"
#include "test/training.h"
#include "test/worker/data_parallel/server_fixture.h"
#include "worker/checkpoint/checkpoint.h"
#include "worker/model_parallel/parallel_data.h"
#include "worker/model_parallel/parallel_values.h"

#include <math.h>

enum { STEPS = 10, TOKENS = 10, LENGTH = 5, BATCH = 3, HIDDEN = 3, LAYERS = 4, PARAMETERS = 3 + 4 * LAYERS };

#define TUTORIAL_JOB                                                                                         \
    "{\"kind\":\"model-parallel\",\"device\":\"cpu\",\"seed\":21,\"model\":{\"dropout\":0},"                 \
    "\"threads\":{\"embedding\":1,\"lstm\":1,\"decoder\":1},\"trainers\":{\"threads\":1},"                   \
    "\"optimizer\":{\"lr\":1,\"momentum\":1e-30},\"stop\":{\"updates\":10},"                                 \
    "\"checkpoint\":{\"every\":1,\"keep\":10},\"supervise\":{\"hang_s\":30}}"

static const struct rnn_config tutorial = {TOKENS, 2, HIDDEN, LAYERS, 0};
static struct error error;
static struct whole whole, before;

static void open_job(void)
{
    workplace_open();
    workplace_write_job(TUTORIAL_JOB);
    setenv("XDG_RUNTIME_DIR", workplace.folder, 1);
    unsetenv("RUNTIME_DIRECTORY");
    training_ok(whole_open(&whole, &tutorial, true, &error), &error);
    training_ok(whole_open(&before, &tutorial, true, &error), &error);
}

static void close_job(void)
{
    whole_close(&whole);
    whole_close(&before);
    workplace_close();
}

/* Model and gradient behind update `update`. */
static void load(struct whole *into, uint32_t update)
{
    char name[64], path[192];
    const struct checkpoint_values part = {.params = into->params, .momentum = into->momentum};
    snprintf(name, sizeof name, "checkpoints/%08u", update);
    training_ok(checkpoint_load(path_of(place(path, "run", name)), &part, &error), &error);
}

static double loss_of(uint32_t update)
{
    char wanted[64];
    double loss = NAN;
    char *json = file_read(workplace.jsonl);
    snprintf(wanted, sizeof wanted, "\n{\"update\":%u,\"loss\":", update);
    const char *line = strstr(json, wanted);
    ck_assert_msg(line != NULL, "no update %u in: %s", update, json);
    ck_assert_int_eq(sscanf(line + strlen(wanted), "%lf", &loss), 1);
    free(json);
    return loss;
}

/* ---- against PyTorch ---- */

/* The record's parameters into a file, which the job begins with; where the generator stands behind them. */
static uint64_t write_init(const char *path)
{
    uint64_t state = 21;
    for (uint32_t i = 0; i < PARAMETERS; i++) {
        const float scale = i == 0 ? 1 : sqrtf(4.0f / HIDDEN);
        float *values = whole_values(&before, i, false);
        for (size_t k = 0; k < whole_count(&before, i); k++)
            values[k] = mlp_problem_number(&state) * scale;
    }
    training_ok(model_file_save(before.params, path, &error), &error);
    return state;
}

/* Parameter `i` of `of`, or its gradient, in double; until the next call. */
static const double *values_of(struct whole *of, uint32_t i, bool gradient)
{
    static double values[128];
    ck_assert_uint_le(whole_count(of, i), sizeof values / sizeof *values);
    for (size_t k = 0; k < whole_count(of, i); k++)
        values[k] = (double)whole_values(of, i, gradient)[k];
    return values;
}

static void hold_changes(struct golden *golden, uint32_t step)
{
    double change[128];
    for (uint32_t i = 0; i < PARAMETERS; i++) {
        const size_t count = whole_count(&whole, i);
        memcpy(change, values_of(&whole, i, false), count * sizeof *change);
        const double *from = values_of(&before, i, false);
        for (size_t k = 0; k < count; k++)
            change[k] -= from[k];
        golden_check(golden, step, GOLDEN_UPDATE, params_at(whole.params, i)->name, change, count);
        memcpy(whole_values(&before, i, false), whole_values(&whole, i, false), count * sizeof(float));
    }
}

static const char *const names[] = {"batch", "tokens"};

/* Runs the job of the record number `which` and holds it to that. `before` is the init. */
static struct golden *run_golden(int which, const char *const *more)
{
    const char *sets[SETS_MAX];
    char record[32], classes[32], init[224], path[192];
    unsigned count = 0;
    snprintf(record, sizeof record, "rnn_parallel_%s", names[which]);
    snprintf(classes, sizeof classes, "/loss/classes=%s", names[which]);
    snprintf(init, sizeof init, "/init=%s", place(path, "init.safetensors", ""));
    struct golden *golden = golden_open(record, write_init(path), false);
    sets[count++] = classes;
    sets[count++] = init;
    for (; *more != NULL; more++)
        sets[count++] = *more;
    sets[count] = NULL;
    server_run(workplace.run_dir, sets, false);
    for (uint32_t step = 1; step <= STEPS; step++) {
        const double loss = loss_of(step);
        golden_check(golden, step, GOLDEN_LOSS, "loss", &loss, 1);
        load(&whole, step);
        for (uint32_t i = 0; i < PARAMETERS && (step == 1 || step == STEPS); i++)
            golden_check(golden, step, GOLDEN_GRADIENT, params_at(whole.params, i)->name,
                         values_of(&whole, i, true), whole_count(&whole, i));
        if (which == 1)
            hold_changes(golden, step);
    }
    for (uint32_t i = 0; i < PARAMETERS; i++)
        golden_check(golden, STEPS, GOLDEN_OUTPUT, params_at(whole.params, i)->name,
                     values_of(&whole, i, false), whole_count(&whole, i));
    return golden;
}

START_TEST(a_job_trains_as_pytorch_does)
{
    static const char *const rates[][2] = {{"/optimizer/lr=0.05", NULL}, {"/optimizer/lr=1", NULL}};
    struct golden *golden = run_golden(_i, rates[_i]);
    golden_assert_all(golden);
    golden_close(golden);
}
END_TEST

START_TEST(a_job_without_updates_is_seen)
{
    static const char *const none[] = {"/optimizer/lr=1e-30", NULL};
    struct golden *golden = run_golden(1, none);
    ck_assert_uint_eq(golden_violations(golden, 1, GOLDEN_LOSS), 0);
    ck_assert_uint_eq(golden_violations(golden, 1, GOLDEN_GRADIENT), 0);
    for (uint32_t step = 1; step <= STEPS; step++) {
        ck_assert_uint_eq(golden_violations(golden, step, GOLDEN_LOSS), step > 1);
        ck_assert_uint_ge(golden_violations(golden, step, GOLDEN_UPDATE), PARAMETERS);
    }
    ck_assert_uint_ge(golden_violations(golden, STEPS, GOLDEN_OUTPUT), PARAMETERS);
    golden_close(golden);
}
END_TEST

/* ---- against one tape ---- */

enum { STATE = LAYERS * BATCH * HIDDEN };

static struct one {
    struct rnn_config rnn;
    struct backend *backend;
    struct params *params;
    struct gradients *gradients;
    struct optimizer *optimizer;
    struct tape *tape;
    struct rnn_encoder encoder;
    struct rnn_lstm lstm;
    struct rnn_decoder decoder;
    struct job job;
    struct parallel_data data;
    float h[STATE], c[STATE];
} one;

static void open_one(const char *const *sets, size_t set_count)
{
    const struct backend_settings threads = {.threads = 1};
    char *problems = NULL;
    ck_assert_int_eq(
        job_parse(&one.job, TUTORIAL_JOB, strlen(TUTORIAL_JOB), "job", sets, set_count, &problems),
        STATUS_OK);
    const struct optimizer_settings sgd = {
        .kind = OPTIMIZER_SGD, .sgd = {.lr = one.job.optimizer.lr, .momentum = one.job.optimizer.momentum}};
    training_ok(parallel_data_open(&one.data, &one.job, NULL, &error), &error);
    parallel_data_first_state(&one.data, 0, one.h, one.c);
    one.rnn = one.data.rnn;
    training_ok(backend_load(&one.backend, "onednn", &threads, &error), &error);
    training_ok(params_new(&one.params, one.backend, &error), &error);
    training_ok(rnn_encoder_init(&one.encoder, &one.rnn, one.params, &error), &error);
    training_ok(rnn_lstm_init(&one.lstm, &one.rnn, one.params, &error), &error);
    training_ok(rnn_decoder_init(&one.decoder, &one.rnn, one.params, &error), &error);
    training_ok(params_build(one.params, one.job.seed, &error), &error);
    training_ok(gradients_new(&one.gradients, one.params, &error), &error);
    training_ok(optimizer_new(&one.optimizer, &sgd, one.params, &error), &error);
    training_ok(tape_new(&one.tape, one.backend, &error), &error);
}

static void close_one(void)
{
    tape_free(one.tape);
    optimizer_free(one.optimizer);
    gradients_free(one.gradients);
    params_free(one.params);
    backend_close(one.backend);
    parallel_data_close(&one.data);
}

static void read_state(const struct lstm_state state[])
{
    for (int layer = 0; layer < LAYERS; layer++) {
        tape_read(one.tape, state[layer].h, DTYPE_F32, one.h + layer * BATCH * HIDDEN);
        tape_read(one.tape, state[layer].c, DTYPE_F32, one.c + layer * BATCH * HIDDEN);
    }
}

/* One update without any remote call; the loss. */
static double step_of_one(uint64_t iteration)
{
    const struct draw draw = {.seed = one.job.seed, .word = {0, (uint32_t)iteration, 0}};
    const uint32_t rows = LENGTH * BATCH;
    struct lstm_state state[RNN_LAYERS_MAX];
    int32_t tokens[LENGTH * BATCH], targets[LENGTH * BATCH];
    struct tape *tape = one.tape;
    double loss = NAN;
    parallel_data_batch(&one.data, 0, iteration, tokens, targets);
    tape_begin(tape, TAPE_TRAIN, one.gradients);
    struct variable *x = tape_input(tape, SHAPE2(LENGTH, BATCH), DTYPE_I32, "tokens", tokens);
    for (int layer = 0; layer < LAYERS; layer++) {
        const int at = layer * BATCH * HIDDEN;
        state[layer].h = tape_input(tape, SHAPE2(BATCH, HIDDEN), DTYPE_F32, "h", one.h + at);
        state[layer].c = tape_input(tape, SHAPE2(BATCH, HIDDEN), DTYPE_F32, "c", one.c + at);
    }
    x = rnn_encoder_forward(&one.encoder, &one.rnn, tape, x, &draw);
    x = rnn_lstm_forward(&one.lstm, &one.rnn, tape, x, state, &draw);
    x = rnn_decoder_forward(&one.decoder, &one.rnn, tape, x, &draw);
    struct variable *target = tape_input(tape, SHAPE1(rows), DTYPE_I32, "targets", targets);
    x = tape_cross_entropy(tape, tape_reshape(tape, x, SHAPE2(rows, TOKENS)), target);
    tape_loss(tape, x, &loss);
    read_state(state);
    tape_backward(tape, x);
    training_ok(tape_finish(tape, &error), &error);
    return loss;
}

/* Where a gradient is zero the job's has what the momentum leaves of the one before. */
static void expect_same(struct whole *job, bool gradient, uint32_t step)
{
    float values[128];
    for (uint32_t i = 0; i < PARAMETERS; i++) {
        const struct parameter *parameter = params_at(one.params, i);
        const size_t count = shape_elements(&parameter->tensor.shape);
        const float *of_job = whole_values(job, i, gradient);
        if (gradient)
            training_ok(gradients_read(one.gradients, parameter, DTYPE_F32, values, &error), &error);
        else
            training_ok(params_read(one.params, parameter, DTYPE_F32, values, &error), &error);
        for (size_t k = 0; k < count; k++)
            ck_assert_msg(values[k] == of_job[k] || (gradient && values[k] == 0 && fabsf(of_job[k]) < 1e-25f),
                          "step %u: %s of %s, value %zu is %.9g, not %.9g", step,
                          gradient ? "the gradient" : "the value", parameter->name, k, (double)of_job[k],
                          (double)values[k]);
    }
}

/* With dropout, wherever the parts lie: losses, gradients and values. */
START_TEST(a_job_computes_what_one_tape_does)
{
    static const char *const ways[][5] = {{"/model/dropout=0.5"},
                                          {"/model/dropout=0.5", "/server/count=3",
                                           "/placement/lstm=server 1", "/placement/decoder=server 2",
                                           "/transport=inline"}};
    const char *sets[6] = {NULL};
    memcpy(sets, ways[_i], sizeof ways[_i]);
    server_run(workplace.run_dir, sets, false);
    open_one(ways[_i], 1);
    for (uint32_t step = 1; step <= STEPS; step++) {
        const double loss = step_of_one(step - 1);
        ck_assert_msg(loss == loss_of(step), "step %u: a loss of %.17g, not %.17g", step, loss_of(step),
                      loss);
        load(&whole, step);
        expect_same(&whole, true, step);
        training_ok(optimizer_step(one.optimizer, one.gradients, &error), &error);
        expect_same(&whole, false, step);
    }
    close_one();
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("parallel_golden");
    TCase *jobs = tcase_create("jobs");
    tcase_add_checked_fixture(jobs, open_job, close_job);
    tcase_set_timeout(jobs, 120);
    tcase_add_loop_test(jobs, a_job_trains_as_pytorch_does, 0, 2);
    tcase_add_test(jobs, a_job_without_updates_is_seen);
    tcase_add_loop_test(jobs, a_job_computes_what_one_tape_does, 0, 2);
    suite_add_tcase(suite, jobs);
    return suite_run(suite);
}
