/* Times training steps of the models on the CPU backend: ResNet-50 beside a bare chain of oneDNN's primitives
 * and the machine's sgemm, the language model at two sizes, and the time per operation.
 *
 *   bench_models [resnet|lstm|profile|memory] [--threads N] [--rounds N]       (default: all)
 *
 * Programs that are compared alternate, so that a disturbance affects all. Figures are the median and, in
 * brackets, the fastest and the slowest round. A step does the work of test/bench/peer/resnet50.py and
 * lstm.py. `memory` trains for some steps in a process of its own and prints its peak. No time fails. */
#include "kernels/base/monotime.h"
#include "kernels/params/optim.h"
#include "test/baseline/mlp_onednn.h"
#include "test/baseline/resnet_onednn.h"
#include "test/bench/times.h"
#include "test/kernels/params/reorder.h"
#include "worker/model/resnet.h"
#include "worker/model/rnn.h"

#include <errno.h>
#include <math.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { IMAGES = 20, SIZE = 64, CLASSES = 30, SGEMM_N = 1536, WARM_UP = 3 };

static struct options {
    uint32_t threads, rounds;
} options = {0, 15};

static void must(enum status status, const struct error *error)
{
    if (status == STATUS_OK)
        return;
    fprintf(stderr, "bench_models: %s: %s\n", status_name(status), error->text);
    exit(EXIT_FAILURE);
}

/* ---- a model in training ---- */

struct model {
    struct backend *backend;
    struct params *params;
    struct gradients *gradients;
    struct optimizer *optimizer;
    struct tape *tape;
};

static void model_open(struct model *model)
{
    struct error error = {0};
    const struct backend_settings settings = {.threads = options.threads};
    must(backend_load(&model->backend, "onednn", &settings, &error), &error);
    must(params_new(&model->params, model->backend, &error), &error);
    must(tape_new(&model->tape, model->backend, &error), &error);
}

static void model_build(struct model *model, double lr)
{
    struct error error = {0};
    const struct optimizer_settings settings = {.kind = OPTIMIZER_SGD, .sgd = {.lr = lr}};
    must(params_build(model->params, 1, &error), &error);
    must(gradients_new(&model->gradients, model->params, &error), &error);
    must(optimizer_new(&model->optimizer, &settings, model->params, &error), &error);
}

/* The walk from the loss, the update, the end of the step. */
static void model_update(struct model *model, struct variable *loss)
{
    struct error error = {0};
    double value;
    tape_loss(model->tape, loss, &value);
    tape_backward(model->tape, loss);
    must(tape_status(model->tape, &error), &error);
    must(optimizer_step(model->optimizer, model->gradients, &error), &error);
}

static void model_end(struct model *model)
{
    struct error error = {0};
    must(tape_finish(model->tape, &error), &error);
    reorder_params(model->params, NULL, 0);
}

static void model_close(struct model *model)
{
    tape_free(model->tape);
    optimizer_free(model->optimizer);
    gradients_free(model->gradients);
    params_free(model->params);
    backend_close(model->backend);
}

/* ---- ResNet-50 ---- */

struct resnet_bench {
    struct model model;
    struct resnet *resnet;
    float images[IMAGES * 3 * SIZE * SIZE], target[IMAGES * CLASSES];
    float *statistics;
};

static struct resnet_bench *resnet_open(void)
{
    struct error error = {0};
    struct resnet_bench *bench = calloc(1, sizeof *bench);
    if (bench == NULL)
        exit(EXIT_FAILURE);
    const struct resnet_config config = {.depth = 50, .channels = 3, .classes = CLASSES, .width = 64};
    model_open(&bench->model);
    must(resnet_new(&bench->resnet, &config, bench->model.params, &error), &error);
    model_build(&bench->model, 0.01);
    bench->statistics = calloc(params_buffer_elements(bench->model.params), sizeof *bench->statistics);
    if (bench->statistics == NULL)
        exit(EXIT_FAILURE);
    for (size_t i = 0; i < sizeof bench->images / sizeof *bench->images; i++)
        bench->images[i] = (float)(i * 2654435761u % 2001) / 1000 - 1;
    for (size_t i = 0; i < IMAGES; i++)
        bench->target[i * CLASSES + i * 7 % CLASSES] = 1;
    return bench;
}

static void resnet_step(void *context)
{
    struct resnet_bench *bench = context;
    struct model *model = &bench->model;
    struct error error = {0};
    tape_begin(model->tape, TAPE_TRAIN, model->gradients);
    struct variable *images =
        tape_input(model->tape, SHAPE4(IMAGES, 3, SIZE, SIZE), DTYPE_F32, "images", bench->images);
    struct variable *target =
        tape_input(model->tape, SHAPE2(IMAGES, CLASSES), DTYPE_F32, "target", bench->target);
    struct variable *logits = resnet_forward(bench->resnet, model->tape, images, true);
    model_update(model, tape_mse(model->tape, logits, target));
    must(resnet_read_statistics(bench->resnet, model->tape, bench->statistics, &error), &error);
    model_end(model);
}

static void resnet_close(struct resnet_bench *bench)
{
    resnet_free(bench->resnet);
    free(bench->statistics);
    model_close(&bench->model);
    free(bench);
}

/* ---- the baselines ---- */

static void bare_step(void *context)
{
    struct error error = {0};
    must(resnet_onednn_step(context, RESNET_ONEDNN_ALL, &error), &error);
}

static void bare_conv_norm(void *context)
{
    struct error error = {0};
    must(resnet_onednn_step(context, RESNET_ONEDNN_CONV_NORM, &error), &error);
}

static void sgemm(void *context)
{
    float(*matrices)[SGEMM_N * SGEMM_N] = context;
    struct error error = {0};
    must(mlp_onednn_sgemm(SGEMM_N, matrices[0], matrices[1], matrices[2]), &error);
}

static void *sgemm_open(void)
{
    float(*matrices)[SGEMM_N * SGEMM_N] = aligned_alloc(64, 3 * sizeof *matrices);
    if (matrices == NULL)
        exit(EXIT_FAILURE);
    for (size_t i = 0; i < 3 * (size_t)SGEMM_N * SGEMM_N; i++)
        matrices[0][i] = (float)(i % 7) - 3;
    return matrices;
}

static void print_rate(double ms, double flops, double peak)
{
    printf("  %6.1f samples/s  %5.0f GFLOP/s  %3.0f %% of sgemm\n", IMAGES / ms * 1e3, flops / ms * 1e-6,
           100 * flops / ms * 1e-6 / peak);
}

static void bench_resnet(void)
{
    struct error error = {0};
    struct times ours = {0}, bare = {0}, conv_norm = {0}, product = {0};
    struct resnet_onednn *chain = NULL;
    struct resnet_bench *bench = resnet_open();
    void *matrices = sgemm_open();
    must(resnet_onednn_new(&chain, IMAGES, SIZE, CLASSES, &error), &error);
    for (int i = 0; i < WARM_UP; i++) {
        resnet_step(bench);
        bare_step(chain);
    }
    for (uint32_t round = 0; round < options.rounds; round++) {
        times_add(&ours, resnet_step, bench, 1);
        times_add(&bare, bare_step, chain, 1);
        times_add(&conv_norm, bare_conv_norm, chain, 1);
        times_add(&product, sgemm, matrices, 1);
    }
    const double flops = resnet_onednn_flops(chain);
    const double peak = 2.0 * SGEMM_N * SGEMM_N * SGEMM_N / times_median(&product) * 1e-6;
    printf("ResNet-50, a training step of %dx3x%dx%d, %d classes, on %s\n", IMAGES, SIZE, SIZE, CLASSES,
           bench->model.backend->text);
    print_rate(times_print("ours", &ours), flops, peak);
    print_rate(times_print("bare chain", &bare), flops, peak);
    print_rate(times_print("its convolutions and batch norms", &conv_norm), flops, peak);
    times_print("sgemm of 1536", &product);
    printf("  %5.0f GFLOP/s\n  ours runs at %.0f %% of the bare chain\n", peak,
           100 * times_median(&bare) / times_median(&ours));
    resnet_onednn_free(chain);
    free(matrices);
    resnet_close(bench);
}

/* ---- the language model ---- */

static const struct lstm_size {
    const char *name;
    struct rnn_config config;
    uint32_t steps, batch, repeat;
} lstm_sizes[] = {{"tutorial: 10 tokens, 2, 3, 4 layers, 5x3", {10, 2, 3, 4, 0.5}, 5, 3, 200},
                  {"job: 10,000 tokens, 200, 2 layers, 35x20", {10000, 200, 200, 2, 0.5}, 35, 20, 1}};

struct lstm_bench {
    struct model model;
    const struct lstm_size *size;
    struct rnn_encoder encoder;
    struct rnn_lstm lstm;
    struct rnn_decoder decoder;
    int32_t *tokens, *target; // (steps, batch)
    float *state;             // (layers, 2, batch, hidden)
    uint32_t iteration;
};

static struct lstm_bench *lstm_open(const struct lstm_size *size)
{
    struct error error = {0};
    struct lstm_bench *bench = calloc(1, sizeof *bench);
    const size_t count = (size_t)size->steps * size->batch;
    if (bench == NULL)
        exit(EXIT_FAILURE);
    bench->size = size;
    bench->tokens = calloc(2 * count, sizeof *bench->tokens);
    bench->state = calloc((size_t)size->config.layers * 2 * size->batch * size->config.hidden, sizeof(float));
    if (bench->tokens == NULL || bench->state == NULL)
        exit(EXIT_FAILURE);
    bench->target = bench->tokens + count;
    for (size_t i = 0; i < 2 * count; i++)
        bench->tokens[i] = (int32_t)(i * 2654435761u % size->config.tokens);
    model_open(&bench->model);
    must(rnn_encoder_init(&bench->encoder, &size->config, bench->model.params, &error), &error);
    must(rnn_lstm_init(&bench->lstm, &size->config, bench->model.params, &error), &error);
    must(rnn_decoder_init(&bench->decoder, &size->config, bench->model.params, &error), &error);
    model_build(&bench->model, 0.05);
    return bench;
}

/* The state goes in as values and is read back at the end, as a trainer carries it from step to step. */
static void lstm_step(void *context)
{
    struct lstm_bench *bench = context;
    struct model *model = &bench->model;
    struct tape *tape = model->tape;
    const struct lstm_size *size = bench->size;
    const struct rnn_config *config = &size->config;
    const struct draw draw = {1, {0, bench->iteration++, 0}};
    const struct shape state_shape = SHAPE2(size->batch, config->hidden);
    const size_t values = (size_t)size->batch * config->hidden;
    struct lstm_state state[RNN_LAYERS_MAX];
    tape_begin(tape, TAPE_TRAIN, model->gradients);
    struct variable *tokens =
        tape_input(tape, SHAPE2(size->steps, size->batch), DTYPE_I32, "tokens", bench->tokens);
    for (uint32_t layer = 0; layer < config->layers; layer++) {
        float *at = bench->state + 2 * layer * values;
        state[layer].h = tape_input(tape, state_shape, DTYPE_F32, "h", at);
        state[layer].c = tape_input(tape, state_shape, DTYPE_F32, "c", at + values);
    }
    struct variable *embedded = rnn_encoder_forward(&bench->encoder, config, tape, tokens, &draw);
    struct variable *output = rnn_lstm_forward(&bench->lstm, config, tape, embedded, state, &draw);
    struct variable *logits = rnn_decoder_forward(&bench->decoder, config, tape, output, &draw);
    const uint32_t rows = size->steps * size->batch;
    struct variable *target = tape_input(tape, SHAPE1(rows), DTYPE_I32, "target", bench->target);
    for (uint32_t layer = 0; layer < config->layers; layer++) {
        tape_read(tape, state[layer].h, DTYPE_F32, bench->state + 2 * layer * values);
        tape_read(tape, state[layer].c, DTYPE_F32, bench->state + (2 * layer + 1) * values);
    }
    model_update(model,
                 tape_cross_entropy(tape, tape_reshape(tape, logits, SHAPE2(rows, config->tokens)), target));
    model_end(model);
}

static void lstm_close(struct lstm_bench *bench)
{
    model_close(&bench->model);
    free(bench->tokens);
    free(bench->state);
    free(bench);
}

static void bench_lstm(void)
{
    for (size_t s = 0; s < sizeof lstm_sizes / sizeof *lstm_sizes; s++) {
        struct times times = {0};
        struct lstm_bench *bench = lstm_open(&lstm_sizes[s]);
        for (int i = 0; i < WARM_UP; i++)
            lstm_step(bench);
        for (uint32_t round = 0; round < options.rounds; round++)
            times_add(&times, lstm_step, bench, lstm_sizes[s].repeat);
        if (s == 0)
            printf("language model, a training step, dropout 0.5, on %s\n", bench->model.backend->text);
        printf("  %6.1f iterations/s\n", 1e3 / times_print(lstm_sizes[s].name, &times));
        lstm_close(bench);
    }
}

/* ---- time per operation ---- */

/* The backend's table of operations, and one over it that measures time. */
static struct {
    const struct backend_ops *real;
    struct backend_ops timed;
    double forward_ms[OP_COUNT], backward_ms[OP_COUNT], sgd_ms, accumulate_ms;
    uint64_t calls[OP_COUNT];
} profile;

static double ms_since(struct monotime begin)
{
    return (double)(monotime_now().ns - begin.ns) * 1e-6;
}

static enum status timed_forward(struct backend *backend, struct op_call *call, struct error *error)
{
    const struct monotime begin = monotime_now();
    enum status status = profile.real->forward[call->op](backend, call, error);
    profile.forward_ms[call->op] += ms_since(begin);
    profile.calls[call->op]++;
    return status;
}

static enum status timed_backward(struct backend *backend, struct op_call *call, struct error *error)
{
    const struct monotime begin = monotime_now();
    enum status status = profile.real->backward[call->op](backend, call, error);
    profile.backward_ms[call->op] += ms_since(begin);
    return status;
}

static enum status timed_sgd(struct backend *backend, const struct sgd_settings *settings, uint64_t step,
                             struct tensor *parameters, const struct tensor *gradient,
                             struct tensor *momentum, struct error *error)
{
    const struct monotime begin = monotime_now();
    enum status status = profile.real->sgd(backend, settings, step, parameters, gradient, momentum, error);
    profile.sgd_ms += ms_since(begin);
    return status;
}

static enum status timed_accumulate(struct backend *backend, struct tensor *to, const struct tensor *from,
                                    struct error *error)
{
    const struct monotime begin = monotime_now();
    enum status status = profile.real->accumulate(backend, to, from, error);
    profile.accumulate_ms += ms_since(begin);
    return status;
}

static void profile_steps(const char *name, struct backend *backend, work *step, void *context,
                          uint32_t steps)
{
    for (int i = 0; i < WARM_UP; i++)
        step(context);
    memset(&profile, 0, sizeof profile);
    profile.real = backend->ops;
    profile.timed = *backend->ops;
    for (int op = 0; op < OP_COUNT; op++) {
        profile.timed.forward[op] = timed_forward;
        profile.timed.backward[op] = timed_backward;
    }
    profile.timed.sgd = timed_sgd;
    profile.timed.accumulate = timed_accumulate;
    backend->ops = &profile.timed;
    const struct monotime begin = monotime_now();
    for (uint32_t i = 0; i < steps; i++)
        step(context);
    const double all = ms_since(begin) / steps;
    backend->ops = profile.real;
    double known = profile.sgd_ms + profile.accumulate_ms;
    printf("where a step of %s goes, ms: forward, backward, calls\n", name);
    for (int op = 0; op < OP_COUNT; op++) {
        known += profile.forward_ms[op] + profile.backward_ms[op];
        if (profile.calls[op] > 0)
            printf("  %-20s %9.3f %9.3f %5.0f\n", op_rule((enum op)op)->name, profile.forward_ms[op] / steps,
                   profile.backward_ms[op] / steps, (double)profile.calls[op] / steps);
    }
    printf("  %-20s %9.3f\n  %-20s %9.3f\n", "gradients' sums", profile.accumulate_ms / steps, "update",
           profile.sgd_ms / steps);
    printf("  %-20s %9.3f\n  %-20s %9.3f\n", "the rest", all - known / steps, "all", all);
}

static void bench_profile(void)
{
    struct resnet_bench *resnet = resnet_open();
    profile_steps("ResNet-50", resnet->model.backend, resnet_step, resnet, options.rounds);
    resnet_close(resnet);
    for (size_t s = 0; s < sizeof lstm_sizes / sizeof *lstm_sizes; s++) {
        struct lstm_bench *bench = lstm_open(&lstm_sizes[s]);
        profile_steps(lstm_sizes[s].name, bench->model.backend, lstm_step, bench,
                      options.rounds * lstm_sizes[s].repeat);
        lstm_close(bench);
    }
}

/* ---- memory ---- */

static void print_peak(const char *name)
{
    char line[128];
    unsigned long kib = 0;
    FILE *file = fopen("/proc/self/status", "re");
    while (file != NULL && fgets(line, sizeof line, file) != NULL)
        if (strncmp(line, "VmHWM:", 6) == 0)
            kib = strtoul(line + 6, NULL, 10);
    if (file != NULL)
        fclose(file);
    printf("  %-36s %9.0f MiB at most\n", name, (double)kib / 1024);
}

/* Each in a process of its own; `self` is this program. */
static void train_and_print_peak(const char *model)
{
    if (strcmp(model, "memory-resnet") == 0) {
        struct resnet_bench *bench = resnet_open();
        for (uint32_t i = 0; i < WARM_UP; i++)
            resnet_step(bench);
        print_peak("ResNet-50");
        resnet_close(bench);
        return;
    }
    struct lstm_bench *bench = lstm_open(&lstm_sizes[1]);
    for (uint32_t i = 0; i < WARM_UP; i++)
        lstm_step(bench);
    print_peak("language model, job");
    lstm_close(bench);
}

static void bench_memory(void)
{
    static char program[] = "bench_models", flag[] = "--threads",
                models[][16] = {"memory-resnet", "memory-lstm"};
    char threads[16];
    snprintf(threads, sizeof threads, "%u", options.threads);
    printf("memory of the training process\n");
    for (size_t i = 0; i < 2; i++) {
        fflush(stdout);
        const pid_t child = fork();
        if (child == 0) {
            char *const arguments[] = {program, models[i], flag, threads, NULL};
            execv("/proc/self/exe", arguments);
            _exit(127);
        }
        int left = 0;
        if (child == -1 || waitpid(child, &left, 0) != child || left != 0)
            fprintf(stderr, "bench_models: %s did not run: %s\n", models[i],
                    child == -1 ? strerror(errno) : "its process failed");
    }
}

/* ---- arguments ---- */

static uint32_t number(const char *text, uint32_t max)
{
    char *end = NULL;
    errno = 0;
    const unsigned long value = strtoul(text, &end, 10);
    if (errno != 0 || end == text || *end != '\0' || value < 1 || value > max) {
        fprintf(stderr, "bench_models: expected a number in 1..%u, got \"%s\"\n", max, text);
        exit(64);
    }
    return (uint32_t)value;
}

int main(int argc, char **argv)
{
    const char *section = "all";
    cpu_set_t set;
    CPU_ZERO(&set);
    options.threads = sched_getaffinity(0, sizeof set, &set) == 0 ? (uint32_t)CPU_COUNT(&set) : 1;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--threads") == 0 && i + 1 < argc)
            options.threads = number(argv[++i], 1024);
        else if (strcmp(argv[i], "--rounds") == 0 && i + 1 < argc)
            options.rounds = number(argv[++i], TIMES_MAX);
        else
            section = argv[i];
    }
    const bool all = strcmp(section, "all") == 0;
    if (strncmp(section, "memory-", 7) == 0)
        train_and_print_peak(section);
    else if (all || strcmp(section, "memory") == 0)
        bench_memory();
    if (all || strcmp(section, "resnet") == 0)
        bench_resnet();
    if (all || strcmp(section, "lstm") == 0)
        bench_lstm();
    if (all || strcmp(section, "profile") == 0)
        bench_profile();
    return EXIT_SUCCESS;
}
