/* The ResNets: three steps of training held to PyTorch's (test/golden/resnet.py), and the inputs that the
 * model accepts and refuses. */
#include "test/training.h"
#include "test/worker/model/resnet_statistics.h"
#include "test/workplace.h"
#include "worker/model/resnet.h"

#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BATCH = 8, SIDE = 32, CLASSES = 30, STEPS = 3 };

/* ---- against PyTorch ---- */

static const struct golden_case {
    const char *record;
    uint32_t depth, width;
    uint64_t seed; /* of the generator */
    double momentum;
    bool cross_entropy; /* else the mean squared error against one-hot labels */
    const char *last;   /* how the name of a block's last batch norm's weight ends */
} golden_cases[] = {
    {"resnet18", 18, 8, 14, 0.9, true, ".bn2.weight"},
    {"resnet50", 50, 4, 58, 0.0, false, ".bn3.weight"},
};
enum { GOLDEN_RUNS = 2 * TRAINING_PLUGINS };

static struct training training;
static struct resnet *resnet;
static struct tape *tape;
static struct golden *golden;
static const struct golden_case *golden_case;
static float *images, *one_hot;
static int32_t *labels;

static float scale(const struct parameter *parameter, bool *constant)
{
    return training_resnet_scale(parameter, golden_case->last, constant);
}

static void draw_data(uint64_t *state)
{
    images = training_numbers(state, (size_t)BATCH * 3 * SIDE * SIDE, 1);
    labels = training_indices(state, BATCH, CLASSES);
    one_hot = calloc((size_t)BATCH * CLASSES, sizeof *one_hot);
    ck_assert_ptr_nonnull(one_hot);
    for (uint32_t i = 0; i < BATCH; i++)
        one_hot[i * CLASSES + (uint32_t)labels[i]] = 1;
}

/* Run `number` of GOLDEN_RUNS, with the parameters drawn. False, with a line that says so, where its backend
 * has no device. */
static bool golden_run_open(int number)
{
    struct backend *backend = training_backend(number % TRAINING_PLUGINS);
    if (backend == NULL)
        return false;
    golden_case = &golden_cases[number / TRAINING_PLUGINS];
    const struct resnet_config config = {golden_case->depth, 3, CLASSES, golden_case->width};
    const struct optimizer_settings sgd = {.kind = OPTIMIZER_SGD, .sgd = {0.01, golden_case->momentum}};
    struct error error = {0};
    uint64_t state = golden_case->seed;
    training_init(&training, backend, 1);
    training_ok(resnet_new(&resnet, &config, training.params[0], &error), &error);
    training_build(&training, &sgd);
    training_take(&training, 0, 0, UINT32_MAX);
    training_draw(&training, &state, scale);
    draw_data(&state);
    golden = golden_open(golden_case->record, state, backend->ops->dtype == DTYPE_F64);
    training_ok(tape_new(&tape, backend, &error), &error);
    return true;
}

static void golden_run_close(void)
{
    tape_free(tape);
    golden_close(golden);
    free(images);
    free(labels);
    free(one_hot);
    resnet_free(resnet);
    training_fini(&training);
    backend_close(training.backend);
}

static void golden_step(uint32_t step, bool update)
{
    struct error error = {0};
    double value = NAN;
    tape_begin(tape, TAPE_TRAIN, training.gradients[0]);
    struct variable *x = tape_input(tape, SHAPE4(BATCH, 3, SIDE, SIDE), DTYPE_F32, "images", images);
    struct variable *logits = resnet_forward(resnet, tape, x, true);
    struct variable *loss =
        golden_case->cross_entropy
            ? tape_cross_entropy(tape, logits, tape_input(tape, SHAPE1(BATCH), DTYPE_I32, "labels", labels))
            : tape_mse(tape, logits, tape_input(tape, SHAPE2(BATCH, CLASSES), DTYPE_F32, "labels", one_hot));
    training_ok(tape_loss(tape, loss, &value), &(struct error){0});
    training_output(tape, golden, step, "logits", logits);
    golden_check(golden, step, GOLDEN_LOSS, "loss", &value, 1);
    tape_backward(tape, loss);
    training_ok(resnet_statistics_move(resnet, tape, training.params[0], &error), &error);
    training_ok(tape_finish(tape, &error), &error);
    training_step(&training, golden, step, update);
}

START_TEST(it_trains_as_torchvisions_does)
{
    if (!golden_run_open(_i))
        return;
    for (uint32_t step = 1; step <= STEPS; step++)
        golden_step(step, true);
    training_statistics(&training, golden, STEPS);
    golden_assert_all(golden);
    ck_assert_int_eq(params_find(training.params[0], "layer4.1.bn2.num_batches_tracked")->counter, STEPS);
    golden_run_close();
}
END_TEST

/* The same without updates: the first step's forward and backward are right, and then the losses tell. */
START_TEST(a_run_without_updates_is_seen)
{
    if (!golden_run_open(_i))
        return;
    for (uint32_t step = 1; step <= STEPS; step++)
        golden_step(step, false);
    training_expect_unmoved(&training, golden, STEPS);
    golden_run_close();
}
END_TEST

/* ---- what it takes and refuses ---- */

static struct backend *backend;
static struct params *params;

static void open_model_of(const struct resnet_config *config)
{
    struct error error = {0};
    backend = training_backend(0);
    training_ok(params_new(&params, backend, &error), &error);
    training_ok(resnet_new(&resnet, config, params, &error), &error);
    training_ok(params_build(params, 1, &error), &error);
    training_ok(tape_new(&tape, backend, &error), &error);
}

/* Narrow, where what is tested is the same at every width. */
static void open_model(uint32_t depth, uint32_t channels, uint32_t classes)
{
    open_model_of(&(struct resnet_config){depth, channels, classes, 8});
}

static void close_model(void)
{
    tape_free(tape);
    resnet_free(resnet);
    params_free(params);
    backend_close(backend);
}

START_TEST(entries_are_torchvisions)
{
    static const struct {
        uint32_t depth, count, index;
        const char *name, *shape;
        enum parameter_kind kind;
    } expected[] = {
        {18, 122, 0, "conv1.weight", "64x3x7x7", PARAMETER_TRAINED},
        {18, 122, 1, "bn1.weight", "64", PARAMETER_TRAINED},
        {18, 122, 2, "bn1.bias", "64", PARAMETER_TRAINED},
        {18, 122, 3, "bn1.running_mean", "64", PARAMETER_BUFFER},
        {18, 122, 4, "bn1.running_var", "64", PARAMETER_BUFFER},
        {18, 122, 5, "bn1.num_batches_tracked", "scalar", PARAMETER_COUNTER},
        {18, 122, 42, "layer2.0.downsample.0.weight", "128x64x1x1", PARAMETER_TRAINED},
        {18, 122, 43, "layer2.0.downsample.1.weight", "128", PARAMETER_TRAINED},
        {18, 122, 121, "fc.bias", "30", PARAMETER_TRAINED},
        {50, 320, 6, "layer1.0.conv1.weight", "64x64x1x1", PARAMETER_TRAINED},
        {50, 320, 24, "layer1.0.downsample.0.weight", "256x64x1x1", PARAMETER_TRAINED},
        {50, 320, 318, "fc.weight", "30x2048", PARAMETER_TRAINED},
    };
    struct error error = {0};
    backend = training_backend(0);
    for (size_t i = 0; i < sizeof expected / sizeof *expected; i++) {
        const struct resnet_config config = {expected[i].depth, 3, 30, 64};
        char text[SHAPE_TEXT_BYTES];
        training_ok(params_new(&params, backend, &error), &error);
        training_ok(resnet_new(&resnet, &config, params, &error), &error);
        ck_assert_uint_eq(params_count(params), expected[i].count);
        const struct parameter *parameter = params_at(params, expected[i].index);
        ck_assert_str_eq(parameter->name, expected[i].name);
        ck_assert_str_eq(shape_text(&parameter->tensor.shape, text), expected[i].shape);
        ck_assert_int_eq(parameter->kind, expected[i].kind);
        resnet_free(resnet);
        params_free(params);
    }
    backend_close(backend);
}
END_TEST

/* Standard deviation about zero. */
static double spread(const char *name)
{
    const struct parameter *parameter = params_find(params, name);
    struct error error = {0};
    double sum = 0;
    training_ok(backend_square_sum(backend, &parameter->tensor, &sum, &error), &error);
    return sqrt(sum / (double)shape_elements(&parameter->tensor.shape));
}

START_TEST(parameters_begin_as_torchvisions_do)
{
    open_model_of(&(struct resnet_config){50, 3, 1000, 64});
    ck_assert_double_eq_tol(spread("conv1.weight"), sqrt(2.0 / (64 * 49)), 1e-3);
    ck_assert_double_eq_tol(spread("layer3.0.conv2.weight"), sqrt(2.0 / (256 * 9)), 1e-4);
    ck_assert_double_eq_tol(spread("layer4.0.downsample.0.weight"), sqrt(2.0 / 2048), 1e-4);
    ck_assert_double_eq_tol(spread("fc.weight"), 1 / sqrt(3.0 * 2048), 1e-4);
    ck_assert_double_eq_tol(spread("fc.bias"), 1 / sqrt(3.0 * 2048), 1e-3);
    ck_assert_double_eq(spread("layer1.0.bn3.weight"), 1);
    ck_assert_double_eq(spread("layer1.0.bn3.bias"), 0);
    ck_assert_double_eq(spread("layer1.0.bn3.running_mean"), 0);
    ck_assert_double_eq(spread("layer1.0.bn3.running_var"), 1);
    close_model();
}
END_TEST

/* The forward of zeros of this shape; the logits' tensor in *logits. */
static enum status forward(struct shape shape, enum tape_mode mode, bool training_mode, double *logits,
                           struct error *error)
{
    float *zeros = calloc(shape_elements(&shape), sizeof *zeros);
    ck_assert_ptr_nonnull(zeros);
    tape_begin(tape, mode, NULL);
    struct variable *y =
        resnet_forward(resnet, tape, tape_input(tape, shape, DTYPE_F32, "images", zeros), training_mode);
    free(zeros);
    if (y != NULL && logits != NULL)
        tape_read(tape, y, DTYPE_F64, logits);
    return tape_finish(tape, error);
}

START_TEST(any_channels_classes_and_sides_do)
{
    static const struct {
        uint32_t depth, channels, classes;
        struct shape images;
    } cases[] = {
        {18, 1, 1, SHAPE4(2, 1, 1, 1)},    {18, 5, 7, SHAPE4(1, 5, 33, 65)},
        {50, 3, 1000, SHAPE4(1, 3, 1, 1)}, {50, 2, 30, SHAPE4(3, 2, 40, 8)},
        {50, 3, 11, SHAPE4(1, 3, 7, 224)},
    };
    static double logits[3 * 30 + 1000];
    struct error error = {0};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        open_model(cases[i].depth, cases[i].channels, cases[i].classes);
        training_ok(forward(cases[i].images, TAPE_INFER, false, logits, &error), &error);
        for (uint32_t k = 0; k < cases[i].images.size[0] * cases[i].classes; k++)
            ck_assert(isfinite(logits[k]));
        close_model();
    }
}
END_TEST

/* The other stages follow from the first, in both kinds of blocks. */
START_TEST(a_width_narrows_every_stage)
{
    static const struct {
        uint32_t depth;
        struct {
            const char *name, *shape;
        } entry[4];
    } expected[] = {{18,
                     {{"conv1.weight", "8x3x7x7"},
                      {"layer1.1.conv2.weight", "8x8x3x3"},
                      {"layer4.0.conv1.weight", "64x32x3x3"},
                      {"fc.weight", "30x64"}}},
                    {50,
                     {{"layer1.0.downsample.0.weight", "32x8x1x1"},
                      {"layer4.2.conv2.weight", "64x64x3x3"},
                      {"layer4.2.bn3.running_var", "256"},
                      {"fc.weight", "30x256"}}}};
    struct error error = {0};
    double logits[30];
    for (size_t i = 0; i < sizeof expected / sizeof *expected; i++) {
        open_model_of(&(struct resnet_config){expected[i].depth, 3, 30, 8});
        for (int e = 0; e < 4; e++) {
            char text[SHAPE_TEXT_BYTES];
            const struct parameter *parameter = params_find(params, expected[i].entry[e].name);
            ck_assert_ptr_nonnull(parameter);
            ck_assert_str_eq(shape_text(&parameter->tensor.shape, text), expected[i].entry[e].shape);
        }
        training_ok(forward(SHAPE4(1, 3, SIDE, SIDE), TAPE_INFER, false, logits, &error), &error);
        close_model();
    }
}
END_TEST

START_TEST(images_that_do_not_fit_are_refused_by_name)
{
    struct error error = {0};
    open_model(18, 3, 30);
    ck_assert_int_eq(forward(SHAPE4(2, 1, 64, 64), TAPE_INFER, false, NULL, &error), STATUS_INVALID);
    ck_assert_msg(strstr(error.text, "2x1x64x64") != NULL && strstr(error.text, "8x3x7x7") != NULL, "%s",
                  error.text);
    ck_assert_int_eq(forward(SHAPE3(3, 64, 64), TAPE_INFER, false, NULL, &error), STATUS_INVALID);
    ck_assert_msg(strstr(error.text, "3x64x64") != NULL, "%s", error.text);
    // One image of 32x32 ends as one value per channel, which training cannot normalize.
    ck_assert_int_eq(forward(SHAPE4(1, 3, 32, 32), TAPE_TRAIN, true, NULL, &error), STATUS_INVALID);
    ck_assert_msg(strstr(error.text, "1x64x1x1") != NULL, "%s", error.text);
    training_ok(forward(SHAPE4(1, 3, 32, 32), TAPE_INFER, false, NULL, &error), &error);
    close_model();
}
END_TEST

/* One reading per training forward: each entry where its running one stands, and zeros between them.
 * Black images have no variance, and the mean that the first convolution gives them. */
START_TEST(statistics_are_read_where_the_running_ones_stand)
{
    struct error error = {0};
    float *statistics, *zeros = calloc((size_t)2 * 3 * SIDE * SIDE, sizeof *zeros);
    open_model_of(&(struct resnet_config){18, 3, 5, 8}); // 8 channels leave a gap behind them
    const size_t elements = params_buffer_elements(params);
    statistics = calloc(elements, sizeof *statistics);
    ck_assert(statistics != NULL && zeros != NULL);
    for (size_t i = 0; i < elements; i++)
        statistics[i] = -7;
    tape_begin(tape, TAPE_TRAIN, NULL);
    resnet_forward(resnet, tape, tape_input(tape, SHAPE4(2, 3, SIDE, SIDE), DTYPE_F32, "images", zeros),
                   true);
    training_ok(resnet_read_statistics(resnet, tape, statistics, &error), &error);
    training_ok(tape_finish(tape, &error), &error);
    size_t written = 0;
    for (uint32_t i = 0; i < params_count(params); i++) {
        const struct parameter *parameter = params_at(params, i);
        for (size_t e = 0; parameter->kind == PARAMETER_BUFFER && e < parameter->tensor.shape.size[0]; e++) {
            ck_assert_msg(fabsf(statistics[parameter->offset + e]) < 1e-6f, "%s[%zu]: %g", parameter->name, e,
                          (double)statistics[parameter->offset + e]);
            statistics[parameter->offset + e] = 0;
            written++;
        }
    }
    ck_assert_uint_lt(written, elements);
    for (size_t i = 0; i < elements; i++)
        ck_assert(statistics[i] == 0);
    free(statistics);
    free(zeros);
    close_model();
}
END_TEST

/* Host memory that counts the bytes of its chunks. */
static size_t held, peak;

static void *counting_take(void *context, size_t bytes)
{
    held += bytes;
    peak = held > peak ? held : peak;
    return arena_host.take(context, bytes);
}

static void counting_give(void *context, void *chunk, size_t bytes)
{
    held -= bytes;
    arena_host.give(context, chunk, bytes);
}

static size_t peak_bytes(enum tape_mode mode, bool training_mode)
{
    struct error error = {0};
    training_ok(forward(SHAPE4(4, 3, SIDE, SIDE), mode, training_mode, NULL, &error), &error);
    return peak;
}

/* The largest moment of inference holds a few tensors of the first stage; training holds all 160. A peak
 * never falls, so inference comes first. */
START_TEST(inference_frees_as_it_goes)
{
    const struct arena_source source = {
        .take = counting_take, .give = counting_give, .poison = arena_host.poison};
    open_model_of(&(struct resnet_config){50, 3, 30, 64});
    tape_free(tape);
    training_ok(tape_new_in(&tape, backend, &source, NULL), NULL);
    const size_t inference = peak_bytes(TAPE_INFER, false);
    const size_t recorded = peak_bytes(TAPE_TRAIN, true);
    ck_assert_msg(inference * 10 < recorded, "inference held %zu bytes, training %zu", inference, recorded);
    close_model();
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("resnet");
    TCase *pytorch = tcase_create("pytorch");
    tcase_set_timeout(pytorch, 300);
    tcase_add_loop_test(pytorch, it_trains_as_torchvisions_does, 0, GOLDEN_RUNS);
    tcase_add_loop_test(pytorch, a_run_without_updates_is_seen, 0, GOLDEN_RUNS);
    suite_add_tcase(suite, pytorch);
    TCase *model = tcase_create("model");
    tcase_set_timeout(model, 120);
    tcase_add_test(model, entries_are_torchvisions);
    tcase_add_test(model, parameters_begin_as_torchvisions_do);
    tcase_add_test(model, any_channels_classes_and_sides_do);
    tcase_add_test(model, images_that_do_not_fit_are_refused_by_name);
    tcase_add_test(model, a_width_narrows_every_stage);
    tcase_add_test(model, statistics_are_read_where_the_running_ones_stand);
    tcase_add_test(model, inference_frees_as_it_goes);
    suite_add_tcase(suite, model);
    return suite_run(suite);
}
