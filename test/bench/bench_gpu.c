/* Times the GPU backend: the policy's launch over batches of many sizes, and a training step of ResNet-50.
 *
 *     bench_gpu          exits 77, with a line, without a GPU
 *
 * A launch is timed end to end: rows into the pinned slab, one graph launch with both copies, the wait,
 * actions out. A step is images and labels up, forward, the loss down, backward, SGD, and one parameter down,
 * which waits for all before it. Output is for programs (scripts/gpu-check): the median, the tenth and the
 * ninetieth percentile of the rounds. No time fails. */
#include "kernels/params/optim.h"
#include "test/kernels/cuda/mlp_launch.h"
#include "worker/model/resnet.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { SKIPPED = 77, LAUNCHES = 500, UNCOUNTED = 50, ROWS_MAX = 16384 };
enum { STEPS = 30, STEPS_UNCOUNTED = 5, BATCH = 20, SIDE = 64, CLASSES = 30 };

static struct backend *gpu;
static struct error error;

static void must(enum status status)
{
    if (status == STATUS_OK)
        return;
    fprintf(stderr, "bench_gpu: %s\n", error.text);
    exit(EXIT_FAILURE);
}

static double now_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e6 + (double)now.tv_nsec * 1e-3;
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* ---- the policy ---- */

static void bench_rows(struct mlp_launch *launch, struct mlp_problem *problem, uint32_t count)
{
    double us[LAUNCHES];
    for (int i = -UNCOUNTED; i < LAUNCHES; i++) {
        const double begin = now_us();
        must(mlp_launch_act(launch, gpu, problem, count, &error));
        if (i >= 0)
            us[i] = now_us() - begin;
    }
    qsort(us, LAUNCHES, sizeof *us, by_value);
    printf("ours policy rows=%u us=%.1f low=%.1f high=%.1f\n", count, us[LAUNCHES / 2], us[LAUNCHES / 10],
           us[LAUNCHES * 9 / 10]);
    fflush(stdout);
}

static void bench_policy(void)
{
    static const uint32_t counts[] = {1, 10, 64, 1024, ROWS_MAX};
    struct mlp_problem problem;
    struct mlp_launch launch;
    struct arena *arena = NULL;
    mlp_problem_init(&problem, (struct mlp_shape){4, 128, 2}, 0.6, ROWS_MAX, 1);
    must(arena_new(&arena, &gpu->source, &error));
    must(mlp_launch_open(&launch, gpu, arena, &problem, ROWS_MAX, false, &error));
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
        bench_rows(&launch, &problem, counts[i]);
    mlp_launch_close(&launch, gpu);
    arena_free(arena);
    mlp_problem_fini(&problem);
}

/* ---- ResNet-50 ---- */

struct training_step {
    struct tape *tape;
    struct params *params;
    struct gradients *gradients;
    struct optimizer *optimizer;
    struct resnet *resnet;
    struct values images, labels;
    float *statistics;
};

static void step_open(struct training_step *step)
{
    const struct resnet_config config = {.depth = 50, .channels = 3, .classes = CLASSES, .width = 64};
    const struct optimizer_settings sgd = {.kind = OPTIMIZER_SGD, .sgd = {.lr = 0.01}};
    must(params_new(&step->params, gpu, &error));
    must(resnet_new(&step->resnet, &config, step->params, &error));
    must(params_build(step->params, 1, &error));
    must(gradients_new(&step->gradients, step->params, &error));
    must(optimizer_new(&step->optimizer, &sgd, step->params, &error));
    must(tape_new(&step->tape, gpu, &error));
    step->statistics = calloc(params_buffer_elements(step->params), sizeof *step->statistics);
    if (step->statistics == NULL)
        exit(EXIT_FAILURE);
    step->images = values_drawn(SHAPE4(BATCH, 3, SIDE, SIDE), 1);
    step->labels = values_new(SHAPE2(BATCH, CLASSES), DTYPE_F64);
    for (size_t i = 0; i < BATCH; i++)
        step->labels.real[i * CLASSES + i] = 1;
}

static void step_close(struct training_step *step)
{
    tape_free(step->tape);
    optimizer_free(step->optimizer);
    gradients_free(step->gradients);
    resnet_free(step->resnet);
    params_free(step->params);
    values_free(&step->images);
    values_free(&step->labels);
    free(step->statistics);
}

static double step_run(struct training_step *step)
{
    struct tape *tape = step->tape;
    double loss = 0, moved[CLASSES];
    tape_begin(tape, TAPE_TRAIN, step->gradients);
    struct variable *images = tape_input(tape, step->images.shape, DTYPE_F64, "images", step->images.data);
    struct variable *labels = tape_input(tape, step->labels.shape, DTYPE_F64, "labels", step->labels.data);
    struct variable *out = tape_mse(tape, resnet_forward(step->resnet, tape, images, true), labels);
    tape_loss(tape, out, &loss);
    tape_backward(tape, out);
    must(resnet_read_statistics(step->resnet, tape, step->statistics, &error));
    must(optimizer_step(step->optimizer, step->gradients, &error));
    must(params_read(step->params, params_find(step->params, "fc.bias"), DTYPE_F64, moved, &error));
    must(tape_finish(tape, &error));
    return loss;
}

static void bench_resnet(void)
{
    struct training_step step = {0};
    double us[STEPS], first = 0, last = 0;
    step_open(&step);
    for (int i = -STEPS_UNCOUNTED; i < STEPS; i++) {
        const double begin = now_us();
        last = step_run(&step);
        if (i >= 0)
            us[i] = now_us() - begin;
        else if (i == -STEPS_UNCOUNTED)
            first = last;
    }
    qsort(us, STEPS, sizeof *us, by_value);
    printf("ours resnet50 batch=%d samples_per_s=%.0f low=%.0f high=%.0f loss=%.4f..%.4f\n", (int)BATCH,
           BATCH * 1e6 / us[STEPS / 2], BATCH * 1e6 / us[STEPS * 9 / 10], BATCH * 1e6 / us[STEPS / 10], first,
           last);
    step_close(&step);
}

int main(void)
{
    enum status status = backend_load(&gpu, "cuda", &(struct backend_settings){0}, &error);
    if (status == STATUS_UNAVAILABLE) {
        printf("skipped: %s\n", error.text);
        return SKIPPED;
    }
    must(status);
    printf("device %s\n", gpu->text);
    bench_policy();
    bench_resnet();
    backend_close(gpu);
    return EXIT_SUCCESS;
}
