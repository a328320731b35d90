/* The daemon's parameter server held to PyTorch: three rounds of two trainers, from the same weights on the
 * same images (test/golden/parameter_server.py), judged by what the run leaves behind: the log's losses, and
 * the checkpoints' parameters and running statistics. And the same with gradients that travel as bfloat16. */
#include "test/kernels/params/model_file.h"
#include "test/process.h"
#include "test/training.h"
#include "test/workplace.h"
#include "worker/model/resnet.h"

#include <cjson/cJSON.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    TRAINERS = 2,
    BATCH = 10,
    STEPS = 3,
    WIDTH = 8,
    CLASSES = 30,
    PIXELS = 3 * 32 * 32,
    FILES = 5,
    FILE_SAMPLES = TRAINERS * BATCH * STEPS / FILES,
    SEED = 70, /* of the generator, and the job's */
    RUN_LIMIT_S = 120,
};

static struct training training;
static struct resnet *resnet;
static struct golden *golden;

static float scale(const struct parameter *parameter, bool *constant)
{
    return training_resnet_scale(parameter, ".bn2.weight", constant);
}

/* ---- what the job begins with ---- */

/* A file of CIFAR's form: a label and the pixels of each sample. */
static void write_samples(const char *name, const int32_t *labels, const int32_t *pixels, size_t count)
{
    char path[160];
    snprintf(path, sizeof path, "%s/%s", workplace.folder, name);
    FILE *file = fopen(path, "wb");
    ck_assert_ptr_nonnull(file);
    for (size_t i = 0; i < count; i++) {
        fputc(labels[i], file);
        for (size_t p = 0; p < PIXELS; p++)
            fputc(pixels[i * PIXELS + p], file);
    }
    ck_assert_int_eq(fclose(file), 0);
}

static void write_data(uint64_t *state)
{
    const size_t samples = (size_t)FILES * FILE_SAMPLES;
    int32_t *pixels = training_indices(state, samples * PIXELS, 256);
    int32_t *labels = training_indices(state, samples, CLASSES);
    for (size_t i = 0; i < FILES; i++) {
        char name[32];
        snprintf(name, sizeof name, "data_batch_%zu.bin", i + 1);
        write_samples(name, labels + i * FILE_SAMPLES, pixels + i * FILE_SAMPLES * PIXELS, FILE_SAMPLES);
    }
    write_samples("test_batch.bin", labels, pixels, 1);
    free(pixels);
    free(labels);
}

static void write_job(void)
{
    char text[2048];
    snprintf(text, sizeof text,
             "{\"kind\": \"parameter-server\", \"name\": \"golden\", \"seed\": %d, \"device\": \"cpu\",\n"
             " \"model\": {\"name\": \"resnet18\", \"width\": %d, \"classes\": %d}, \"init\": "
             "\"%s/init.safetensors\",\n"
             " \"trainers\": {\"count\": %d, \"batch\": %d}, \"loss\": {\"name\": \"mse\"},\n"
             " \"optimizer\": {\"lr\": 0.01, \"momentum\": 0.9},\n"
             " \"data\": {\"kind\": \"cifar\", \"path\": \"%s\", \"size\": 32, \"mean\": [0.5], \"std\": "
             "[0.25]},\n"
             " \"evaluation\": {\"every\": null}, \"stop\": {\"updates\": %d},\n"
             " \"checkpoint\": {\"every\": 1, \"keep\": %d}}\n",
             SEED, WIDTH, CLASSES, workplace.folder, TRAINERS, BATCH, workplace.folder, STEPS, STEPS);
    workplace_write_job(text);
}

static void open_run(const char *record)
{
    struct error error = {0};
    const struct resnet_config config = {.depth = 18, .channels = 3, .classes = CLASSES, .width = WIDTH};
    const struct optimizer_settings unused = {.kind = OPTIMIZER_SGD, .sgd = {.lr = 1}};
    struct backend *backend = training_backend(0);
    uint64_t state = SEED;
    char path[160];
    ck_assert_ptr_nonnull(backend);
    training_init(&training, backend, 1);
    training_ok(resnet_new(&resnet, &config, training.params[0], &error), &error);
    training_build(&training, &unused);
    training_take(&training, 0, 0, UINT32_MAX);
    training_draw(&training, &state, scale);
    workplace_open();
    snprintf(path, sizeof path, "%s/init.safetensors", workplace.folder);
    training_ok(model_file_save(training.params[0], path, &error), &error);
    write_data(&state);
    write_job();
    golden = golden_open(record, state, false);
}

static void close_run(void)
{
    golden_close(golden);
    workplace_close();
    resnet_free(resnet);
    training_fini(&training);
    backend_close(training.backend);
}

static void train(const char *setting)
{
    const char *argv[] = {daemon_path(), "run", workplace.job_path, "--run-dir", workplace.run_dir, "--set",
                          setting,       NULL};
    struct process process;
    const int code = process_run(&process, workplace.folder, argv, NULL, RUN_LIMIT_S);
    char *said = process_err(&process);
    ck_assert_msg(code == 0, "exit code %d: %s", code, said);
    free(said);
}

/* ---- what it left ---- */

static double last_losses[STEPS + 1][TRAINERS]; /* by update */

static void check_losses(uint32_t update, const cJSON *losses)
{
    ck_assert_int_eq(cJSON_GetArraySize(losses), TRAINERS);
    for (int i = 0; i < TRAINERS; i++) {
        char name[32];
        const double loss = cJSON_GetArrayItem(losses, i)->valuedouble;
        last_losses[update][i] = loss;
        snprintf(name, sizeof name, "trainer%d", i);
        golden_check(golden, update, GOLDEN_LOSS, name, &loss, 1);
    }
}

static void check_log(void)
{
    char *text = file_read(workplace.jsonl), *rest = NULL;
    uint32_t updates = 0;
    for (char *line = strtok_r(text, "\n", &rest); line != NULL; line = strtok_r(NULL, "\n", &rest)) {
        cJSON *object = cJSON_Parse(line);
        const cJSON *losses = cJSON_GetObjectItem(object, "losses");
        if (losses != NULL)
            check_losses(++updates, losses);
        cJSON_Delete(object);
    }
    ck_assert_uint_eq(updates, STEPS);
    free(text);
}

static void read_entry(const struct parameter *parameter, double *values)
{
    struct error error = {0};
    training_ok(params_read(training.params[0], parameter, DTYPE_F64, values, &error), &error);
}

/* An entry's change from what it was at the last look, which this look becomes. */
static void check_update(uint32_t step, uint32_t i)
{
    const size_t count = shape_elements(&training.parameter[i]->tensor.shape);
    double *before = training.before[i], *change = calloc(count, sizeof *change);
    ck_assert_ptr_nonnull(change);
    read_entry(training.parameter[i], change);
    for (size_t at = 0; at < count; at++) {
        const double now = change[at];
        change[at] = now - before[at];
        before[at] = now;
    }
    golden_check(golden, step, GOLDEN_UPDATE, training.parameter[i]->name, change, count);
    free(change);
}

static void check_checkpoints(void)
{
    struct error error = {0};
    for (uint32_t i = 0; i < training.count; i++)
        read_entry(training.parameter[i], training.before[i]);
    for (uint32_t step = 1; step <= STEPS; step++) {
        char path[192];
        snprintf(path, sizeof path, "%s/checkpoints/%08u/model.safetensors", workplace.run_dir, step);
        training_ok(model_file_load(training.params[0], path, &error), &error);
        for (uint32_t i = 0; i < training.count; i++)
            check_update(step, i);
    }
    training_statistics(&training, golden, STEPS);
}

START_TEST(three_rounds_are_pytorchs)
{
    open_run("parameter_server");
    train("/log/every=1");
    check_log();
    check_checkpoints();
    golden_assert_all(golden);
    ck_assert_int_eq(params_find(training.params[0], "bn1.num_batches_tracked")->counter, STEPS);
    close_run();
}
END_TEST

static const char *const as_bfloat16 = "/transport={\"memory\":\"inline\",\"precision\":\"bfloat16\"}";

START_TEST(three_rounds_of_bfloat16_are_pytorchs)
{
    open_run("parameter_server_bfloat16");
    train(as_bfloat16);
    check_log();
    check_checkpoints();
    golden_assert_all(golden);
    close_run();
}
END_TEST

/* What bfloat16 costs: the losses of the first round are float32's, and the later ones differ from float32's,
 * by no more than a ten thousandth of them; the two records differ by half of that. */
START_TEST(bfloat16_changes_the_losses_a_little)
{
    double exact[STEPS + 1][TRAINERS];
    open_run("parameter_server");
    train("/transport=inline");
    check_log();
    memcpy(exact, last_losses, sizeof exact);
    close_run();
    open_run("parameter_server");
    train(as_bfloat16);
    check_log();
    ck_assert_mem_eq(exact[1], last_losses[1], sizeof exact[1]);
    for (uint32_t update = 2; update <= STEPS; update++)
        for (uint32_t i = 0; i < TRAINERS; i++) {
            const double apart = fabs(exact[update][i] - last_losses[update][i]) / exact[update][i];
            ck_assert_double_gt(apart, 0);
            ck_assert_double_le(apart, 1e-4);
        }
    close_run();
}
END_TEST

/* The same with steps too small to be seen: the first losses are right, and then everything tells. */
START_TEST(rounds_without_updates_are_seen)
{
    open_run("parameter_server");
    train("/optimizer/lr=1e-30");
    check_log();
    check_checkpoints();
    ck_assert_uint_eq(golden_violations(golden, 1, GOLDEN_LOSS), 0);
    for (uint32_t step = 1; step <= STEPS; step++) {
        ck_assert_uint_eq(golden_violations(golden, step, GOLDEN_LOSS), step > 1 ? TRAINERS : 0);
        ck_assert_uint_ge(golden_violations(golden, step, GOLDEN_UPDATE), training.count);
    }
    close_run();
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("parameter_server_golden");
    TCase *rounds = tcase_create("rounds");
    tcase_set_timeout(rounds, RUN_LIMIT_S + 60);
    tcase_add_test(rounds, three_rounds_are_pytorchs);
    tcase_add_test(rounds, three_rounds_of_bfloat16_are_pytorchs);
    tcase_add_test(rounds, bfloat16_changes_the_losses_a_little);
    tcase_add_test(rounds, rounds_without_updates_are_seen);
    suite_add_tcase(suite, rounds);
    return suite_run(suite);
}
