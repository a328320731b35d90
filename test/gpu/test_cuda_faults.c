/* The GPU backend on the stand-in (gpu.h) when a call of CUDA or cuDNN fails, and when cuDNN refuses
 * algorithms.
 *
 * Every function that the backend calls fails in many of its calls, with each error that its documentation
 * names. Then the error names the function, nothing is left alive, and the next body has the right numbers. A
 * body opens the backend, runs every operation, the optimizers and the captured policy on small shapes, and
 * closes it. */
#include "test/gpu/gpu.h"
#include "test/gpu/gpu_cudnn.h"
#include "test/kernels/op_run.h"
#include "test/oracle/ref.h"
#include "test/workplace.h"

#include <check.h>
#include <cudnn.h>
#include <dlfcn.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- the stand-in in the plug-in ---- */

static struct {
    __typeof__(gpu_arm) *arm;
    __typeof__(gpu_disarm) *disarm;
    __typeof__(gpu_fault_happened) *fault_happened;
    __typeof__(gpu_calls) *calls;
    __typeof__(gpu_called) *called;
    __typeof__(gpu_alive_count) *alive_count;
    __typeof__(gpu_cudnn_refuse) *refuse;
} gpu;

static char plugin[PATH_MAX];

/* Ends the test when the plug-in has no such function. ISO C forbids to cast what dlsym returns. */
static void find(void *plugin_opened, const char *name, void *function)
{
    void *found = dlsym(plugin_opened, name);
    ck_assert_msg(found != NULL, "%s has no %s", plugin, name);
    memcpy(function, &found, sizeof found);
}

static void gpu_find(void)
{
    void *opened = dlopen(plugin, RTLD_NOW);
    ck_assert_msg(opened != NULL, "%s", dlerror());
    find(opened, "gpu_arm", &gpu.arm);
    find(opened, "gpu_disarm", &gpu.disarm);
    find(opened, "gpu_fault_happened", &gpu.fault_happened);
    find(opened, "gpu_calls", &gpu.calls);
    find(opened, "gpu_called", &gpu.called);
    find(opened, "gpu_alive_count", &gpu.alive_count);
    find(opened, "gpu_cudnn_refuse", &gpu.refuse);
}

/* ---- the body ---- */

/* The first rows are convolutions; the very first is strided, so that one algorithm alone is deterministic.
 */
static const struct op_case cases[] = {
    {.op = OP_CONV2D,
     .attributes = {.stride = {2, 2}, .padding = {1, 1}},
     .in = {SHAPE4(1, 2, 4, 4), SHAPE4(2, 2, 3, 3), SHAPE1(2)}},
    {.op = OP_CONV2D,
     .attributes = {.stride = {1, 1}, .padding = {1, 1}},
     .absent = 4,
     .in = {SHAPE4(1, 2, 4, 4), SHAPE4(2, 2, 3, 3), SHAPE1(2)}},
    {.op = OP_CONV2D,
     .attributes = {.stride = {1, 1}, .padding = {1, 1}},
     .in = {SHAPE4(1, 1, 3, 3), SHAPE4(2, 1, 3, 3), SHAPE1(2)}},
    {.op = OP_LINEAR, .in = {SHAPE2(2, 3), SHAPE2(2, 3), SHAPE1(2)}},
    {.op = OP_BATCH_NORM,
     .attributes = {.relu = true, .training = true, .epsilon = 1e-5},
     .absent = 24,
     .in = {SHAPE4(2, 2, 2, 2), SHAPE1(2), SHAPE1(2)}},
    {.op = OP_BATCH_NORM,
     .attributes = {.epsilon = 1e-5},
     .in = {SHAPE4(2, 2, 2, 2), SHAPE1(2), SHAPE1(2), SHAPE1(2), SHAPE1(2)}},
    {.op = OP_MAX_POOL, .attributes = {.kernel = {2, 2}, .stride = {2, 2}}, .in = {SHAPE4(1, 2, 4, 4)}},
    {.op = OP_AVG_POOL, .attributes = {.kernel = {2, 2}, .stride = {2, 2}}, .in = {SHAPE4(1, 2, 4, 4)}},
    {.op = OP_RELU, .in = {SHAPE1(3)}},
    {.op = OP_TANH, .in = {SHAPE1(3)}},
    {.op = OP_ADD, .attributes = {.relu = true}, .in = {SHAPE1(3), SHAPE1(3)}},
    {.op = OP_RESHAPE, .attributes = {.shape = SHAPE1(4)}, .in = {SHAPE2(2, 2)}},
    {.op = OP_DROPOUT, .attributes = {.dropout = 0.5}, .absent = 2, .in = {SHAPE2(2, 4)}},
    {.op = OP_LOG_SOFTMAX, .in = {SHAPE2(2, 3)}},
    {.op = OP_EMBEDDING, .in = {SHAPE1(3), SHAPE2(4, 2)}},
    {.op = OP_LSTM_LAYER,
     .in = {SHAPE3(2, 1, 2), SHAPE2(1, 2), SHAPE2(1, 2), SHAPE2(8, 2), SHAPE2(8, 2), SHAPE1(8), SHAPE1(8)}},
    {.op = OP_GRU_LAYER,
     .in = {SHAPE3(2, 1, 2), SHAPE2(1, 2), SHAPE2(6, 2), SHAPE2(6, 2), SHAPE1(6), SHAPE1(6)}},
    {.op = OP_MSE, .in = {SHAPE1(3), SHAPE1(3)}},
    {.op = OP_CROSS_ENTROPY, .in = {SHAPE2(2, 3), SHAPE1(2)}},
    {.op = OP_LOG_PROBABILITY, .in = {SHAPE2(2, 3), SHAPE1(2)}},
    {.op = OP_SUM, .attributes = {.scale = 1}, .absent = 2, .in = {SHAPE1(3)}},
};
enum { CASES = sizeof cases / sizeof *cases, CONVOLUTIONS = 4, NUMBERS = 5, ROWS = 2 };

static struct op_problem problems[CASES];

struct results {
    struct op_answer answer[CASES];
    double numbers[NUMBERS], square_sum;
    size_t not_finite;
    int32_t actions[ROWS];
    float values[ROWS];
};
static struct results right, got;

#define TRY(call)                                                                                            \
    do {                                                                                                     \
        const enum status try_status = (call);                                                               \
        if (try_status != STATUS_OK)                                                                         \
            return try_status;                                                                               \
    } while (0)

static enum status operations(struct backend *backend, struct arena *arena, size_t first, size_t end,
                              struct results *out, struct error *error)
{
    for (size_t i = first; i < end; i++) {
        const struct op_wish wish = op_wish_all(&problems[i]);
        TRY(op_run(&out->answer[i], &problems[i], &wish, backend, arena, error));
    }
    return STATUS_OK;
}

/* Optimizers and what computes on a whole tensor. */
static enum status tensors(struct backend *backend, struct arena *arena, struct results *out,
                           struct error *error)
{
    static const double from[NUMBERS] = {1, -2, 3, -4, 5};
    const struct sgd_settings plain = {.lr = 0.1}, heavy = {.lr = 0.1, .momentum = 0.9};
    struct tensor p, g, m, v;
    struct tensor *all[] = {&p, &g, &m, &v};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        TRY(tensor_new(all[i], arena, SHAPE1(NUMBERS), DTYPE_F32, "numbers", error));
        TRY(backend_fill(backend, all[i], 0.5, error));
    }
    TRY(backend_upload(backend, &p, DTYPE_F64, from, error));
    TRY(backend_accumulate(backend, &g, &p, error));
    TRY(backend_scale(backend, &g, 2, error));
    TRY(backend_sgd(backend, &plain, 1, &p, &g, NULL, error));
    TRY(backend_sgd(backend, &heavy, 2, &p, &g, &m, error));
    TRY(backend_adam(backend, &ADAM_DEFAULTS, 1, &p, &g, &m, &v, error));
    TRY(backend_square_sum(backend, &p, &out->square_sum, error));
    TRY(backend_fill(backend, &g, (double)NAN, error));
    TRY(backend_first_not_finite(backend, &g, &out->not_finite, error));
    return backend_download(backend, &p, DTYPE_F64, out->numbers, error);
}

/* Copies that fill all staging buffers, a copy from pinned memory, and more that wait than there is room for.
 */
static enum status copies(struct backend *backend, struct arena *arena, struct error *error)
{
    enum { FLOATS = 1 << 20, LATER = 80 };
    static _Alignas(4096) float memory[FLOATS];
    static float number[LATER];
    struct tensor tensor = {0};
    TRY(tensor_new(&tensor, arena, SHAPE1(FLOATS), DTYPE_F32, "many numbers", error));
    TRY(backend_upload(backend, &tensor, DTYPE_F32, memory, error));
    TRY(backend_pin(backend, memory, sizeof memory, error));
    TRY(backend_upload(backend, &tensor, DTYPE_F32, memory, error));
    tensor.shape = SHAPE1(1);
    for (int i = 0; i < LATER; i++)
        TRY(backend_download_later(backend, &tensor, DTYPE_F32, &number[i], error));
    return backend_wait(backend, error);
}

static enum status policy(struct backend *backend, struct arena *arena, struct results *out,
                          struct error *error)
{
    static const float observations[ROWS * 2] = {1, -1, 0.5f, 2};
    static const int32_t keys[ROWS * 3] = {0, 3, 1, 1, 4, 1};
    struct policy_launch_settings settings = {
        .inputs = 2,
        .layers = 3,
        .layer = {{.activation = OP_RELU, .dropout = 0.5},
                  {.from = 1, .activation = OP_LINEAR, .result = POLICY_LAUNCH_ACTIONS},
                  {.from = 1, .activation = OP_TANH, .result = POLICY_LAUNCH_FLOATS}},
        .seed = 7,
        .rows_max = ROWS};
    const struct shape weights[3] = {SHAPE2(3, 2), SHAPE2(2, 3), SHAPE2(1, 3)};
    struct policy_launch *launch;
    for (int i = 0; i < 3; i++) {
        struct policy_launch_layer *layer = &settings.layer[i];
        TRY(tensor_new(&layer->weight, arena, weights[i], DTYPE_F32, "weight", error));
        TRY(tensor_new(&layer->bias, arena, SHAPE1(weights[i].size[0]), DTYPE_F32, "bias", error));
        TRY(backend_fill(backend, &layer->weight, 0.25 * i, error));
        TRY(backend_fill(backend, &layer->bias, 0.125 * i, error));
    }
    TRY(backend->ops->launch_new(backend, &settings, &launch, error));
    const enum status status = backend->ops->launch_run(backend, launch, ROWS, observations, keys,
                                                        (void *[]){out->actions, out->values}, error);
    backend->ops->launch_free(backend, launch);
    return status;
}

/* The operations of [first, CASES), and the rest; only the convolutions of [first, CONVOLUTIONS) with `few`.
 */
static enum status body(size_t first, bool few, struct results *out, struct error *error)
{
    struct backend *backend;
    struct arena *arena = NULL;
    *error = (struct error){0};
    TRY(backend_load(&backend, "cuda", &(struct backend_settings){0}, error));
    enum status status = arena_new(&arena, &backend->source, error);
    arena_poison(arena, false); /* its fills would hide an error that nobody reads */
    if (status == STATUS_OK)
        status = operations(backend, arena, first, few ? CONVOLUTIONS : CASES, out, error);
    if (status == STATUS_OK && !few)
        status = tensors(backend, arena, out, error);
    if (status == STATUS_OK && !few)
        status = policy(backend, arena, out, error);
    if (status == STATUS_OK && !few)
        status = copies(backend, arena, error);
    arena_free(arena);
    backend_close(backend);
    return status;
}

static void compare(size_t number, const char *what, uint32_t i, const struct values *expected,
                    const struct values *found, double bound)
{
    size_t at;
    const double deviation = expected->count > 0 ? values_deviation(expected, found, &at) : 0;
    ck_assert_msg(deviation <= bound, "%s: %s %u is off by %g at element %zu, expected at most %g",
                  op_rule(cases[number].op)->name, what, i, deviation, at, bound);
}

static void check_answers(size_t first, size_t end)
{
    for (size_t k = first; k < end; k++) {
        const struct op_answer *a = &right.answer[k], *b = &got.answer[k];
        for (uint32_t i = 0; i < OP_OUTPUTS_MAX; i++)
            compare(k, "output", i, &a->out[i], &b->out[i], a->out_bound);
        for (uint32_t i = 0; i < OP_INPUTS_MAX; i++)
            compare(k, "gradient", i, &a->din[i], &b->din[i], a->din_bound[i]);
    }
}

/* A body without a fault. */
static void run_well(size_t first)
{
    struct error error;
    ck_assert_msg(body(first, false, &got, &error) == STATUS_OK, "without a fault: %s", error.text);
    ck_assert_uint_eq(gpu.alive_count(), 0);
    check_answers(first, CASES);
    ck_assert_mem_eq(got.numbers, right.numbers, sizeof got.numbers);
    ck_assert_mem_eq(got.actions, right.actions, sizeof got.actions);
    ck_assert_mem_eq(got.values, right.values, sizeof got.values);
    ck_assert_double_eq(got.square_sum, right.square_sum);
    ck_assert_uint_eq(got.not_finite, right.not_finite);
}

/* Fills `right`: the operations' numbers are the oracle's, the rest the first body's. */
static void open_all(void)
{
    struct error error;
    struct backend *ref;
    struct arena *arena;
    gpu_find();
    ck_assert_int_eq(backend_open(&ref, &ref_ops, &(struct backend_settings){0}, &error), STATUS_OK);
    for (size_t i = 0; i < CASES; i++)
        op_problem_init(&problems[i], &cases[i], ref);
    ck_assert_msg(body(0, false, &right, &error) == STATUS_OK, "without a fault: %s", error.text);
    ck_assert_int_eq(arena_new(&arena, &ref->source, &error), STATUS_OK);
    ck_assert_int_eq(operations(ref, arena, 0, CASES, &right, &error), STATUS_OK);
    arena_free(arena);
    backend_close(ref);
    run_well(0);
}

static void close_all(void)
{
    for (size_t i = 0; i < CASES; i++) {
        op_answer_fini(&right.answer[i]);
        op_answer_fini(&got.answer[i]);
        op_problem_fini(&problems[i]);
    }
}

/* ---- faults ---- */

/* Calls of a function that fail with each of its first two errors, and with each of the others: the first and
 * the last, and those between at equal distances. Under a sanitizer, only the first error happens, as often
 * as the others. */
enum { TRIES_FIRST = 40, TRIES = 3, CODES_MAX = 12, GROUPS = 8 };

enum manner {
    REPORTED,
    FREES,    /* frees before it fails; nobody has to be told */
    MAY_PASS, /* REPORTED by most callers; one that frees has nobody to tell, and an arena can do without */
    REPLACED, /* NOT_SUPPORTED: another algorithm runs; where there is none, REPORTED */
    PROPOSES, /* REPORTED; called only after a refusal */
    SILENT,   /* returns no error */
};

/* Functions and the errors that their documentation names. */
struct documented {
    const char *function;
    enum manner manner;
    int codes[CODES_MAX];
};

/* What a call returns for earlier work that failed: "may also return error codes from previous, asynchronous
 * launches". */
#define EARLIER cudaErrorIllegalAddress, cudaErrorLaunchFailure
#define NO_HOST_MEMORY CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED
#define COMPUTES CUDNN_STATUS_NOT_SUPPORTED, CUDNN_STATUS_BAD_PARAM, CUDNN_STATUS_EXECUTION_FAILED
#define CREATES(name)                                                                                        \
    {"cudnnCreate" name, REPORTED, {NO_HOST_MEMORY}},                                                        \
    {                                                                                                        \
        "cudnnDestroy" name, FREES,                                                                          \
        {                                                                                                    \
            CUDNN_STATUS_BAD_PARAM                                                                           \
        }                                                                                                    \
    }
#define CONVOLVES(name)                                                                                      \
    {"cudnnConvolution" name, REPLACED, {COMPUTES, CUDNN_STATUS_BAD_PARAM_STREAM_MISMATCH}},                 \
        {"cudnnGetConvolution" name "WorkspaceSize",                                                         \
         REPLACED,                                                                                           \
         {CUDNN_STATUS_NOT_SUPPORTED, CUDNN_STATUS_BAD_PARAM}},                                              \
    {                                                                                                        \
        "cudnnGetConvolution" name "Algorithm_v7", PROPOSES,                                                 \
        {                                                                                                    \
            CUDNN_STATUS_BAD_PARAM, CUDNN_STATUS_INTERNAL_ERROR                                              \
        }                                                                                                    \
    }

static const struct documented functions[] = {
    {"cudaGetDeviceCount",
     REPORTED,
     {cudaErrorNoDevice, cudaErrorInsufficientDriver, cudaErrorInitializationError, EARLIER}},
    {"cudaSetDevice", REPORTED, {cudaErrorInvalidDevice, cudaErrorDevicesUnavailable, EARLIER}},
    {"cudaGetDeviceProperties", REPORTED, {cudaErrorInvalidDevice, EARLIER}},
    {"cudaMalloc", MAY_PASS, {cudaErrorMemoryAllocation, EARLIER, cudaErrorInvalidValue}},
    {"cudaHostAlloc", REPORTED, {cudaErrorMemoryAllocation, cudaErrorInvalidValue, EARLIER}},
    {"cudaFree", FREES, {cudaErrorInvalidValue, EARLIER}},
    {"cudaFreeHost", FREES, {cudaErrorInvalidValue, EARLIER}},
    {"cudaMemcpyAsync", REPORTED, {cudaErrorInvalidValue, cudaErrorInvalidMemcpyDirection, EARLIER}},
    {"cudaMemsetAsync", REPORTED, {cudaErrorInvalidValue, EARLIER}},
    {"cudaStreamCreateWithFlags", REPORTED, {cudaErrorInvalidValue, EARLIER}},
    {"cudaStreamDestroy", FREES, {cudaErrorInvalidValue, cudaErrorInvalidResourceHandle, EARLIER}},
    {"cudaStreamSynchronize", MAY_PASS, {cudaErrorInvalidResourceHandle, EARLIER}},
    {"cudaEventCreateWithFlags", REPORTED, {cudaErrorInvalidValue, EARLIER, cudaErrorMemoryAllocation}},
    {"cudaEventRecord", REPORTED, {cudaErrorInvalidValue, cudaErrorInvalidResourceHandle, EARLIER}},
    {"cudaEventSynchronize", REPORTED, {cudaErrorInvalidValue, cudaErrorInvalidResourceHandle, EARLIER}},
    {"cudaEventDestroy", FREES, {cudaErrorInvalidValue, cudaErrorInvalidResourceHandle, EARLIER}},
    {"cudaHostRegister",
     REPORTED,
     {cudaErrorInvalidValue, cudaErrorMemoryAllocation, cudaErrorHostMemoryAlreadyRegistered,
      cudaErrorNotSupported, EARLIER}},
    {"cudaHostUnregister", FREES, {cudaErrorInvalidValue, cudaErrorHostMemoryNotRegistered, EARLIER}},
    {"cudaStreamBeginCapture", REPORTED, {cudaErrorInvalidValue, EARLIER}},
    {"cudaStreamEndCapture", REPORTED, {cudaErrorInvalidValue, cudaErrorStreamCaptureWrongThread, EARLIER}},
    {"cudaGraphInstantiate", REPORTED, {cudaErrorInvalidValue, EARLIER}},
    {"cudaGraphUpload", REPORTED, {cudaErrorInvalidValue, EARLIER}},
    {"cudaGraphLaunch", REPORTED, {cudaErrorInvalidValue, EARLIER}},
    {"cudaGraphDestroy", FREES, {cudaErrorInvalidValue, EARLIER}},
    {"cudaGraphExecDestroy", FREES, {cudaErrorInvalidValue, EARLIER}},
    {"cudaLaunchKernel",
     REPORTED,
     {cudaErrorInvalidDeviceFunction, cudaErrorInvalidConfiguration, cudaErrorLaunchFailure,
      cudaErrorLaunchTimeout, cudaErrorLaunchOutOfResources, cudaErrorSharedObjectInitFailed,
      cudaErrorInvalidPtx, cudaErrorUnsupportedPtxVersion, cudaErrorNoKernelImageForDevice,
      cudaErrorJitCompilerNotFound, cudaErrorJitCompilationDisabled}},
    {"cudaGetLastError", MAY_PASS, {cudaErrorLaunchFailure, cudaErrorLaunchOutOfResources}},
    {"cudaPeekAtLastError", SILENT, {0}},
    {"cudnnGetVersion", SILENT, {0}},
    {"cudnnGetErrorString", SILENT, {0}},
    {"cudnnGetLastErrorString", SILENT, {0}},
    {"cudnnCreate",
     REPORTED,
     {CUDNN_STATUS_NOT_INITIALIZED, CUDNN_STATUS_BAD_PARAM, CUDNN_STATUS_NOT_SUPPORTED_ARCH_MISMATCH,
      NO_HOST_MEMORY, CUDNN_STATUS_INTERNAL_ERROR, CUDNN_STATUS_SUBLIBRARY_VERSION_MISMATCH}},
    {"cudnnDestroy", FREES, {CUDNN_STATUS_BAD_PARAM}},
    {"cudnnSetStream", REPORTED, {CUDNN_STATUS_BAD_PARAM, CUDNN_STATUS_BAD_PARAM_STREAM_MISMATCH}},
    CREATES("TensorDescriptor"),
    CREATES("FilterDescriptor"),
    CREATES("ConvolutionDescriptor"),
    CREATES("PoolingDescriptor"),
    CREATES("ActivationDescriptor"),
    CREATES("DropoutDescriptor"),
    CREATES("RNNDescriptor"),
    CREATES("RNNDataDescriptor"),
    {"cudnnSetTensor4dDescriptor", REPORTED, {CUDNN_STATUS_BAD_PARAM, CUDNN_STATUS_NOT_SUPPORTED}},
    {"cudnnSetTensorNdDescriptor", REPORTED, {CUDNN_STATUS_BAD_PARAM, CUDNN_STATUS_NOT_SUPPORTED}},
    {"cudnnSetFilter4dDescriptor", REPORTED, {CUDNN_STATUS_BAD_PARAM}},
    {"cudnnSetConvolution2dDescriptor", REPORTED, {CUDNN_STATUS_BAD_PARAM}},
    {"cudnnSetConvolutionMathType", REPORTED, {CUDNN_STATUS_BAD_PARAM}},
    {"cudnnSetPooling2dDescriptor", REPORTED, {CUDNN_STATUS_BAD_PARAM}},
    {"cudnnSetActivationDescriptor", REPORTED, {CUDNN_STATUS_BAD_PARAM}},
    {"cudnnSetDropoutDescriptor", REPORTED, {CUDNN_STATUS_BAD_PARAM, CUDNN_STATUS_EXECUTION_FAILED}},
    {"cudnnSetRNNDescriptor_v8", REPORTED, {CUDNN_STATUS_BAD_PARAM, CUDNN_STATUS_NOT_SUPPORTED}},
    {"cudnnSetRNNDataDescriptor",
     REPORTED,
     {CUDNN_STATUS_BAD_PARAM, CUDNN_STATUS_NOT_SUPPORTED, NO_HOST_MEMORY}},
    {"cudnnGetRNNWeightSpaceSize", REPORTED, {CUDNN_STATUS_BAD_PARAM, CUDNN_STATUS_NOT_SUPPORTED}},
    {"cudnnGetRNNTempSpaceSizes", REPORTED, {CUDNN_STATUS_BAD_PARAM, CUDNN_STATUS_NOT_SUPPORTED}},
    {"cudnnGetRNNWeightParams", REPORTED, {CUDNN_STATUS_BAD_PARAM, CUDNN_STATUS_NOT_SUPPORTED}},
    {"cudnnRNNForward", REPORTED, {COMPUTES, NO_HOST_MEMORY}},
    {"cudnnRNNBackwardData_v8", REPORTED, {COMPUTES, NO_HOST_MEMORY}},
    {"cudnnRNNBackwardWeights_v8", REPORTED, {COMPUTES, NO_HOST_MEMORY}},
    CONVOLVES("Forward"),
    CONVOLVES("BackwardData"),
    CONVOLVES("BackwardFilter"),
    {"cudnnConvolutionBiasActivationForward",
     REPLACED,
     {COMPUTES, CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED}},
    {"cudnnConvolutionBackwardBias", REPORTED, {COMPUTES}},
    {"cudnnSoftmaxForward", REPORTED, {COMPUTES}},
    {"cudnnSoftmaxBackward", REPORTED, {COMPUTES}},
    {"cudnnPoolingForward", REPORTED, {COMPUTES}},
};
enum { FUNCTIONS = sizeof functions / sizeof *functions };

START_TEST(every_function_that_is_called_is_in_the_table)
{
    const char *name;
    ck_assert(backend_finds_gpu());
    gpu.arm("cudaGetDeviceCount", 1, cudaErrorNoDevice);
    ck_assert(!backend_finds_gpu());
    gpu.disarm();
    for (enum op op = 0; op < OP_COUNT; op++) {
        bool runs = false;
        for (size_t i = 0; i < CASES; i++)
            runs = runs || cases[i].op == op;
        ck_assert_msg(runs, "%s is not run", op_rule(op)->name);
    }
    for (unsigned i = 0; (name = gpu.called(i)) != NULL; i++) {
        bool found = false;
        for (size_t k = 0; k < FUNCTIONS; k++)
            found = found || strcmp(functions[k].function, name) == 0;
        ck_assert_msg(found, "%s has no line in the table", name);
    }
}
END_TEST

/* The words by which an error names the function. */
static bool is_named(const struct documented *it, int code, const struct error *error)
{
    const char *function = it->function;
    if (strcmp(function, "cudaLaunchKernel") == 0 || strcmp(function, "cudaGetLastError") == 0)
        function = "launch of ";
    if (strstr(error->text, function) != NULL)
        return true;
    if (strcmp(function, "cudaMalloc") == 0) /* an arena tells its caller no more than that */
        return strstr(error->text, "no memory") != NULL;
    /* The error of earlier work stays, and a later call reports what nobody could be told here. */
    return (it->manner == FREES || it->manner == MAY_PASS) &&
           (code == cudaErrorIllegalAddress || code == cudaErrorLaunchFailure);
}

/* Whether the body reported the fault. */
static bool fail_once(const struct documented *it, unsigned nth, int code, size_t first)
{
    struct error error;
    gpu.arm(it->function, nth, code);
    const enum status status = body(first, false, &got, &error);
    ck_assert_msg(gpu.fault_happened(), "%s has no call %u", it->function, nth);
    ck_assert_msg(gpu.alive_count() == 0, "%s, call %u, error %d: %ju objects are alive", it->function, nth,
                  code, (uintmax_t)gpu.alive_count());
    ck_assert_msg(status == STATUS_OK || is_named(it, code, &error), "%s, call %u, error %d: \"%s\"",
                  it->function, nth, code, error.text);
    if (status == STATUS_OK)
        check_answers(first, CASES);
    if (code == cudaErrorIllegalAddress || code == cudaErrorLaunchFailure || code == cudaErrorLaunchTimeout)
        gpu.disarm(); /* a process ends after such an error; this one is made to forget it */
    return status != STATUS_OK;
}

static void fail_often(const struct documented *it, bool sanitized)
{
    const size_t first = it->manner == PROPOSES ? 1 : 0;
    gpu.refuse(NULL);
    if (it->manner == PROPOSES)
        gpu.refuse("FUSED,FWD_ALGO_IMPLICIT_PRECOMP_GEMM,BWD_DATA_ALGO_1,BWD_FILTER_ALGO_1");
    const uint64_t before = gpu.calls(it->function);
    run_well(first);
    const unsigned calls = (unsigned)(gpu.calls(it->function) - before);
    for (int k = 0; k < (sanitized ? 1 : CODES_MAX) && it->codes[k] != 0; k++) {
        const unsigned tries = k < 2 && !sanitized ? TRIES_FIRST : TRIES,
                       times = calls < tries ? calls : tries;
        const bool replaced = it->manner == REPLACED && it->codes[k] == CUDNN_STATUS_NOT_SUPPORTED;
        unsigned reported = 0;
        for (unsigned i = 0; i < times; i++)
            reported +=
                fail_once(it, times == 1 ? 1 : 1 + i * (calls - 1) / (times - 1), it->codes[k], first);
        const unsigned least = it->manner == FREES || replaced ? 0 : it->manner == MAY_PASS ? 1 : times;
        ck_assert_msg(reported >= least, "%s: %u of %u errors %d were reported", it->function, reported,
                      times, it->codes[k]);
        run_well(first);
    }
}

/* Every GROUPSth function of the table, from number _i on. */
START_TEST(a_call_that_fails_is_reported_and_nothing_is_lost)
{
    const char *san = getenv("SAN");
    for (size_t i = (size_t)_i; i < FUNCTIONS; i += GROUPS)
        fail_often(&functions[i], san != NULL && *san != '\0');
}
END_TEST

/* ---- refusals ---- */

/* Deterministic algorithms in the order in which the backend tries them for a filter of 3x3 without a stride.
 */
static const struct {
    const char *pass, *error;
    const char *names[8];
} passes[] = {
    {"FWD",
     "cudnnConvolutionForward by algorithms 1, 2, 0, 6, 7, 5, 4 failed",
     {"IMPLICIT_PRECOMP_GEMM", "GEMM", "IMPLICIT_GEMM", "WINOGRAD", "WINOGRAD_NONFUSED", "FFT_TILING",
      "FFT"}},
    {"BWD_DATA",
     "cudnnConvolutionBackwardData by algorithms 1, 4, 5, 3, 2 failed",
     {"1", "WINOGRAD", "WINOGRAD_NONFUSED", "FFT_TILING", "FFT"}},
    {"BWD_FILTER",
     "cudnnConvolutionBackwardFilter by algorithms 1, 5, 6, 2 failed",
     {"1", "WINOGRAD_NONFUSED", "FFT_TILING", "FFT"}},
};
enum { PASSES = sizeof passes / sizeof *passes };

/* Refuses names[from .. end) of a pass, when they are to run or at once. */
static void refuse(int pass, int from, int end, const char *when)
{
    char name[80];
    for (int i = from; i < end; i++) {
        snprintf(name, sizeof name, "%s_ALGO_%s%s", passes[pass].pass, passes[pass].names[i], when);
        gpu.refuse(name);
    }
}

static void convolve(size_t first)
{
    struct error error;
    ck_assert_msg(body(first, true, &got, &error) == STATUS_OK, "%s", error.text);
    check_answers(first, CONVOLUTIONS);
}

static void convolve_in_vain(size_t first, const char *expected)
{
    struct error error;
    ck_assert_int_ne(body(first, true, &got, &error), STATUS_OK);
    ck_assert_msg(strstr(error.text, expected) != NULL, "expected \"%s\" in \"%s\"", expected, error.text);
    ck_assert_uint_eq(gpu.alive_count(), 0);
}

START_TEST(a_refused_algorithm_is_replaced)
{
    const char *const when[] = {"", ":run"};
    const int pass = _i / 2;
    int count = 0;
    gpu.refuse("FUSED");
    while (passes[pass].names[count] != NULL)
        count++;
    for (int i = 0; i < count; i++) { /* one alone, then all up to it */
        gpu.refuse(NULL);
        gpu.refuse("FUSED");
        refuse(pass, i, i + 1, when[_i % 2]);
        convolve(1);
        refuse(pass, 0, i, when[_i % 2]);
        if (i + 1 < count)
            convolve(1);
    }
    convolve_in_vain(1, _i % 2 == 1 ? passes[pass].error
                                    : "WorkspaceSize by algorithm 1 failed on x of 1x2x4x4");
}
END_TEST

/* cuDNN's FFT and Winograd demand a stride of 1, and its other backward algorithms add in any order. */
START_TEST(a_stride_leaves_one_deterministic_backward)
{
    refuse(0, 0, 2, "");
    convolve(0);
    refuse(2, 0, 1, ":run");
    convolve_in_vain(0, "cudnnConvolutionBackwardFilter by algorithm 1 failed on x of 1x2x4x4");
    refuse(1, 0, 1, ":run");
    convolve_in_vain(0, "cudnnConvolutionBackwardData by algorithm 1 failed on x of 1x2x4x4");
}
END_TEST

START_TEST(a_refused_fusion_is_replaced)
{
    gpu.refuse(_i == 0 ? "FUSED_IDENTITY" : "FUSED_IDENTITY,FWD_ALGO_IMPLICIT_PRECOMP_GEMM:run");
    run_well(0);
}
END_TEST

/* ---- limits ---- */

/* As many shapes as make the backend forget its plans. */
START_TEST(shapes_that_come_and_go_do_not_fill_the_memory)
{
    enum { SHAPES = 1100, MIDDLE = SHAPES / 2 };
    struct backend *backend;
    struct arena *arena;
    struct error error;
    uint64_t alive = 0;
    ck_assert_int_eq(backend_load(&backend, "cuda", &(struct backend_settings){0}, &error), STATUS_OK);
    ck_assert_int_eq(arena_new(&arena, &backend->source, &error), STATUS_OK);
    for (uint32_t i = 1; i <= SHAPES; i++) {
        struct tensor x, y = {0};
        struct op_call call = {.op = OP_LOG_SOFTMAX, .arena = arena, .in = {&x}, .out = {&y}};
        ck_assert_int_eq(tensor_new(&x, arena, SHAPE2(1, i), DTYPE_F32, "x", &error), STATUS_OK);
        ck_assert_int_eq(backend_fill(backend, &x, 1, &error), STATUS_OK);
        ck_assert_msg(op_forward(backend, &call, &error) == STATUS_OK, "%s", error.text);
        arena_reset(arena);
        alive = i == MIDDLE ? gpu.alive_count() : alive;
    }
    ck_assert_uint_lt(gpu.alive_count(), alive);
    arena_free(arena);
    backend_close(backend);
    ck_assert_uint_eq(gpu.alive_count(), 0);
}
END_TEST

START_TEST(an_old_device_is_refused)
{
    struct error error;
    setenv("GPU_CAPABILITY", "7", 1);
    ck_assert_int_eq(body(0, false, &got, &error), STATUS_UNAVAILABLE);
    ck_assert_msg(strstr(error.text, "has compute capability 7.0, expected at least 8.0") != NULL, "%s",
                  error.text);
    ck_assert_uint_eq(gpu.alive_count(), 0);
}
END_TEST

START_TEST(released_memory_is_poisoned)
{
    struct backend *backend;
    struct arena *arena;
    struct error error;
    float number = 1;
    struct tensor x, other;
    ck_assert_int_eq(backend_load(&backend, "cuda", &(struct backend_settings){0}, &error), STATUS_OK);
    ck_assert_int_eq(arena_new(&arena, &backend->source, &error), STATUS_OK);
    arena_poison(arena, true);
    for (int step = 0; step < 2; step++) { /* in the second, both lie in one chunk */
        arena_reset(arena);
        ck_assert_int_eq(tensor_new(&x, arena, SHAPE1(1), DTYPE_F32, "x", &error), STATUS_OK);
        ck_assert_int_eq(tensor_new(&other, arena, SHAPE1(1), DTYPE_F32, "other", &error), STATUS_OK);
    }
    ck_assert_int_eq(backend_upload(backend, &x, DTYPE_F32, &number, &error), STATUS_OK);
    arena_release(arena, x.data);
    ck_assert_int_eq(backend_download(backend, &x, DTYPE_F32, &number, &error), STATUS_OK);
    ck_assert(isnan(number));
    arena_free(arena);
    backend_close(backend);
}
END_TEST

/* ---- the program ---- */

/* $COALESCED_PLUGINS, or the folder of the stand-in's plug-in beside this program. */
static bool find_plugin(void)
{
    const char *set = getenv("COALESCED_PLUGINS");
    char folder[PATH_MAX - 32];
    if (set != NULL) {
        snprintf(folder, sizeof folder, "%s", set);
    } else {
        const ssize_t length = readlink("/proc/self/exe", folder, sizeof folder - 1);
        folder[length > 0 ? length : 0] = '\0';
        for (int i = 0; i < 2 && strrchr(folder, '/') != NULL; i++)
            *strrchr(folder, '/') = '\0';
        snprintf(folder + strlen(folder), sizeof folder - strlen(folder), "/gpu");
        setenv("COALESCED_PLUGINS", folder, 1);
    }
    snprintf(plugin, sizeof plugin, "%s/libcoalesced-cuda.so", folder);
    return access(plugin, R_OK) == 0;
}

int main(void)
{
    if (!find_plugin()) {
        printf("skipped: there is no %s\n", plugin);
        return 77;
    }
    setenv("GPU_CUDNN_STRICT", "1", 1);
    Suite *suite = suite_create("cuda faults");
    TCase *faults = tcase_create("faults"), *refusals = tcase_create("refusals"),
          *limits = tcase_create("limits");
    tcase_set_timeout(faults, 60);
    tcase_add_checked_fixture(faults, open_all, close_all);
    tcase_add_test(faults, every_function_that_is_called_is_in_the_table);
    tcase_add_loop_test(faults, a_call_that_fails_is_reported_and_nothing_is_lost, 0, GROUPS);
    suite_add_tcase(suite, faults);
    tcase_add_checked_fixture(refusals, open_all, close_all);
    tcase_add_loop_test(refusals, a_refused_algorithm_is_replaced, 0, 2 * PASSES);
    tcase_add_test(refusals, a_stride_leaves_one_deterministic_backward);
    tcase_add_loop_test(refusals, a_refused_fusion_is_replaced, 0, 2);
    suite_add_tcase(suite, refusals);
    tcase_add_checked_fixture(limits, open_all, close_all);
    tcase_add_test(limits, shapes_that_come_and_go_do_not_fill_the_memory);
    tcase_add_test(limits, an_old_device_is_refused);
    tcase_add_test(limits, released_memory_is_poisoned);
    suite_add_tcase(suite, limits);
    return suite_run(suite);
}
