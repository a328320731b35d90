/* The stand-in's convolutions: their algorithms, what a caller is told about them, and the passes.
 *
 * Every algorithm computes the same by the oracle. They differ in what the caller sees: the sizes of their
 * workspaces, the shapes that they support, and whether they are deterministic. With another math type than
 * CUDNN_FMA_MATH the factors are rounded to TF32, as a GPU may do. */
#include "test/gpu/cudnn_stand_in.h"
#include "test/gpu/gpu_cudnn.h"
#include "test/oracle/ref_internal.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* The arguments of every pass. x and y are also their gradients' sizes. */
struct problem {
    struct cudnn_tensor x, y;
    struct cudnn_filter weight;
    struct cudnn_convolution convolution;
};

/* ---- algorithms ---- */

enum pass { FORWARD, BACKWARD_DATA, BACKWARD_FILTER };

/* The shapes that an algorithm supports. */
enum fits { FITS_ALL, FITS_NONE, FITS_3X3, FITS_3X3_5X5, FITS_FFT, FITS_FFT_TILING };

/* What an algorithm keeps in its workspace. */
enum work { WORK_NOTHING, WORK_OFFSETS, WORK_COLUMNS, WORK_TRANSFORMS };

struct algorithm {
    const char *name;
    enum pass pass;
    int number;        /* of cuDNN's enum for the pass */
    bool random;       /* not deterministic */
    bool tensor_cores; /* is also proposed with CUDNN_TENSOR_OP_MATH */
    enum fits fits;
    enum work work;
};

#define ALGORITHM(pass, name, random, tensor_cores, fits, work)                                              \
    {                                                                                                        \
#name, pass, CUDNN_CONVOLUTION_##name, random, tensor_cores, fits, work                              \
    }

/* The fastest of each pass first. That is the order of the proposals, too. */
static const struct algorithm algorithms[] = {
    ALGORITHM(FORWARD, FWD_ALGO_WINOGRAD, false, false, FITS_3X3, WORK_TRANSFORMS),
    ALGORITHM(FORWARD, FWD_ALGO_WINOGRAD_NONFUSED, false, true, FITS_3X3_5X5, WORK_TRANSFORMS),
    ALGORITHM(FORWARD, FWD_ALGO_IMPLICIT_PRECOMP_GEMM, false, true, FITS_ALL, WORK_OFFSETS),
    ALGORITHM(FORWARD, FWD_ALGO_FFT_TILING, false, false, FITS_FFT_TILING, WORK_TRANSFORMS),
    ALGORITHM(FORWARD, FWD_ALGO_FFT, false, false, FITS_FFT, WORK_TRANSFORMS),
    ALGORITHM(FORWARD, FWD_ALGO_GEMM, false, false, FITS_ALL, WORK_COLUMNS),
    ALGORITHM(FORWARD, FWD_ALGO_IMPLICIT_GEMM, false, false, FITS_ALL, WORK_NOTHING),
    ALGORITHM(FORWARD, FWD_ALGO_DIRECT, false, false, FITS_NONE, WORK_NOTHING),
    ALGORITHM(BACKWARD_DATA, BWD_DATA_ALGO_0, true, false, FITS_ALL, WORK_NOTHING),
    ALGORITHM(BACKWARD_DATA, BWD_DATA_ALGO_WINOGRAD, false, false, FITS_3X3, WORK_TRANSFORMS),
    ALGORITHM(BACKWARD_DATA, BWD_DATA_ALGO_WINOGRAD_NONFUSED, false, true, FITS_3X3_5X5, WORK_TRANSFORMS),
    ALGORITHM(BACKWARD_DATA, BWD_DATA_ALGO_1, false, true, FITS_ALL, WORK_OFFSETS),
    ALGORITHM(BACKWARD_DATA, BWD_DATA_ALGO_FFT_TILING, false, false, FITS_FFT_TILING, WORK_TRANSFORMS),
    ALGORITHM(BACKWARD_DATA, BWD_DATA_ALGO_FFT, false, false, FITS_FFT, WORK_TRANSFORMS),
    ALGORITHM(BACKWARD_FILTER, BWD_FILTER_ALGO_0, true, false, FITS_ALL, WORK_NOTHING),
    ALGORITHM(BACKWARD_FILTER, BWD_FILTER_ALGO_3, true, false, FITS_ALL, WORK_COLUMNS),
    ALGORITHM(BACKWARD_FILTER, BWD_FILTER_ALGO_WINOGRAD_NONFUSED, false, true, FITS_3X3_5X5, WORK_TRANSFORMS),
    ALGORITHM(BACKWARD_FILTER, BWD_FILTER_ALGO_1, false, true, FITS_ALL, WORK_OFFSETS),
    ALGORITHM(BACKWARD_FILTER, BWD_FILTER_ALGO_FFT_TILING, false, false, FITS_FFT_TILING, WORK_TRANSFORMS),
    ALGORITHM(BACKWARD_FILTER, BWD_FILTER_ALGO_FFT, false, false, FITS_FFT, WORK_TRANSFORMS),
    ALGORITHM(BACKWARD_FILTER, BWD_FILTER_ALGO_WINOGRAD, false, false, FITS_NONE, WORK_NOTHING),
};
enum { ALGORITHMS = sizeof algorithms / sizeof *algorithms };

static bool kernel_is(const struct problem *problem, int size)
{
    return problem->weight.size[2] == size && problem->weight.size[3] == size;
}

static bool stride_is_1(const struct problem *problem)
{
    return problem->convolution.stride[0] == 1 && problem->convolution.stride[1] == 1;
}

static bool padding_below_kernel(const struct problem *problem)
{
    return problem->convolution.padding[0] < problem->weight.size[2] &&
           problem->convolution.padding[1] < problem->weight.size[3];
}

static bool fits(const struct algorithm *algorithm, const struct problem *problem)
{
    const int *kernel = problem->weight.size + 2, *x = problem->x.size + 2;
    const int *padding = problem->convolution.padding;
    switch (algorithm->fits) {
    case FITS_ALL:
        return true;
    case FITS_NONE:
        return false;
    case FITS_3X3:
        return stride_is_1(problem) && kernel_is(problem, 3);
    case FITS_3X3_5X5:
        return stride_is_1(problem) && (kernel_is(problem, 3) || kernel_is(problem, 5));
    case FITS_FFT:
        return stride_is_1(problem) && padding_below_kernel(problem) && x[0] + 2 * padding[0] <= 256 &&
               x[1] + 2 * padding[1] <= 256;
    case FITS_FFT_TILING:
        return stride_is_1(problem) && padding_below_kernel(problem) && kernel[0] <= 32 && kernel[1] <= 32;
    }
    return false;
}

/* The sizes are invented. They differ between algorithms and shapes, as a GPU's do. */
static size_t workspace_bytes(const struct algorithm *algorithm, const struct problem *problem)
{
    const struct cudnn_filter *weight = &problem->weight;
    const size_t taps = (size_t)weight->size[1] * (size_t)weight->size[2] * (size_t)weight->size[3];
    const size_t pixels = (size_t)problem->y.size[2] * (size_t)problem->y.size[3];
    size_t floats = 0;
    switch (algorithm->work) {
    case WORK_NOTHING:
        return 0;
    case WORK_OFFSETS:
        floats = taps + pixels;
        break;
    case WORK_COLUMNS:
        floats = taps * pixels;
        break;
    case WORK_TRANSFORMS:
        floats = cudnn_elements(&problem->x) + cudnn_elements(&problem->y) + taps * (size_t)weight->size[0];
        break;
    }
    return 256 * (1 + (size_t)algorithm->number) + floats * sizeof(float);
}

/* ---- refused parts ---- */

enum fusion { FUSED, FUSED_IDENTITY, FUSED_RELU, FUSED_PROPAGATE_NAN, FUSIONS };
static const char *const fusion_names[FUSIONS] = {"FUSED", "FUSED_IDENTITY", "FUSED_RELU",
                                                  "FUSED_PROPAGATE_NAN"};

/* Algorithms first, fusions behind them. */
enum { PARTS = ALGORITHMS + FUSIONS };
static enum { ACCEPTED, REFUSED_AT_RUN, REFUSED } refused[PARTS];

static void refuse_name(const char *name, size_t length)
{
    static const char suffix[] = ":run";
    const size_t suffix_length = sizeof suffix - 1;
    const bool at_run =
        length > suffix_length && memcmp(name + length - suffix_length, suffix, suffix_length) == 0;
    const size_t part_length = at_run ? length - suffix_length : length;
    for (size_t i = 0; i < PARTS; i++) {
        const char *part = i < ALGORITHMS ? algorithms[i].name : fusion_names[i - ALGORITHMS];
        if (strlen(part) == part_length && memcmp(part, name, part_length) == 0) {
            refused[i] = at_run ? REFUSED_AT_RUN : REFUSED;
            return;
        }
    }
    gpu_misuse("cuDNN's stand-in has no part \"%.*s\" to refuse", (int)length, name);
}

static void refuse_names(const char *names)
{
    while (names != NULL && *names != '\0') {
        const size_t length = strcspn(names, ",");
        refuse_name(names, length);
        names += length + (names[length] == ',');
    }
}

static pthread_once_t environment_read = PTHREAD_ONCE_INIT;

static void read_environment(void)
{
    refuse_names(getenv("GPU_CUDNN_REFUSE"));
}

void gpu_cudnn_refuse(const char *names)
{
    pthread_once(&environment_read, read_environment);
    if (names == NULL)
        memset(refused, 0, sizeof refused);
    refuse_names(names);
}

static bool is_refused(size_t part, bool running)
{
    pthread_once(&environment_read, read_environment);
    return refused[part] == REFUSED || (running && refused[part] == REFUSED_AT_RUN);
}

/* CUDNN_STATUS_BAD_PARAM: no such algorithm. CUDNN_STATUS_NOT_SUPPORTED: not for this shape, or refused. */
static cudnnStatus_t algorithm_of(const char *function, enum pass pass, int number,
                                  const struct problem *problem, bool running, const struct algorithm **out)
{
    for (size_t i = 0; i < ALGORITHMS; i++) {
        *out = &algorithms[i];
        if ((*out)->pass != pass || (*out)->number != number)
            continue;
        if (!fits(*out, problem) || is_refused(i, running))
            return cudnn_refusal(CUDNN_STATUS_NOT_SUPPORTED, function,
                                 "algorithm %s does not support this convolution", (*out)->name);
        return CUDNN_STATUS_SUCCESS;
    }
    return cudnn_refusal(CUDNN_STATUS_BAD_PARAM, function, "algorithm %d does not exist", number);
}

/* ---- the problem ---- */

/* The output's sizes must be those that x, weight and convolution give. */
static cudnnStatus_t check_output(const char *function, const struct problem *problem)
{
    const int *x = problem->x.size, *y = problem->y.size, *weight = problem->weight.size;
    const struct cudnn_convolution *convolution = &problem->convolution;
    int expected[4] = {x[0], weight[0], 0, 0};
    for (int i = 0; i < 2; i++) {
        const int room = x[2 + i] + 2 * convolution->padding[i] - weight[2 + i];
        if (room < 0)
            return cudnn_refusal(CUDNN_STATUS_BAD_PARAM, function,
                                 "the filter is larger than the padded image: %d, and %d with padding %d",
                                 weight[2 + i], x[2 + i], convolution->padding[i]);
        expected[2 + i] = room / convolution->stride[i] + 1;
    }
    if (memcmp(expected, y, sizeof expected) != 0)
        return cudnn_refusal(CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH, function,
                             "the output is (%d, %d, %d, %d), expected (%d, %d, %d, %d)", y[0], y[1], y[2],
                             y[3], expected[0], expected[1], expected[2], expected[3]);
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t problem_of(const char *function, cudnnTensorDescriptor_t x,
                                cudnnFilterDescriptor_t weight, cudnnConvolutionDescriptor_t convolution,
                                cudnnTensorDescriptor_t y, struct problem *out)
{
    TRY(cudnn_images_of(function, "the images' descriptor", x, &out->x));
    TRY(cudnn_filter_of(function, weight, &out->weight));
    TRY(cudnn_convolution_of(function, convolution, &out->convolution));
    TRY(cudnn_images_of(function, "the output's descriptor", y, &out->y));
    const struct cudnn_convolution *set = &out->convolution;
    if (out->weight.type != CUDNN_DATA_FLOAT || set->type != CUDNN_DATA_FLOAT)
        return cudnn_refusal(CUDNN_STATUS_NOT_SUPPORTED_DATA_TYPE, function,
                             "the stand-in computes with floats only");
    if (out->weight.format != CUDNN_TENSOR_NCHW)
        return cudnn_refusal(CUDNN_STATUS_NOT_SUPPORTED_LAYOUT, function, "the filter is not NCHW");
    if (set->mode != CUDNN_CROSS_CORRELATION || set->dilation[0] != 1 || set->dilation[1] != 1)
        return cudnn_refusal(CUDNN_STATUS_NOT_SUPPORTED, function,
                             "the stand-in has no flipped filters and no dilation");
    if (out->weight.size[1] != out->x.size[1])
        return cudnn_refusal(CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH, function,
                             "the filter has %d channels, and the images %d", out->weight.size[1],
                             out->x.size[1]);
    return check_output(function, out);
}

static size_t filter_elements(const struct cudnn_filter *filter)
{
    const int *size = filter->size;
    return (size_t)size[0] * (size_t)size[1] * (size_t)size[2] * (size_t)size[3];
}

/* ---- what a caller asks before it computes ---- */

static cudnnStatus_t workspace_size(const char *function, cudnnHandle_t handle, enum pass pass, int number,
                                    const struct problem *problem, size_t *bytes)
{
    const struct algorithm *algorithm;
    struct cudnn_work unused;
    TRY(cudnn_begin(&unused, function, handle, NULL));
    if (bytes == NULL)
        return cudnn_refusal(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, function, "sizeInBytes is NULL");
    TRY(algorithm_of(function, pass, number, problem, false, &algorithm));
    *bytes = workspace_bytes(algorithm, problem);
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnGetConvolutionForwardWorkspaceSize(cudnnHandle_t handle, cudnnTensorDescriptor_t xDesc,
                                                      cudnnFilterDescriptor_t wDesc,
                                                      cudnnConvolutionDescriptor_t convDesc,
                                                      cudnnTensorDescriptor_t yDesc,
                                                      cudnnConvolutionFwdAlgo_t algo, size_t *sizeInBytes)
{
    ENTER();
    struct problem problem;
    TRY(problem_of(__func__, xDesc, wDesc, convDesc, yDesc, &problem));
    return workspace_size(__func__, handle, FORWARD, (int)algo, &problem, sizeInBytes);
}

cudnnStatus_t cudnnGetConvolutionBackwardDataWorkspaceSize(
    cudnnHandle_t handle, cudnnFilterDescriptor_t wDesc, cudnnTensorDescriptor_t dyDesc,
    cudnnConvolutionDescriptor_t convDesc, cudnnTensorDescriptor_t dxDesc, cudnnConvolutionBwdDataAlgo_t algo,
    size_t *sizeInBytes)
{
    ENTER();
    struct problem problem;
    TRY(problem_of(__func__, dxDesc, wDesc, convDesc, dyDesc, &problem));
    return workspace_size(__func__, handle, BACKWARD_DATA, (int)algo, &problem, sizeInBytes);
}

cudnnStatus_t cudnnGetConvolutionBackwardFilterWorkspaceSize(
    cudnnHandle_t handle, cudnnTensorDescriptor_t xDesc, cudnnTensorDescriptor_t dyDesc,
    cudnnConvolutionDescriptor_t convDesc, cudnnFilterDescriptor_t gradDesc,
    cudnnConvolutionBwdFilterAlgo_t algo, size_t *sizeInBytes)
{
    ENTER();
    struct problem problem;
    TRY(problem_of(__func__, xDesc, gradDesc, convDesc, dyDesc, &problem));
    return workspace_size(__func__, handle, BACKWARD_FILTER, (int)algo, &problem, sizeInBytes);
}

/* A proposal of any pass. */
struct proposal {
    int number;
    cudnnStatus_t status;
    float milliseconds;
    size_t bytes;
    cudnnDeterminism_t determinism;
    cudnnMathType_t math;
};
enum { PROPOSALS_MAX = 2 * ALGORITHMS };

/* Adds the pass's algorithms that are supported, or those that are not. */
static int add_proposals(enum pass pass, const struct problem *problem, bool supported, int count,
                         struct proposal *out)
{
    for (size_t i = 0; i < ALGORITHMS; i++) {
        const struct algorithm *algorithm = &algorithms[i];
        if (algorithm->pass != pass || (fits(algorithm, problem) && !is_refused(i, false)) != supported)
            continue;
        struct proposal proposal = {.number = algorithm->number,
                                    .status = supported ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_NOT_SUPPORTED,
                                    .milliseconds = supported ? (float)(count + 1) : -1,
                                    .bytes = supported ? workspace_bytes(algorithm, problem) : 0,
                                    .determinism =
                                        algorithm->random ? CUDNN_NON_DETERMINISTIC : CUDNN_DETERMINISTIC,
                                    .math = CUDNN_TENSOR_OP_MATH};
        if (algorithm->tensor_cores)
            out[count++] = proposal;
        proposal.math = CUDNN_FMA_MATH;
        out[count++] = proposal;
    }
    return count;
}

/* Those that are supported stand first, the fastest of them in front. */
static cudnnStatus_t propose(const char *function, cudnnHandle_t handle, enum pass pass,
                             const struct problem *problem, int requested, int *returned, const void *results,
                             struct proposal *out)
{
    struct cudnn_work unused;
    TRY(cudnn_begin(&unused, function, handle, NULL));
    if (returned == NULL || results == NULL)
        return cudnn_refusal(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, function, "a result's pointer is NULL");
    if (requested < 1)
        return cudnn_refusal(CUDNN_STATUS_BAD_PARAM, function, "%d proposals requested, expected at least 1",
                             requested);
    int count = add_proposals(pass, problem, true, 0, out);
    count = add_proposals(pass, problem, false, count, out);
    *returned = count < requested ? count : requested;
    return CUDNN_STATUS_SUCCESS;
}

/* Copies proposals into the results of one pass, whose three types have equal members. */
#define COPY_PROPOSALS(Algorithm, results, count, proposals)                                                 \
    for (int i = 0; i < (count); i++) {                                                                      \
        memset(&(results)[i], 0, sizeof(results)[i]);                                                        \
        (results)[i].algo = (Algorithm)(proposals)[i].number;                                                \
        (results)[i].status = (proposals)[i].status;                                                         \
        (results)[i].time = (proposals)[i].milliseconds;                                                     \
        (results)[i].memory = (proposals)[i].bytes;                                                          \
        (results)[i].determinism = (proposals)[i].determinism;                                               \
        (results)[i].mathType = (proposals)[i].math;                                                         \
    }

cudnnStatus_t cudnnGetConvolutionForwardAlgorithm_v7(cudnnHandle_t handle, cudnnTensorDescriptor_t srcDesc,
                                                     cudnnFilterDescriptor_t filterDesc,
                                                     cudnnConvolutionDescriptor_t convDesc,
                                                     cudnnTensorDescriptor_t destDesc,
                                                     const int requestedAlgoCount, int *returnedAlgoCount,
                                                     cudnnConvolutionFwdAlgoPerf_t *perfResults)
{
    ENTER();
    struct problem problem;
    struct proposal proposals[PROPOSALS_MAX];
    TRY(problem_of(__func__, srcDesc, filterDesc, convDesc, destDesc, &problem));
    TRY(propose(__func__, handle, FORWARD, &problem, requestedAlgoCount, returnedAlgoCount, perfResults,
                proposals));
    COPY_PROPOSALS(cudnnConvolutionFwdAlgo_t, perfResults, *returnedAlgoCount, proposals);
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnGetConvolutionBackwardDataAlgorithm_v7(
    cudnnHandle_t handle, cudnnFilterDescriptor_t filterDesc, cudnnTensorDescriptor_t diffDesc,
    cudnnConvolutionDescriptor_t convDesc, cudnnTensorDescriptor_t gradDesc, const int requestedAlgoCount,
    int *returnedAlgoCount, cudnnConvolutionBwdDataAlgoPerf_t *perfResults)
{
    ENTER();
    struct problem problem;
    struct proposal proposals[PROPOSALS_MAX];
    TRY(problem_of(__func__, gradDesc, filterDesc, convDesc, diffDesc, &problem));
    TRY(propose(__func__, handle, BACKWARD_DATA, &problem, requestedAlgoCount, returnedAlgoCount, perfResults,
                proposals));
    COPY_PROPOSALS(cudnnConvolutionBwdDataAlgo_t, perfResults, *returnedAlgoCount, proposals);
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnGetConvolutionBackwardFilterAlgorithm_v7(
    cudnnHandle_t handle, cudnnTensorDescriptor_t srcDesc, cudnnTensorDescriptor_t diffDesc,
    cudnnConvolutionDescriptor_t convDesc, cudnnFilterDescriptor_t gradDesc, const int requestedAlgoCount,
    int *returnedAlgoCount, cudnnConvolutionBwdFilterAlgoPerf_t *perfResults)
{
    ENTER();
    struct problem problem;
    struct proposal proposals[PROPOSALS_MAX];
    TRY(problem_of(__func__, srcDesc, gradDesc, convDesc, diffDesc, &problem));
    TRY(propose(__func__, handle, BACKWARD_FILTER, &problem, requestedAlgoCount, returnedAlgoCount,
                perfResults, proposals));
    COPY_PROPOSALS(cudnnConvolutionBwdFilterAlgo_t, perfResults, *returnedAlgoCount, proposals);
    return CUDNN_STATUS_SUCCESS;
}

/* ---- arithmetic ---- */

/* A call of the oracle: its own linear layer where an image is one pixel, which is faster. */
struct oracle {
    struct op_call call;
    struct tensor x, weight, y;
};

static struct shape shape_of(const int size[4], bool linear)
{
    struct shape shape = SHAPE4((uint32_t)size[0], (uint32_t)size[1], (uint32_t)size[2], (uint32_t)size[3]);
    if (linear)
        shape.rank = 2;
    return shape;
}

/* Tensors without data have NULL for it. */
static void oracle_open(struct oracle *oracle, const struct problem *problem, const float *x,
                        const float *weight, const float *y)
{
    const struct cudnn_convolution *convolution = &problem->convolution;
    const int *kernel = problem->weight.size + 2, *size = problem->x.size + 2;
    const bool linear = kernel[0] == 1 && kernel[1] == 1 && size[0] == 1 && size[1] == 1 &&
                        convolution->padding[0] == 0 && convolution->padding[1] == 0;
    *oracle = (struct oracle){.call = {.op = linear ? OP_LINEAR : OP_CONV2D}};
    for (int i = 0; i < 2; i++) {
        oracle->call.attributes.stride[i] = (uint32_t)convolution->stride[i];
        oracle->call.attributes.padding[i] = (uint32_t)convolution->padding[i];
    }
    oracle->x = cudnn_oracle_tensor(shape_of(problem->x.size, linear), x);
    oracle->weight = cudnn_oracle_tensor(shape_of(problem->weight.size, linear), weight);
    oracle->y = cudnn_oracle_tensor(shape_of(problem->y.size, linear), y);
    struct tensor *factors[] = {&oracle->x, &oracle->weight, &oracle->y};
    for (int i = 0; i < 3 && convolution->math != CUDNN_FMA_MATH; i++)
        cudnn_round_to_tf32(factors[i]->data, shape_elements(&factors[i]->shape));
    oracle->call.in[0] = &oracle->x;
    oracle->call.in[1] = &oracle->weight;
    oracle->call.out[0] = &oracle->y;
}

static void oracle_run(struct oracle *oracle, bool backward)
{
    struct error error;
    const bool linear = oracle->call.op == OP_LINEAR;
    ref_function *forward = linear ? ref_linear_forward : ref_conv2d_forward;
    ref_function *run = backward ? (linear ? ref_linear_backward : ref_conv2d_backward) : forward;
    if (run(NULL, &oracle->call, &error) != STATUS_OK)
        gpu_misuse("the oracle's convolution failed: %s", error.text);
}

static void oracle_close(struct oracle *oracle)
{
    free(oracle->x.data);
    free(oracle->weight.data);
    free(oracle->y.data);
}

/* One queued pass. In a backward, x, weight or y is the gradient's memory. */
struct convolution_work {
    struct cudnn_work work;
    struct problem problem;
    float *x, *weight, *y;
    float alpha, beta;
    /* of the fused forward */
    const float *bias, *z;
    struct cudnn_activation activation;
};

static float *floats_of(const void *at)
{
    return (float *)(uintptr_t)at;
}

/* ---- forward ---- */

static void run_forward(void *args)
{
    struct convolution_work *work = args;
    struct oracle oracle;
    oracle_open(&oracle, &work->problem, work->x, work->weight, NULL);
    oracle_run(&oracle, false);
    cudnn_round(work->y, oracle.y.data, cudnn_elements(&work->problem.y), work->alpha, work->beta);
    oracle_close(&oracle);
}

/* What forward and fused forward check in the same way. */
static cudnnStatus_t begin_forward(struct convolution_work *work, cudnnConvolutionFwdAlgo_t algo,
                                   const void *x, const void *weight, void *y, void *workspace, size_t bytes)
{
    const struct algorithm *algorithm;
    const struct problem *problem = &work->problem;
    TRY(algorithm_of(work->work.function, FORWARD, (int)algo, problem, true, &algorithm));
    TRY(cudnn_reads(&work->work, "x", x, cudnn_elements(&problem->x)));
    TRY(cudnn_reads(&work->work, "w", weight, filter_elements(&problem->weight)));
    TRY(cudnn_writes(&work->work, "y", y, cudnn_elements(&problem->y)));
    TRY(cudnn_scratch(&work->work, "workSpace", workspace, bytes, workspace_bytes(algorithm, problem)));
    work->x = floats_of(x);
    work->weight = floats_of(weight);
    work->y = y;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnConvolutionForward(cudnnHandle_t handle, const void *alpha, cudnnTensorDescriptor_t xDesc,
                                      const void *x, cudnnFilterDescriptor_t wDesc, const void *w,
                                      cudnnConvolutionDescriptor_t convDesc, cudnnConvolutionFwdAlgo_t algo,
                                      void *workSpace, size_t workSpaceSizeInBytes, const void *beta,
                                      cudnnTensorDescriptor_t yDesc, void *y)
{
    ENTER();
    struct convolution_work work = {0};
    TRY(cudnn_begin(&work.work, __func__, handle, run_forward));
    TRY(cudnn_factor(__func__, "alpha", alpha, &work.alpha));
    TRY(cudnn_factor(__func__, "beta", beta, &work.beta));
    TRY(problem_of(__func__, xDesc, wDesc, convDesc, yDesc, &work.problem));
    TRY(begin_forward(&work, algo, x, w, y, workSpace, workSpaceSizeInBytes));
    return cudnn_queue(&work.work, sizeof work);
}

/* ---- forward with bias and activation ---- */

/* CUDNN_NOT_PROPAGATE_NAN makes a zero of a NaN. */
static double activate(const struct cudnn_activation *activation, double value)
{
    if (activation->mode == CUDNN_ACTIVATION_IDENTITY || value > 0)
        return value;
    return isnan(value) && activation->nan == CUDNN_PROPAGATE_NAN ? value : 0;
}

/* y = activation(alpha convolution + beta z + bias) */
static void run_fused(void *args)
{
    struct convolution_work *work = args;
    struct oracle oracle;
    oracle_open(&oracle, &work->problem, work->x, work->weight, NULL);
    oracle_run(&oracle, false);
    double *value = oracle.y.data;
    const int *size = work->problem.y.size;
    const size_t plane = (size_t)size[2] * (size_t)size[3], count = cudnn_elements(&work->problem.y);
    for (size_t i = 0; i < count; i++) {
        const double z = work->beta != 0 ? (double)work->beta * (double)work->z[i] : 0;
        const double bias = (double)work->bias[i / plane % (size_t)size[1]];
        value[i] = activate(&work->activation, (double)work->alpha * value[i] + z + bias);
    }
    cudnn_round(work->y, value, count, 1, 0);
    oracle_close(&oracle);
}

static cudnnStatus_t check_fusion(const char *function, const struct cudnn_activation *activation,
                                  cudnnConvolutionFwdAlgo_t algo)
{
    const bool relu = activation->mode == CUDNN_ACTIVATION_RELU;
    if (!relu && activation->mode != CUDNN_ACTIVATION_IDENTITY)
        return cudnn_refusal(CUDNN_STATUS_NOT_SUPPORTED, function,
                             "activation %d is neither ReLU nor identity", (int)activation->mode);
    if (!relu && algo != CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM)
        return cudnn_refusal(CUDNN_STATUS_NOT_SUPPORTED, function,
                             "the identity needs algorithm IMPLICIT_PRECOMP_GEMM");
    if (is_refused(ALGORITHMS + FUSED, true) ||
        is_refused(ALGORITHMS + (relu ? FUSED_RELU : FUSED_IDENTITY), true))
        return cudnn_refusal(CUDNN_STATUS_NOT_SUPPORTED, function, "the fusion is switched off");
    if (relu && activation->nan == CUDNN_PROPAGATE_NAN && is_refused(ALGORITHMS + FUSED_PROPAGATE_NAN, true))
        return cudnn_refusal(CUDNN_STATUS_NOT_SUPPORTED, function,
                             "the activation is not CUDNN_NOT_PROPAGATE_NAN");
    return CUDNN_STATUS_SUCCESS;
}

/* bias: (1, outputs, 1, 1) */
static cudnnStatus_t check_bias(const char *function, cudnnTensorDescriptor_t descriptor,
                                const struct cudnn_tensor *y)
{
    struct cudnn_tensor bias;
    TRY(cudnn_images_of(function, "the bias's descriptor", descriptor, &bias));
    const struct cudnn_tensor expected = {.rank = 4, .size = {1, y->size[1], 1, 1}};
    return cudnn_same_sizes(function, "the bias", &bias, "one value a channel", &expected);
}

/* z and y may be the same memory. With alpha2 0 z is not read. */
cudnnStatus_t cudnnConvolutionBiasActivationForward(
    cudnnHandle_t handle, const void *alpha1, cudnnTensorDescriptor_t xDesc, const void *x,
    cudnnFilterDescriptor_t wDesc, const void *w, cudnnConvolutionDescriptor_t convDesc,
    cudnnConvolutionFwdAlgo_t algo, void *workSpace, size_t workSpaceSizeInBytes, const void *alpha2,
    cudnnTensorDescriptor_t zDesc, const void *z, cudnnTensorDescriptor_t biasDesc, const void *bias,
    cudnnActivationDescriptor_t activationDesc, cudnnTensorDescriptor_t yDesc, void *y)
{
    ENTER();
    struct convolution_work work = {.bias = bias, .z = z};
    struct cudnn_tensor z_tensor;
    TRY(cudnn_begin(&work.work, __func__, handle, run_fused));
    TRY(cudnn_factor(__func__, "alpha1", alpha1, &work.alpha));
    TRY(cudnn_factor(__func__, "alpha2", alpha2, &work.beta));
    TRY(problem_of(__func__, xDesc, wDesc, convDesc, yDesc, &work.problem));
    TRY(cudnn_images_of(__func__, "zDesc", zDesc, &z_tensor));
    TRY(cudnn_same_sizes(__func__, "z", &z_tensor, "y", &work.problem.y));
    TRY(check_bias(__func__, biasDesc, &work.problem.y));
    TRY(cudnn_activation_of(__func__, activationDesc, &work.activation));
    TRY(check_fusion(__func__, &work.activation, algo));
    TRY(begin_forward(&work, algo, x, w, y, workSpace, workSpaceSizeInBytes));
    TRY(cudnn_reads(&work.work, "bias", bias, (size_t)work.problem.y.size[1]));
    if (z != y)
        TRY(cudnn_reads(&work.work, "z", z, cudnn_elements(&z_tensor)));
    return cudnn_queue(&work.work, sizeof work);
}

/* ---- backward ---- */

static void run_backward_data(void *args)
{
    struct convolution_work *work = args;
    struct oracle oracle;
    oracle_open(&oracle, &work->problem, NULL, work->weight, work->y);
    oracle.call.dout[0] = &oracle.y;
    oracle.call.din[0] = &oracle.x;
    oracle_run(&oracle, true);
    cudnn_round(work->x, oracle.x.data, cudnn_elements(&work->problem.x), work->alpha, work->beta);
    oracle_close(&oracle);
}

cudnnStatus_t cudnnConvolutionBackwardData(cudnnHandle_t handle, const void *alpha,
                                           cudnnFilterDescriptor_t wDesc, const void *w,
                                           cudnnTensorDescriptor_t dyDesc, const void *dy,
                                           cudnnConvolutionDescriptor_t convDesc,
                                           cudnnConvolutionBwdDataAlgo_t algo, void *workSpace,
                                           size_t workSpaceSizeInBytes, const void *beta,
                                           cudnnTensorDescriptor_t dxDesc, void *dx)
{
    ENTER();
    struct convolution_work work = {.x = dx, .weight = floats_of(w), .y = floats_of(dy)};
    const struct problem *problem = &work.problem;
    const struct algorithm *algorithm;
    TRY(cudnn_begin(&work.work, __func__, handle, run_backward_data));
    TRY(cudnn_factor(__func__, "alpha", alpha, &work.alpha));
    TRY(cudnn_factor(__func__, "beta", beta, &work.beta));
    TRY(problem_of(__func__, dxDesc, wDesc, convDesc, dyDesc, &work.problem));
    TRY(algorithm_of(__func__, BACKWARD_DATA, (int)algo, problem, true, &algorithm));
    TRY(cudnn_reads(&work.work, "w", w, filter_elements(&problem->weight)));
    TRY(cudnn_reads(&work.work, "dy", dy, cudnn_elements(&problem->y)));
    TRY(cudnn_writes(&work.work, "dx", dx, cudnn_elements(&problem->x)));
    TRY(cudnn_scratch(&work.work, "workSpace", workSpace, workSpaceSizeInBytes,
                      workspace_bytes(algorithm, problem)));
    return cudnn_queue(&work.work, sizeof work);
}

static void run_backward_filter(void *args)
{
    struct convolution_work *work = args;
    struct oracle oracle;
    oracle_open(&oracle, &work->problem, work->x, NULL, work->y);
    oracle.call.dout[0] = &oracle.y;
    oracle.call.din[1] = &oracle.weight;
    oracle_run(&oracle, true);
    cudnn_round(work->weight, oracle.weight.data, filter_elements(&work->problem.weight), work->alpha,
                work->beta);
    oracle_close(&oracle);
}

cudnnStatus_t cudnnConvolutionBackwardFilter(cudnnHandle_t handle, const void *alpha,
                                             cudnnTensorDescriptor_t xDesc, const void *x,
                                             cudnnTensorDescriptor_t dyDesc, const void *dy,
                                             cudnnConvolutionDescriptor_t convDesc,
                                             cudnnConvolutionBwdFilterAlgo_t algo, void *workSpace,
                                             size_t workSpaceSizeInBytes, const void *beta,
                                             cudnnFilterDescriptor_t dwDesc, void *dw)
{
    ENTER();
    struct convolution_work work = {.x = floats_of(x), .weight = dw, .y = floats_of(dy)};
    const struct problem *problem = &work.problem;
    const struct algorithm *algorithm;
    TRY(cudnn_begin(&work.work, __func__, handle, run_backward_filter));
    TRY(cudnn_factor(__func__, "alpha", alpha, &work.alpha));
    TRY(cudnn_factor(__func__, "beta", beta, &work.beta));
    TRY(problem_of(__func__, xDesc, dwDesc, convDesc, dyDesc, &work.problem));
    TRY(algorithm_of(__func__, BACKWARD_FILTER, (int)algo, problem, true, &algorithm));
    TRY(cudnn_reads(&work.work, "x", x, cudnn_elements(&problem->x)));
    TRY(cudnn_reads(&work.work, "dy", dy, cudnn_elements(&problem->y)));
    TRY(cudnn_writes(&work.work, "dw", dw, filter_elements(&problem->weight)));
    TRY(cudnn_scratch(&work.work, "workSpace", workSpace, workSpaceSizeInBytes,
                      workspace_bytes(algorithm, problem)));
    return cudnn_queue(&work.work, sizeof work);
}

/* db = the sums of dy's channels */
static void run_backward_bias(void *args)
{
    struct convolution_work *work = args;
    const int *size = work->problem.y.size;
    const size_t channels = (size_t)size[1], plane = (size_t)size[2] * (size_t)size[3];
    double *sum = cudnn_doubles(NULL, channels);
    for (size_t i = 0; i < cudnn_elements(&work->problem.y); i++)
        sum[i / plane % channels] += (double)work->y[i];
    cudnn_round(work->weight, sum, channels, work->alpha, work->beta);
    free(sum);
}

cudnnStatus_t cudnnConvolutionBackwardBias(cudnnHandle_t handle, const void *alpha,
                                           cudnnTensorDescriptor_t dyDesc, const void *dy, const void *beta,
                                           cudnnTensorDescriptor_t dbDesc, void *db)
{
    ENTER();
    struct convolution_work work = {.weight = db, .y = floats_of(dy)};
    TRY(cudnn_begin(&work.work, __func__, handle, run_backward_bias));
    TRY(cudnn_factor(__func__, "alpha", alpha, &work.alpha));
    TRY(cudnn_factor(__func__, "beta", beta, &work.beta));
    TRY(cudnn_images_of(__func__, "dyDesc", dyDesc, &work.problem.y));
    TRY(check_bias(__func__, dbDesc, &work.problem.y));
    TRY(cudnn_reads(&work.work, "dy", dy, cudnn_elements(&work.problem.y)));
    TRY(cudnn_writes(&work.work, "db", db, (size_t)work.problem.y.size[1]));
    return cudnn_queue(&work.work, sizeof work);
}
