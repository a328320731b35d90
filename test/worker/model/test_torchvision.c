/* A ResNet's weights as files: to torchvision's model and back (test/golden/torchvision_files.py is the other
 * end), and into models that they do not fit. Ours is a checkpoint's. */
#include "kernels/safetensors/safetensors.h"
#include "test/kernels/params/model_file.h"
#include "test/kernels/params/reorder.h"
#include "test/kernels/safetensors/safetensors_memory.h"
#include "test/process.h"
#include "test/training.h"
#include "test/worker/model/resnet_statistics.h"
#include "test/workplace.h"
#include "worker/checkpoint/checkpoint.h"
#include "worker/data_parallel/shards.h"
#include "worker/model/resnet.h"

#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { CLASSES = 30, IMAGES = 4, SIDE = 64, STATE = 99, BATCHES = 3, THEIR_BATCHES = 5 };
enum { WIDTH = 64, NARROW = 8 }; /* torchvision's, and one where the numbers do not matter */
enum { LOGITS = IMAGES * CLASSES, SKIPPED = 77, ENTRIES_MAX = 320 };

static struct backend *backend;
static struct params *params;
static struct resnet *resnet;
static struct tape *tape;
static char folder[64], path[96];

static void open_model(uint32_t depth, uint32_t classes, uint32_t width, uint64_t seed)
{
    const struct resnet_config config = {depth, 3, classes, width};
    struct error error = {0};
    training_ok(params_new(&params, backend, &error), &error);
    training_ok(resnet_new(&resnet, &config, params, &error), &error);
    training_ok(params_build(params, seed, &error), &error);
}

static void close_model(void)
{
    resnet_free(resnet);
    params_free(params);
}

static void setup(void)
{
    struct error error = {0};
    folder_make(folder);
    backend = training_backend(0);
    training_ok(tape_new(&tape, backend, &error), &error);
}

static void teardown(void)
{
    tape_free(tape);
    backend_close(backend);
    folder_remove(folder);
}

static const char *in_folder(const char *name)
{
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static struct variable *forward(enum tape_mode mode, bool training_mode, uint64_t state)
{
    float *images = training_numbers(&state, (size_t)IMAGES * 3 * SIDE * SIDE, 1);
    tape_begin(tape, mode, NULL);
    struct variable *x = tape_input(tape, SHAPE4(IMAGES, 3, SIDE, SIDE), DTYPE_F32, "images", images);
    free(images);
    return resnet_forward(resnet, tape, x, training_mode);
}

static void evaluate(double logits[LOGITS])
{
    struct error error = {0};
    tape_read(tape, forward(TAPE_INFER, false, STATE), DTYPE_F64, logits);
    training_ok(tape_finish(tape, &error), &error);
}

/* ---- there and back ---- */

/* The model of a checkpoint that two servers wrote, out of the layouts that training wants. */
static void write_checkpoint(void)
{
    const struct checkpoint_counters counters = {.update = BATCHES, .trainers = 1};
    struct params_range shards[2];
    struct shard cut[2];
    const struct checkpoint_values first = {.params = params, .shards = shards, .servers = 2};
    const struct checkpoint_values second = {.params = params, .shards = shards, .server = 1, .servers = 2};
    struct error error = {0};
    training_ok(shards_of(cut, params, 2, &error), &error);
    for (uint32_t i = 0; i < 2; i++)
        shards[i] = (struct params_range){cut[i].entry_first, cut[i].entry_end, i == 0};
    reorder_params(params, NULL, 0);
    ck_assert_ptr_nonnull(params_find(params, "layer1.0.conv2.weight")->tensor.layout);
    training_ok(checkpoint_begin(path_of(folder), BATCHES, &error), &error);
    training_ok(checkpoint_write_shard(path_of(folder), BATCHES, &second, &error), &error);
    training_ok(checkpoint_write(path_of(folder), &counters, &(struct run_place){0}, &first, NULL, &error),
                &error);
    training_ok(checkpoint_publish(path_of(folder), BATCHES, 1, &error), &error);
    char written[160];
    snprintf(written, sizeof written, "%.63s/checkpoints/00000003/model.safetensors", folder);
    ck_assert_int_eq(rename(written, in_folder("ours.safetensors")), 0);
}

/* A model whose statistics have moved; saved, with what it answers. */
static void write_ours(void)
{
    double logits[LOGITS];
    struct error error = {0};
    open_model(50, CLASSES, WIDTH, 3);
    for (uint64_t batch = 1; batch <= BATCHES; batch++) {
        forward(TAPE_TRAIN, true, batch);
        training_ok(resnet_statistics_move(resnet, tape, params, &error), &error);
        training_ok(tape_finish(tape, &error), &error);
    }
    evaluate(logits);
    write_checkpoint();
    FILE *file = fopen(in_folder("ours.logits"), "w");
    ck_assert_ptr_nonnull(file);
    for (uint32_t i = 0; i < LOGITS; i++)
        fprintf(file, "%.10g\n", logits[i]);
    ck_assert_int_eq(fclose(file), 0);
    close_model();
}

static void compare_theirs(void)
{
    double logits[LOGITS], expected, largest = 0, worst = 0;
    struct error error = {0};
    open_model(50, CLASSES, WIDTH, 4);
    const struct checkpoint_values part = {.params = params};
    training_ok(checkpoint_load_model(path_of(in_folder("theirs.safetensors")), &part, &error), &error);
    ck_assert_int_eq(params_find(params, "layer4.2.bn3.num_batches_tracked")->counter, THEIR_BATCHES);
    evaluate(logits);
    FILE *file = fopen(in_folder("theirs.logits"), "r");
    ck_assert_ptr_nonnull(file);
    for (uint32_t i = 0; i < LOGITS; i++) {
        ck_assert_int_eq(fscanf(file, "%lf", &expected), 1);
        ck_assert(isfinite(logits[i]));
        largest = fmax(largest, fabs(expected));
        worst = fmax(worst, fabs(logits[i] - expected));
    }
    fclose(file);
    ck_assert_msg(worst <= 1e-4 * largest, "logits differ by %g, the largest is %g", worst, largest);
    close_model();
}

/* Where safetensors is, or else the one that says what is missing. */
static const char *python(void)
{
    static const char venv[] = "build/python-venv/bin/python";
    return access(venv, X_OK) == 0 ? venv : "/usr/bin/python3";
}

/* ResNet-50's weights through Python and back take the sanitizers most of a minute; what they would see in it
 * test_checkpoint and test_params_file show them. */
static bool left_out(void)
{
#if defined __SANITIZE_ADDRESS__ || defined __SANITIZE_THREAD__
    printf("skipped under a sanitizer: ResNet-50's weights to torchvision and back\n");
    return true;
#else
    return false;
#endif
}

START_TEST(weights_go_to_torchvision_and_back)
{
    if (left_out())
        return;
    if (access(python(), X_OK) != 0) {
        printf("skipped: there is no %s (scripts/deps python installs it)\n", python());
        return;
    }
    const char *argv[] = {python(), "test/golden/torchvision_files.py", folder, NULL};
    struct process process;
    write_ours();
    const int code = process_run(&process, folder, argv, NULL, 280);
    char *out = process_out(&process), *err = process_err(&process);
    ck_assert_msg(code == 0 || code == SKIPPED, "%s%s", out, err);
    if (code == SKIPPED)
        printf("%s", out);
    else
        compare_theirs();
    free(out);
    free(err);
}
END_TEST

/* ---- files that do not fit ---- */

/* Loads what was saved under `name` into the present model, which must stay as it was. */
static void refused(const char *name, const char *const expected[2])
{
    struct error error = {0};
    double before = 0, after = 0;
    training_ok(backend_square_sum(backend, params_slab(params), &before, &error), &error);
    ck_assert_int_eq(model_file_load(params, in_folder(name), &error), STATUS_INVALID);
    for (int i = 0; i < 2; i++)
        ck_assert_msg(strstr(error.text, expected[i]) != NULL, "\"%s\" does not say \"%s\"", error.text,
                      expected[i]);
    training_ok(backend_square_sum(backend, params_slab(params), &after, &error), &error);
    ck_assert_double_eq(before, after);
}

static void save(const char *name, uint32_t depth, uint32_t classes)
{
    struct error error = {0};
    open_model(depth, classes, NARROW, 1);
    training_ok(model_file_save(params, in_folder(name), &error), &error);
    close_model();
}

/* Writes the first file's entries again: without entry `left_out`, or with one more. */
static void rewrite(const char *from, const char *to, const char *left_out)
{
    static const float value = 1;
    struct safetensors_entry entries[ENTRIES_MAX];
    const void *values[ENTRIES_MAX];
    struct safetensors *file = NULL;
    struct error error = {0};
    size_t count = 0;
    char *bytes = file_read(in_folder(from));
    training_ok(safetensors_open(&file, path_of(path), &error), &error);
    for (size_t i = 0; i < file->count; i++) {
        entries[count] = file->entries[i];
        values[count] = bytes + entries[count].offset;
        count += left_out == NULL || strcmp(entries[count].name, left_out) != 0;
    }
    if (left_out == NULL) {
        values[count] = &value;
        entries[count++] = (struct safetensors_entry){
            .name = "fc2.bias", .dtype = "F32", .rank = 1, .size = {1}, .bytes = sizeof value};
    }
    ck_assert(safetensors_memory_write(in_folder(to), entries, values, count));
    safetensors_close(file);
    free(bytes);
}

START_TEST(a_file_that_does_not_fit_is_refused_by_name)
{
    save("wide", 18, 10);
    open_model(18, 30, NARROW, 2);
    refused("wide", (const char *const[2]){"fc.weight", "10x64"});
    refused("wide", (const char *const[2]){"fc.weight", "30x64"});
    close_model();
    save("whole", 18, 30);
    rewrite("whole", "missing", "layer3.1.bn2.num_batches_tracked");
    rewrite("whole", "more", NULL);
    open_model(18, 30, NARROW, 2);
    refused("missing", (const char *const[2]){"layer3.1.bn2.num_batches_tracked", "missing"});
    refused("more", (const char *const[2]){"fc2.bias", "more"});
    close_model();
    open_model(50, 30, NARROW, 2);
    refused("whole", (const char *const[2]){"layer1.0.conv1.weight", "8x8x1x1"});
    refused("whole", (const char *const[2]){"layer1.0.conv1.weight", "8x8x3x3"});
    close_model();
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("torchvision");
    TCase *files = tcase_create("files");
    tcase_set_timeout(files, 300);
    tcase_add_checked_fixture(files, setup, teardown);
    tcase_add_test(files, weights_go_to_torchvision_and_back);
    tcase_add_test(files, a_file_that_does_not_fit_is_refused_by_name);
    suite_add_tcase(suite, files);
    return suite_run(suite);
}
