/* Evaluation: its shares make the whole, its data is opened once while the worker beats, and the command
 * computes from a file the same numbers as the trainers from memory. */
#include "test/kernels/params/model_file.h"
#include "test/process.h"
#include "test/worker/data/data_fixture.h"
#include "test/workplace.h"
#include "worker/data_parallel/evaluation.h"
#include "worker/device.h"

#include <check.h>
#include <dirent.h>
#include <dlfcn.h>
#include <stdatomic.h>
#include <unistd.h>

enum { HELD_OUT = 11, TRAINERS = 3 };

static struct error error;
static struct backend *backend;
static struct params *params;
static struct tape *tape;
static struct classifier *classifier;

static void ok(enum status status)
{
    ck_assert_msg(status == STATUS_OK, "%s: %s", status_name(status), error.text);
}

/* A model as a trainer has it. */
static void setup(void)
{
    data_open();
    idx_write(24, HELD_OUT);
    data.job.device = JOB_DEVICE_CPU;
    data.job.model.width = 8;
    data.job.loss.name = JOB_LOSS_CROSS_ENTROPY;
    data.job.trainers.count = TRAINERS;
    data.job.trainers.has_threads = true;
    data.job.trainers.threads = 1;
    data.job.data.size = 16;
    data.job.data.fit = JOB_FIT_RESIZE;
    data.job.evaluation.batch = 2;
    ok(device_open(&backend, &data.job, 1, false, &error));
    ok(params_new(&params, backend, &error));
    ok(tape_new(&tape, backend, &error));
    ok(classifier_new(&classifier, &data.job, params, &error));
    ok(classifier_build(classifier, tape, &error));
    ok(params_begin(params, 7, 0, params_count(params), &error));
}

static void teardown(void)
{
    tape_free(tape);
    classifier_free(classifier);
    params_free(params);
    backend_close(backend);
    data_close();
}

static struct evaluator evaluator_of(uint32_t shares)
{
    data.job.trainers.count = shares;
    return (struct evaluator){.job = &data.job, .classifier = classifier, .tape = tape};
}

static struct evaluation run_share(struct evaluator *evaluator, uint32_t share)
{
    struct evaluation sums = {.loss_sum = 5, .correct = 5, .samples = 5};
    ok(evaluator_run(evaluator, share, &sums, &error));
    return sums;
}

/* Each share sums in an order of its own, so the whole agrees but for rounding. */
START_TEST(shares_make_the_whole)
{
    struct evaluator one = evaluator_of(1);
    struct evaluation whole = run_share(&one, 0), sum = {0};
    ck_assert_uint_eq(whole.samples, HELD_OUT);
    ck_assert(whole.loss_sum > HELD_OUT * 0.5);
    evaluator_close(&one);
    struct evaluator evaluator = evaluator_of(TRAINERS);
    for (uint32_t share = 0; share < TRAINERS; share++) {
        const struct evaluation of_share = run_share(&evaluator, share);
        ck_assert_uint_eq(of_share.samples, share == 0 ? 3 : 4); // [11 q / 3, 11 (q + 1) / 3)
        sum.loss_sum += of_share.loss_sum;
        sum.correct += of_share.correct;
        sum.samples += of_share.samples;
    }
    evaluator_close(&evaluator);
    ck_assert_uint_eq(sum.samples, HELD_OUT);
    ck_assert_uint_eq(sum.correct, whole.correct);
    ck_assert_double_eq_tol(sum.loss_sum, whole.loss_sum, 1e-4);
}
END_TEST

static void count(void *context)
{
    ++*(atomic_int *)context;
}

START_TEST(progress_is_called_between_batches)
{
    atomic_int calls = 0;
    struct evaluator evaluator = evaluator_of(1);
    evaluator.progress = count;
    evaluator.progress_context = &calls;
    run_share(&evaluator, 0);
    ck_assert_int_ge(calls, HELD_OUT / 2 + 1);
    evaluator_close(&evaluator);
}
END_TEST

/* ---- the data's opening ---- */

enum { SLOW_CALLS = 3 };

static bool disk_is_slow,
    was_alive; /* opening waits for SLOW_CALLS calls of progress, and whether they came */
static atomic_int progress_calls;

int scandir(const char *restrict folder, struct dirent ***restrict list, int (*wanted)(const struct dirent *),
            int (*compare)(const struct dirent **, const struct dirent **))
{
    int (*real)(const char *, struct dirent ***, int (*)(const struct dirent *),
                int (*)(const struct dirent **, const struct dirent **)) = NULL;
    void *symbol = dlsym(RTLD_NEXT, "scandir");
    memcpy(&real, &symbol, sizeof real);
    for (int i = 0; i < 200 && disk_is_slow && progress_calls < SLOW_CALLS; i++)
        sleep_ms(10);
    was_alive = progress_calls >= SLOW_CALLS;
    return real(folder, list, wanted, compare);
}

static void make_class_folders(void)
{
    data_make_folder("train");
    data_make_folder("train/one");
    data_make_folder("test");
    data_make_folder("test/one");
    data_write("train/one/1.png", "no image", 8);
    data_write("test/one/1.png", "no image", 8);
    data_write("test/one/2.png", "no image", 8);
    data.job.data.kind = JOB_DATA_FOLDER;
}

/* A worker that does not beat for long is killed. */
START_TEST(progress_is_called_while_the_data_is_opened)
{
    struct evaluator evaluator = evaluator_of(TRAINERS);
    make_class_folders();
    evaluator.progress = count;
    evaluator.progress_context = &progress_calls;
    disk_is_slow = true;
    ck_assert_uint_eq(run_share(&evaluator, 0).samples, 0); // none of two
    ck_assert(was_alive);
    evaluator_close(&evaluator);
}
END_TEST

START_TEST(the_data_is_opened_once)
{
    struct evaluator evaluator = evaluator_of(TRAINERS);
    const struct evaluation first = run_share(&evaluator, 1);
    ck_assert_int_eq(unlink(data_path("t10k-images-idx3-ubyte")), 0);
    const struct evaluation again = run_share(&evaluator, 1);
    ck_assert(first.loss_sum == again.loss_sum && first.correct == again.correct);
    ck_assert_uint_eq(run_share(&evaluator, 2).samples, 4);
    evaluator_close(&evaluator);
    ck_assert_int_eq(evaluator_run(&evaluator, 1, &(struct evaluation){0}, &error), STATUS_NOT_FOUND);
    ck_assert_ptr_nonnull(strstr(error.text, "t10k-images-idx3-ubyte"));
}
END_TEST

/* From a file, by the command, with memory and layouts of its own: the same bits. */
START_TEST(the_command_finds_what_the_trainers_found)
{
    struct evaluation expected = {0}, sums = {.samples = 9};
    struct job job = data.job;
    ok(model_file_save(params, data_path("model.safetensors"), &error));
    struct evaluator evaluator = evaluator_of(TRAINERS);
    for (uint32_t share = 0; share < TRAINERS; share++) {
        const struct evaluation of_share = run_share(&evaluator, share);
        expected.loss_sum += of_share.loss_sum;
        expected.correct += of_share.correct;
    }
    evaluator_close(&evaluator);
    ok(evaluation_run(&sums, data_path("model.safetensors"), &job, &error));
    ck_assert_uint_eq(sums.samples, HELD_OUT);
    ck_assert_uint_eq(sums.correct, expected.correct);
    ck_assert(sums.loss_sum == expected.loss_sum);
    ok(params_write(params, params_find(params, "fc.bias"), DTYPE_F32,
                    (const float[10]){3, 1, 4, 1, 5, 9, 2, 6, 5, 3}, &error));
    ok(model_file_save(params, data_path("model.safetensors"), &error));
    ok(evaluation_run(&sums, data_path("model.safetensors"), &job, &error));
    ck_assert(sums.loss_sum != expected.loss_sum); // it is the file's model that is looked at
}
END_TEST

static void refuse(enum status expected, const char *path, const char *words)
{
    struct evaluation sums;
    error = (struct error){0};
    ck_assert_int_eq(evaluation_run(&sums, path, &data.job, &error), expected);
    ck_assert_msg(strstr(error.text, words) != NULL, "\"%s\" is not in: %s", words, error.text);
}

START_TEST(what_cannot_be_evaluated_is_told)
{
    refuse(STATUS_NOT_FOUND, data_path("none.safetensors"), "none.safetensors");
    ok(model_file_save(params, data_path("model.safetensors"), &error));
    data.job.model.width = 16;
    refuse(STATUS_INVALID, data_path("model.safetensors"), "conv1.weight");
    data.job.model.width = 8;
    data.job.data.kind = JOB_DATA_SYNTHETIC;
    data.job.data.path[0] = '\0';
    refuse(STATUS_INVALID, data_path("model.safetensors"), "no held-out samples");
}
END_TEST

/* So few of them that no share has enough bad ones in a row to give up. */
START_TEST(held_out_images_of_which_none_can_be_decoded_are_told)
{
    ok(model_file_save(params, data_path("model.safetensors"), &error));
    make_class_folders();
    refuse(STATUS_CORRUPT, data_path("model.safetensors"), "none of the held-out samples can be decoded");
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("evaluation");
    TCase *all = tcase_create("all");
    tcase_add_checked_fixture(all, setup, teardown);
    tcase_add_test(all, shares_make_the_whole);
    tcase_add_test(all, progress_is_called_between_batches);
    tcase_add_test(all, progress_is_called_while_the_data_is_opened);
    tcase_add_test(all, the_data_is_opened_once);
    tcase_add_test(all, the_command_finds_what_the_trainers_found);
    tcase_add_test(all, what_cannot_be_evaluated_is_told);
    tcase_add_test(all, held_out_images_of_which_none_can_be_decoded_are_told);
    tcase_set_timeout(all, 60);
    suite_add_tcase(suite, all);
    return suite_run(suite);
}
