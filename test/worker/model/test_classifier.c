/* The classifier: its losses and evaluation held to the same computed here, its layouts to those that a step
 * asks for, at no cost in memory. */
#include "kernels/params/gradients.h"
#include "test/kernels/params/reorder.h"
#include "test/oracle/ref.h"
#include "test/training.h"
#include "test/workplace.h"
#include "worker/model/classifier.h"
#include "worker/model/resnet.h"

#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BATCH = 3, SIZE = 16, WIDTH = 8, CLASSES = 4, SEED = 5 };

static struct job job;
static struct backend *backend;
static struct params *params;
static struct classifier *classifier;
static struct tape *tape;
static struct error error;
static float *images;
static int32_t labels[BATCH] = {2, 0, 1};
static struct batch batch;

#define OK(call) training_ok(call, &error)

static void open_on(struct backend *on, int loss)
{
    uint64_t state = 3;
    backend = on;
    job = (struct job){.kind = JOB_PARAMETER_SERVER,
                       .loss = {.name = loss},
                       .model = {.name = JOB_MODEL_RESNET18, .classes = CLASSES, .width = WIDTH},
                       .trainers = {.count = 1, .batch = BATCH},
                       .data = {.size = SIZE, .channels = 3},
                       .evaluation = {.batch = BATCH + 2}};
    images = training_numbers(&state, (size_t)BATCH * 3 * SIZE * SIZE, 1);
    batch = (struct batch){.samples = BATCH, .images = images, .labels = labels};
    OK(params_new(&params, backend, &error));
    OK(tape_new(&tape, backend, &error));
    OK(classifier_new(&classifier, &job, params, &error));
}

static struct backend *ref(void)
{
    struct backend *opened = NULL;
    OK(backend_open(&opened, &ref_ops, &(struct backend_settings){.threads = 1}, &error));
    return opened;
}

static void close_all(void)
{
    tape_free(tape);
    classifier_free(classifier);
    params_free(params);
    backend_close(backend);
    free(images);
}

/* ---- losses ---- */

/* The loss of one sample, by its definition. */
static double loss_of(const double *logits, uint32_t label)
{
    double sum = 0;
    for (uint32_t c = 0; c < CLASSES; c++)
        sum += job.loss.name == JOB_LOSS_MSE ? pow(logits[c] - (c == label), 2) / CLASSES : exp(logits[c]);
    return job.loss.name == JOB_LOSS_MSE ? sum : log(sum / exp(logits[label]));
}

/* What the same network, registered by itself, makes of the batch. */
static void logits_of_twin(bool training, double logits[BATCH][CLASSES])
{
    const struct resnet_config config = {18, 3, CLASSES, WIDTH};
    struct params *twin;
    struct resnet *resnet;
    OK(params_new(&twin, backend, &error));
    OK(resnet_new(&resnet, &config, twin, &error));
    OK(params_build(twin, SEED, &error));
    tape_begin(tape, TAPE_INFER, NULL);
    struct variable *x = tape_input(tape, SHAPE4(BATCH, 3, SIZE, SIZE), DTYPE_F32, "images", images);
    tape_read(tape, resnet_forward(resnet, tape, x, training), DTYPE_F64, logits);
    OK(tape_finish(tape, &error));
    resnet_free(resnet);
    params_free(twin);
}

START_TEST(the_loss_is_the_mean_over_the_batch)
{
    static int32_t others[BATCH] = {3, 3, 0};
    double logits[BATCH][CLASSES];
    open_on(ref(), _i == 0 ? JOB_LOSS_MSE : JOB_LOSS_CROSS_ENTROPY);
    OK(params_build(params, SEED, &error));
    logits_of_twin(true, logits);
    for (int again = 0; again < 2; again++) { // the second time nothing of the first labels is left
        double expected = 0, got = 0;
        batch.labels = again ? others : labels;
        for (uint32_t i = 0; i < BATCH; i++)
            expected += loss_of(logits[i], (uint32_t)batch.labels[i]) / BATCH;
        tape_begin(tape, TAPE_TRAIN, NULL);
        tape_loss(tape, classifier_loss(classifier, tape, &batch), &got);
        OK(tape_finish(tape, &error));
        ck_assert_double_eq_tol(got, expected, 1e-12);
        ck_assert_double_gt(got, 1e-3);
    }
    close_all();
}
END_TEST

/* ---- evaluation ---- */

START_TEST(an_evaluation_sums_up_samples)
{
    double logits[BATCH][CLASSES], expected = 1, got = 1;
    uint64_t correct = 7, right = 7;
    open_on(ref(), _i == 0 ? JOB_LOSS_MSE : JOB_LOSS_CROSS_ENTROPY);
    OK(params_build(params, SEED, &error));
    logits_of_twin(false, logits);
    for (uint32_t i = 0; i < BATCH; i++) {
        const double own = logits[i][labels[i]];
        expected += loss_of(logits[i], (uint32_t)labels[i]);
        right += own >= logits[i][0] && own >= logits[i][1] && own >= logits[i][2] && own >= logits[i][3];
    }
    OK(classifier_evaluate(classifier, tape, &batch, &got, &correct, &error));
    ck_assert_double_eq_tol(got, expected, 1e-12);
    ck_assert_uint_eq(correct, right);
    batch.samples = 1; // the last batch of a part is shorter
    OK(classifier_evaluate(classifier, tape, &batch, &got, &correct, &error));
    ck_assert_double_eq_tol(got, expected + loss_of(logits[0], (uint32_t)labels[0]), 1e-12);
    close_all();
}
END_TEST

/* Without a weight behind them the logits are the bias. */
static uint64_t correct_by_bias(double a, double b, double c, double d, double *loss)
{
    const double bias[CLASSES] = {a, b, c, d};
    uint64_t correct = 0;
    OK(backend_fill(backend, &params_find(params, "fc.weight")->tensor, 0, &error));
    OK(params_write(params, params_find(params, "fc.bias"), DTYPE_F64, bias, &error));
    *loss = 0;
    OK(classifier_evaluate(classifier, tape, &batch, loss, &correct, &error));
    return correct;
}

START_TEST(the_first_of_equal_logits_counts)
{
    double loss;
    open_on(ref(), JOB_LOSS_CROSS_ENTROPY); // the labels are 2, 0, 1
    OK(params_build(params, SEED, &error));
    ck_assert_uint_eq(correct_by_bias(0, 0, 5, 0, &loss), 1);
    ck_assert_uint_eq(correct_by_bias(0, 0, 0, 5, &loss), 0);
    ck_assert_uint_eq(correct_by_bias(1, 1, 1, 1, &loss), 1);
    ck_assert_double_eq_tol(loss, BATCH * log(CLASSES), 1e-12);
    ck_assert_uint_eq(correct_by_bias(0, 5, 5, 0, &loss), 1); // class 1; class 2 is second
    correct_by_bias(0, 1000, 0, 0, &loss);
    ck_assert_double_eq_tol(loss, 2000, 1e-9); // no exponential runs over
    ck_assert_uint_eq(correct_by_bias(0, (double)NAN, 5, 0, &loss), 0);
    ck_assert(isnan(loss));
    close_all();
}
END_TEST

/* ---- statistics ---- */

START_TEST(statistics_stand_where_the_running_ones_do)
{
    open_on(ref(), JOB_LOSS_MSE);
    OK(params_build(params, SEED, &error));
    const size_t count = params_buffer_elements(params);
    float *statistics = malloc(count * sizeof *statistics);
    ck_assert_ptr_nonnull(statistics);
    for (size_t i = 0; i < count; i++)
        statistics[i] = -77;
    struct gradients *gradients;
    OK(gradients_new(&gradients, params, &error));
    tape_begin(tape, TAPE_TRAIN, gradients);
    tape_backward(tape, classifier_loss(classifier, tape, &batch));
    OK(classifier_statistics(classifier, tape, statistics, &error));
    OK(tape_finish(tape, &error));
    size_t written = 0, variances = 0;
    for (uint32_t i = 0; i < params_count(params); i++) {
        const struct parameter *entry = params_at(params, i);
        if (entry->kind != PARAMETER_BUFFER)
            continue;
        for (size_t at = 0; at < shape_elements(&entry->tensor.shape); at++, written++) {
            const float value = statistics[entry->offset + at];
            ck_assert(isfinite(value) && value != -77);
            variances += strstr(entry->name, "running_var") != NULL && value > 0;
        }
    }
    ck_assert_uint_eq(variances,
                      written / 2); // no mean, which may be negative, stands where a variance should
    size_t gaps = 0;
    for (size_t i = 0; i < count; i++)
        gaps += statistics[i] == 0;
    ck_assert_uint_eq(gaps, count - written);
    gradients_free(gradients);
    free(statistics);
    close_all();
}
END_TEST

/* ---- layouts ---- */

static void step_on(struct gradients *gradients)
{
    tape_begin(tape, TAPE_TRAIN, gradients);
    tape_backward(tape, classifier_loss(classifier, tape, &batch));
    OK(tape_finish(tape, &error));
}

/* The gradient's bytes after a step of params that are reordered after they have values. Freed by the caller.
 */
static void *reordered_step(uint64_t *fingerprint)
{
    struct gradients *gradients;
    open_on(training_backend(0), JOB_LOSS_CROSS_ENTROPY);
    OK(params_build(params, SEED, &error));
    OK(gradients_new(&gradients, params, &error));
    step_on(gradients);
    reorder_params(params, NULL, 0);
    step_on(gradients);
    const struct tensor *slab = gradients_slab(gradients);
    void *bytes = malloc(slab->bytes);
    ck_assert_ptr_nonnull(bytes);
    memcpy(bytes, slab->data, slab->bytes);
    *fingerprint = params_fingerprint(params);
    gradients_free(gradients);
    close_all();
    return bytes;
}

START_TEST(layouts_are_those_of_a_step)
{
    uint64_t fingerprint;
    void *expected = reordered_step(&fingerprint);
    struct gradients *gradients;
    open_on(training_backend(0), JOB_LOSS_CROSS_ENTROPY);
    OK(params_lay_out(params, &error));
    OK(gradients_new_unplaced(&gradients, params, &error));
    const uint64_t canonical = params_fingerprint(params);
    OK(classifier_reorder(classifier, tape, &error));
    ck_assert_uint_eq(params_fingerprint(params), fingerprint);
    ck_assert_uint_ne(canonical, fingerprint);
    for (uint32_t i = 0; i < params_count(params); i++)
        ck_assert_ptr_null(params_at(params, i)->tensor.data);
    const size_t bytes = params_elements(params) * sizeof(float);
    const size_t buffers = params_buffer_elements(params) * sizeof(float);
    char *memory = aligned_alloc(64, 2 * bytes + buffers);
    ck_assert_ptr_nonnull(memory);
    memset(memory, 0, 2 * bytes + buffers);
    params_place(params, 0, params_count(params), memory);
    params_place_buffers(params, memory + 2 * bytes);
    gradients_place(gradients, memory + bytes);
    OK(params_begin(params, SEED, 0, params_count(params), &error));
    step_on(gradients);
    ck_assert_mem_eq(memory + bytes, expected, bytes);
    gradients_free(gradients);
    close_all();
    free(memory);
    free(expected);
}
END_TEST

/* A model of the process's own: the same layouts, in zeros, and nothing of it stays behind. */
START_TEST(a_model_of_ones_own_is_reordered_too)
{
    uint64_t fingerprint;
    free(reordered_step(&fingerprint));
    open_on(training_backend(0), JOB_LOSS_CROSS_ENTROPY);
    OK(classifier_build(classifier, tape, &error));
    ck_assert_uint_eq(params_fingerprint(params), fingerprint);
    const float *slab = params_slab(params)->data;
    const float *buffers = params_find(params, "bn1.running_mean")->tensor.data; // the first buffer
    for (size_t i = 0; i < params_elements(params); i++)
        ck_assert(slab[i] == 0);
    for (size_t i = 0; i < params_buffer_elements(params); i++)
        ck_assert(buffers[i] == 0);
    classifier_free(classifier);
    classifier = NULL;
    ck_assert_ptr_null(params_at(params, 0)->tensor.data);
    close_all();
}
END_TEST

/* Kilobytes of memory under the mapping that `address` is in, as the kernel counts them. */
static long resident_kb(const void *address)
{
    char line[512];
    bool inside = false;
    long kb = -1;
    FILE *maps = fopen("/proc/self/smaps", "re");
    ck_assert_ptr_nonnull(maps);
    while (kb < 0 && fgets(line, sizeof line, maps) != NULL) {
        unsigned long begin, end;
        if (sscanf(line, "%lx-%lx ", &begin, &end) == 2)
            inside = (unsigned long)address >= begin && (unsigned long)address < end;
        else if (inside && sscanf(line, "Rss: %ld kB", &kb) != 1)
            kb = -1;
    }
    fclose(maps);
    return kb;
}

static long largest_kb;
static int looks;

static void look(void *context)
{
    (void)context;
    const void *last = params_at(params, params_count(params) - 1)->tensor.data; // read last
    const long kb = resident_kb(last);
    largest_kb = kb > largest_kb ? kb : largest_kb;
    looks++;
}

START_TEST(reordering_costs_no_memory)
{
    open_on(training_backend(0), JOB_LOSS_CROSS_ENTROPY);
    OK(params_lay_out(params, &error));
    largest_kb = -1;
    looks = 0;
    tape_on_progress(tape, look, NULL);
    OK(classifier_reorder(classifier, tape, &error));
    ck_assert_int_gt(looks, 50);
    ck_assert_int_eq(largest_kb, 0);
    close_all();
}
END_TEST

/* ---- what it refuses ---- */

START_TEST(a_model_that_cannot_be_is_named)
{
    struct classifier *other;
    open_on(ref(), JOB_LOSS_MSE);
    ck_assert_int_eq(classifier_new(&other, &job, params, &error), STATUS_INVALID);
    ck_assert_msg(strstr(error.text, "conv1.weight") != NULL, "%s", error.text);
    close_all();
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("classifier");
    TCase *numbers = tcase_create("numbers");
    tcase_add_loop_test(numbers, the_loss_is_the_mean_over_the_batch, 0, 2);
    tcase_add_loop_test(numbers, an_evaluation_sums_up_samples, 0, 2);
    tcase_add_test(numbers, the_first_of_equal_logits_counts);
    tcase_add_test(numbers, statistics_stand_where_the_running_ones_do);
    tcase_set_timeout(numbers, 60);
    suite_add_tcase(suite, numbers);
    TCase *layouts = tcase_create("layouts");
    tcase_add_test(layouts, layouts_are_those_of_a_step);
    tcase_add_test(layouts, a_model_of_ones_own_is_reordered_too);
    tcase_add_test(layouts, reordering_costs_no_memory);
    tcase_add_test(layouts, a_model_that_cannot_be_is_named);
    tcase_set_timeout(layouts, 60);
    suite_add_tcase(suite, layouts);
    return suite_run(suite);
}
