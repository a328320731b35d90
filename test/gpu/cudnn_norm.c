/* The stand-in's batch norm and softmax. */
#include "test/gpu/cudnn_stand_in.h"
#include "test/oracle/ref_internal.h"

#include <math.h>
#include <stdlib.h>

/* ---- batch norm: arguments ---- */

/* One queued call. A gradient's memory stands where its tensor does: dx in y, dscale and dbias beside them.
 */
struct norm_work {
    struct cudnn_work work;
    struct cudnn_tensor x;
    float alpha, beta, alpha_parameters, beta_parameters;
    double epsilon, average_factor;
    const float *from, *dy, *scale, *bias, *mean, *variance;
    float *y, *dscale, *dbias, *running_mean, *running_variance, *save_mean, *save_inverse;
};

/* x, y (and dy) have the same sizes, the parameters (1, channels, 1, 1). */
static cudnnStatus_t norm_begin(struct norm_work *work, const char *function, cudnnHandle_t handle,
                                void (*run)(void *), cudnnBatchNormMode_t mode,
                                cudnnTensorDescriptor_t x_descriptor, cudnnTensorDescriptor_t y_descriptor,
                                cudnnTensorDescriptor_t parameters_descriptor, double epsilon)
{
    struct cudnn_tensor y, parameters;
    TRY(cudnn_begin(&work->work, function, handle, run));
    if ((int)mode < 0 || mode > CUDNN_BATCHNORM_SPATIAL_PERSISTENT)
        return cudnn_refusal(CUDNN_STATUS_BAD_PARAM, function, "mode %d does not exist", (int)mode);
    if (mode != CUDNN_BATCHNORM_SPATIAL)
        return cudnn_refusal(CUDNN_STATUS_NOT_SUPPORTED, function, "the stand-in has the spatial mode only");
    TRY(cudnn_images_of(function, "xDesc", x_descriptor, &work->x));
    TRY(cudnn_images_of(function, "the output's descriptor", y_descriptor, &y));
    TRY(cudnn_same_sizes(function, "x", &work->x, "the output", &y));
    TRY(cudnn_images_of(function, "the parameters' descriptor", parameters_descriptor, &parameters));
    const struct cudnn_tensor expected = {.rank = 4, .size = {1, work->x.size[1], 1, 1}};
    TRY(cudnn_same_sizes(function, "a parameter", &parameters, "one value a channel", &expected));
    if (!(epsilon >= CUDNN_BN_MIN_EPSILON))
        return cudnn_refusal(CUDNN_STATUS_BAD_PARAM, function, "epsilon is %g, expected at least %g", epsilon,
                             CUDNN_BN_MIN_EPSILON);
    work->epsilon = epsilon;
    return CUDNN_STATUS_SUCCESS;
}

/* Two results or inputs that are given together or not at all. */
static cudnnStatus_t check_pair(const char *function, const char *names, const void *a, const void *b)
{
    if ((a == NULL) == (b == NULL))
        return CUDNN_STATUS_SUCCESS;
    return cudnn_refusal(CUDNN_STATUS_BAD_PARAM, function, "one of %s is NULL, and the other is not", names);
}

/* ---- batch norm: arithmetic by the oracle ---- */

enum { NORM_TENSORS = 8 };

/* A call of the oracle and its tensors: x, scale, bias, mean, variance, y, and two more. */
struct norm_oracle {
    struct op_call call;
    struct tensor tensor[NORM_TENSORS];
};

static void norm_oracle_open(struct norm_oracle *oracle, const struct norm_work *work)
{
    const int *size = work->x.size;
    const struct shape images =
        SHAPE4((uint32_t)size[0], (uint32_t)size[1], (uint32_t)size[2], (uint32_t)size[3]);
    const float *from[NORM_TENSORS] = {work->from, work->scale, work->bias, work->mean, work->variance};
    *oracle = (struct norm_oracle){.call = {.op = OP_BATCH_NORM, .attributes = {.epsilon = work->epsilon}}};
    for (int i = 0; i < NORM_TENSORS; i++)
        oracle->tensor[i] =
            cudnn_oracle_tensor(i == 0 || i == 5 ? images : SHAPE1((uint32_t)size[1]), from[i]);
    for (int i = 0; i < 5; i++)
        oracle->call.in[i] = &oracle->tensor[i];
    for (int i = 0; i < 3; i++)
        oracle->call.out[i] = &oracle->tensor[5 + i];
}

static void norm_oracle_run(struct norm_oracle *oracle, ref_function *run)
{
    struct error error;
    if (run(NULL, &oracle->call, &error) != STATUS_OK)
        gpu_misuse("the oracle's batch norm failed: %s", error.text);
}

static void norm_oracle_close(struct norm_oracle *oracle)
{
    for (int i = 0; i < NORM_TENSORS; i++)
        free(oracle->tensor[i].data);
}

/* The oracle's second and third output are the mean and the unbiased variance. This makes of the latter the
 * inverse of the standard deviation, epsilon included. */
static void inverse_deviations(const struct norm_work *work, const double *variance, double *inverse)
{
    const double values = (double)work->x.size[0] * work->x.size[2] * work->x.size[3];
    for (int c = 0; c < work->x.size[1]; c++)
        inverse[c] = 1 / sqrt(variance[c] * (values - 1) / values + work->epsilon);
}

static void run_norm_inference(void *args)
{
    const struct norm_work *work = args;
    struct norm_oracle oracle;
    norm_oracle_open(&oracle, work);
    norm_oracle_run(&oracle, ref_batch_norm_forward);
    cudnn_round(work->y, oracle.call.out[0]->data, cudnn_elements(&work->x), work->alpha, work->beta);
    norm_oracle_close(&oracle);
}

cudnnStatus_t cudnnBatchNormalizationForwardInference(
    cudnnHandle_t handle, cudnnBatchNormMode_t mode, const void *alpha, const void *beta,
    cudnnTensorDescriptor_t xDesc, const void *x, cudnnTensorDescriptor_t yDesc, void *y,
    cudnnTensorDescriptor_t bnScaleBiasMeanVarDesc, const void *bnScale, const void *bnBias,
    const void *estimatedMean, const void *estimatedVariance, double epsilon)
{
    ENTER();
    struct norm_work work = {0};
    TRY(norm_begin(&work, __func__, handle, run_norm_inference, mode, xDesc, yDesc, bnScaleBiasMeanVarDesc,
                   epsilon));
    TRY(cudnn_factor(__func__, "alpha", alpha, &work.alpha));
    TRY(cudnn_factor(__func__, "beta", beta, &work.beta));
    const size_t elements = cudnn_elements(&work.x), channels = (size_t)work.x.size[1];
    TRY(cudnn_reads(&work.work, "x", work.from = x, elements));
    TRY(cudnn_writes(&work.work, "y", work.y = y, elements));
    TRY(cudnn_reads(&work.work, "bnScale", work.scale = bnScale, channels));
    TRY(cudnn_reads(&work.work, "bnBias", work.bias = bnBias, channels));
    TRY(cudnn_reads(&work.work, "estimatedMean", work.mean = estimatedMean, channels));
    TRY(cudnn_reads(&work.work, "estimatedVariance", work.variance = estimatedVariance, channels));
    return cudnn_queue(&work.work, sizeof work);
}

/* The moving averages are read with a factor of 0, too: an old NaN passes. */
static void run_norm_training(void *args)
{
    const struct norm_work *work = args;
    struct norm_oracle oracle;
    const size_t channels = (size_t)work->x.size[1];
    norm_oracle_open(&oracle, work);
    oracle.call.attributes.training = true;
    norm_oracle_run(&oracle, ref_batch_norm_forward);
    const double *mean = oracle.call.out[1]->data, *variance = oracle.call.out[2]->data;
    cudnn_round(work->y, oracle.call.out[0]->data, cudnn_elements(&work->x), work->alpha, work->beta);
    const double factor = work->average_factor;
    for (size_t c = 0; work->running_mean != NULL && c < channels; c++) {
        const double old_mean = (double)work->running_mean[c],
                     old_variance = (double)work->running_variance[c];
        work->running_mean[c] = (float)(mean[c] * factor + old_mean * (1 - factor));
        work->running_variance[c] = (float)(variance[c] * factor + old_variance * (1 - factor));
    }
    if (work->save_mean != NULL) {
        double *inverse = cudnn_doubles(NULL, channels);
        inverse_deviations(work, variance, inverse);
        cudnn_round(work->save_mean, mean, channels, 1, 0);
        cudnn_round(work->save_inverse, inverse, channels, 1, 0);
        free(inverse);
    }
    norm_oracle_close(&oracle);
}

cudnnStatus_t cudnnBatchNormalizationForwardTraining(
    cudnnHandle_t handle, cudnnBatchNormMode_t mode, const void *alpha, const void *beta,
    cudnnTensorDescriptor_t xDesc, const void *x, cudnnTensorDescriptor_t yDesc, void *y,
    cudnnTensorDescriptor_t bnScaleBiasMeanVarDesc, const void *bnScale, const void *bnBias,
    double exponentialAverageFactor, void *resultRunningMean, void *resultRunningVariance, double epsilon,
    void *resultSaveMean, void *resultSaveInvVariance)
{
    ENTER();
    struct norm_work work = {0};
    TRY(norm_begin(&work, __func__, handle, run_norm_training, mode, xDesc, yDesc, bnScaleBiasMeanVarDesc,
                   epsilon));
    TRY(cudnn_factor(__func__, "alpha", alpha, &work.alpha));
    TRY(cudnn_factor(__func__, "beta", beta, &work.beta));
    REQUIRE(CUDNN_STATUS_BAD_PARAM, exponentialAverageFactor >= 0 && exponentialAverageFactor <= 1,
            "exponentialAverageFactor is %g, expected 0 to 1", exponentialAverageFactor);
    TRY(check_pair(__func__, "the running results", resultRunningMean, resultRunningVariance));
    TRY(check_pair(__func__, "the saved results", resultSaveMean, resultSaveInvVariance));
    work.average_factor = exponentialAverageFactor;
    const size_t elements = cudnn_elements(&work.x), channels = (size_t)work.x.size[1];
    TRY(cudnn_reads(&work.work, "x", work.from = x, elements));
    TRY(cudnn_writes(&work.work, "y", work.y = y, elements));
    TRY(cudnn_reads(&work.work, "bnScale", work.scale = bnScale, channels));
    TRY(cudnn_reads(&work.work, "bnBias", work.bias = bnBias, channels));
    TRY(cudnn_may_write(&work.work, "resultRunningMean", work.running_mean = resultRunningMean, channels));
    TRY(cudnn_may_write(&work.work, "resultRunningVariance", work.running_variance = resultRunningVariance,
                        channels));
    TRY(cudnn_may_write(&work.work, "resultSaveMean", work.save_mean = resultSaveMean, channels));
    TRY(cudnn_may_write(&work.work, "resultSaveInvVariance", work.save_inverse = resultSaveInvVariance,
                        channels));
    return cudnn_queue(&work.work, sizeof work);
}

/* `mean` and `variance` are the saved mean and the saved inverse of the deviation. NULL: computed again. */
static void run_norm_backward(void *args)
{
    const struct norm_work *work = args;
    struct norm_oracle oracle;
    const size_t elements = cudnn_elements(&work->x), channels = (size_t)work->x.size[1];
    norm_oracle_open(&oracle, work);
    oracle.call.attributes.training = true;
    if (work->mean == NULL) {
        norm_oracle_run(&oracle, ref_batch_norm_forward);
        inverse_deviations(work, oracle.tensor[7].data, oracle.tensor[7].data);
    }
    oracle.call.saved[0] = oracle.tensor[work->mean != NULL ? 3 : 6];
    oracle.call.saved[1] = oracle.tensor[work->mean != NULL ? 4 : 7];
    struct tensor gradient[4] = {cudnn_oracle_tensor(oracle.tensor[0].shape, work->dy),
                                 cudnn_oracle_tensor(oracle.tensor[0].shape, NULL),
                                 cudnn_oracle_tensor(oracle.tensor[1].shape, NULL),
                                 cudnn_oracle_tensor(oracle.tensor[1].shape, NULL)};
    oracle.call.dout[0] = &gradient[0];
    for (int i = 0; i < 3; i++)
        oracle.call.din[i] = &gradient[1 + i];
    norm_oracle_run(&oracle, ref_batch_norm_backward);
    cudnn_round(work->y, gradient[1].data, elements, work->alpha, work->beta);
    cudnn_round(work->dscale, gradient[2].data, channels, work->alpha_parameters, work->beta_parameters);
    cudnn_round(work->dbias, gradient[3].data, channels, work->alpha_parameters, work->beta_parameters);
    for (int i = 0; i < 4; i++)
        free(gradient[i].data);
    norm_oracle_close(&oracle);
}

cudnnStatus_t cudnnBatchNormalizationBackward(
    cudnnHandle_t handle, cudnnBatchNormMode_t mode, const void *alphaDataDiff, const void *betaDataDiff,
    const void *alphaParamDiff, const void *betaParamDiff, cudnnTensorDescriptor_t xDesc, const void *x,
    cudnnTensorDescriptor_t dyDesc, const void *dy, cudnnTensorDescriptor_t dxDesc, void *dx,
    cudnnTensorDescriptor_t dBnScaleBiasDesc, const void *bnScale, void *dBnScaleResult, void *dBnBiasResult,
    double epsilon, const void *savedMean, const void *savedInvVariance)
{
    ENTER();
    struct norm_work work = {0};
    struct cudnn_tensor gradient;
    TRY(norm_begin(&work, __func__, handle, run_norm_backward, mode, xDesc, dxDesc, dBnScaleBiasDesc,
                   epsilon));
    TRY(cudnn_images_of(__func__, "dyDesc", dyDesc, &gradient));
    TRY(cudnn_same_sizes(__func__, "x", &work.x, "dy", &gradient));
    TRY(cudnn_factor(__func__, "alphaDataDiff", alphaDataDiff, &work.alpha));
    TRY(cudnn_factor(__func__, "betaDataDiff", betaDataDiff, &work.beta));
    TRY(cudnn_factor(__func__, "alphaParamDiff", alphaParamDiff, &work.alpha_parameters));
    TRY(cudnn_factor(__func__, "betaParamDiff", betaParamDiff, &work.beta_parameters));
    TRY(check_pair(__func__, "the saved results", savedMean, savedInvVariance));
    const size_t elements = cudnn_elements(&work.x), channels = (size_t)work.x.size[1];
    TRY(cudnn_reads(&work.work, "x", work.from = x, elements));
    TRY(cudnn_reads(&work.work, "dy", work.dy = dy, elements));
    TRY(cudnn_writes(&work.work, "dx", work.y = dx, elements));
    TRY(cudnn_reads(&work.work, "bnScale", work.scale = bnScale, channels));
    TRY(cudnn_writes(&work.work, "dBnScaleResult", work.dscale = dBnScaleResult, channels));
    TRY(cudnn_writes(&work.work, "dBnBiasResult", work.dbias = dBnBiasResult, channels));
    TRY(cudnn_may_read(&work.work, "savedMean", work.mean = savedMean, channels));
    TRY(cudnn_may_read(&work.work, "savedInvVariance", work.variance = savedInvVariance, channels));
    return cudnn_queue(&work.work, sizeof work);
}

/* ---- softmax ---- */

struct softmax_work {
    struct cudnn_work work;
    struct cudnn_tensor x;
    cudnnSoftmaxAlgorithm_t algorithm;
    cudnnSoftmaxMode_t mode;
    float alpha, beta;
    const float *from, *dy;
    float *to;
};

/* The values of one softmax: `count` of them, `stride` apart, from `first` on. */
struct softmax_group {
    size_t first, count, stride;
};

/* Group `index` of the tensor, in CUDNN_SOFTMAX_MODE_CHANNEL one of each pixel. false: no such group. */
static bool softmax_group_of(const struct softmax_work *work, size_t index, struct softmax_group *out)
{
    const int *size = work->x.size;
    const size_t images = (size_t)size[0], channels = (size_t)size[1];
    const size_t plane = (size_t)size[2] * (size_t)size[3];
    if (work->mode == CUDNN_SOFTMAX_MODE_INSTANCE) {
        *out = (struct softmax_group){index * channels * plane, channels * plane, 1};
        return index < images;
    }
    *out = (struct softmax_group){index / plane * channels * plane + index % plane, channels, plane};
    return index < images * plane;
}

static cudnnStatus_t softmax_begin(struct softmax_work *work, const char *function, cudnnHandle_t handle,
                                   void (*run)(void *), cudnnSoftmaxAlgorithm_t algorithm,
                                   cudnnSoftmaxMode_t mode, const void *alpha, const void *beta,
                                   cudnnTensorDescriptor_t from, cudnnTensorDescriptor_t to)
{
    struct cudnn_tensor to_tensor;
    TRY(cudnn_begin(&work->work, function, handle, run));
    if ((int)algorithm < 0 || algorithm > CUDNN_SOFTMAX_LOG)
        return cudnn_refusal(CUDNN_STATUS_BAD_PARAM, function, "algorithm %d does not exist", (int)algorithm);
    if ((int)mode < 0 || mode > CUDNN_SOFTMAX_MODE_CHANNEL)
        return cudnn_refusal(CUDNN_STATUS_BAD_PARAM, function, "mode %d does not exist", (int)mode);
    TRY(cudnn_factor(function, "alpha", alpha, &work->alpha));
    TRY(cudnn_factor(function, "beta", beta, &work->beta));
    TRY(cudnn_images_of(function, "the input's descriptor", from, &work->x));
    TRY(cudnn_images_of(function, "the output's descriptor", to, &to_tensor));
    work->algorithm = algorithm;
    work->mode = mode;
    return cudnn_same_sizes(function, "the input", &work->x, "the output", &to_tensor);
}

static void run_softmax(void *args)
{
    const struct softmax_work *work = args;
    const size_t elements = cudnn_elements(&work->x);
    double *x = cudnn_doubles(work->from, elements);
    struct softmax_group group;
    for (size_t index = 0; softmax_group_of(work, index, &group); index++) {
        const double total = ref_log_sum_exp(x + group.first, group.count, group.stride);
        for (size_t i = 0; i < group.count; i++) {
            double *value = &x[group.first + i * group.stride];
            *value = work->algorithm == CUDNN_SOFTMAX_LOG ? *value - total : exp(*value - total);
        }
    }
    cudnn_round(work->to, x, elements, work->alpha, work->beta);
    free(x);
}

/* x and y may be the same memory. */
cudnnStatus_t cudnnSoftmaxForward(cudnnHandle_t handle, cudnnSoftmaxAlgorithm_t algo, cudnnSoftmaxMode_t mode,
                                  const void *alpha, cudnnTensorDescriptor_t xDesc, const void *x,
                                  const void *beta, cudnnTensorDescriptor_t yDesc, void *y)
{
    ENTER();
    struct softmax_work work = {0};
    TRY(softmax_begin(&work, __func__, handle, run_softmax, algo, mode, alpha, beta, xDesc, yDesc));
    work.work.in_place = "x";
    TRY(cudnn_reads(&work.work, "x", work.from = x, cudnn_elements(&work.x)));
    TRY(cudnn_writes(&work.work, "y", work.to = y, cudnn_elements(&work.x)));
    return cudnn_queue(&work.work, sizeof work);
}

/* Log: dx = dy - exp(y) sum dy. Otherwise: dx = y (dy - sum y dy). */
static void run_softmax_backward(void *args)
{
    const struct softmax_work *work = args;
    const size_t elements = cudnn_elements(&work->x);
    const bool log = work->algorithm == CUDNN_SOFTMAX_LOG;
    double *y = cudnn_doubles(work->from, elements), *dy = cudnn_doubles(work->dy, elements);
    struct softmax_group group;
    for (size_t index = 0; softmax_group_of(work, index, &group); index++) {
        double sum = 0;
        for (size_t i = 0; i < group.count; i++) {
            const size_t at = group.first + i * group.stride;
            sum += log ? dy[at] : y[at] * dy[at];
        }
        for (size_t i = 0; i < group.count; i++) {
            const size_t at = group.first + i * group.stride;
            dy[at] = log ? dy[at] - exp(y[at]) * sum : y[at] * (dy[at] - sum);
        }
    }
    cudnn_round(work->to, dy, elements, work->alpha, work->beta);
    free(dy);
    free(y);
}

/* dy and dx may be the same memory. */
cudnnStatus_t cudnnSoftmaxBackward(cudnnHandle_t handle, cudnnSoftmaxAlgorithm_t algo,
                                   cudnnSoftmaxMode_t mode, const void *alpha, cudnnTensorDescriptor_t yDesc,
                                   const void *y, cudnnTensorDescriptor_t dyDesc, const void *dy,
                                   const void *beta, cudnnTensorDescriptor_t dxDesc, void *dx)
{
    ENTER();
    struct softmax_work work = {0};
    struct cudnn_tensor gradient;
    TRY(softmax_begin(&work, __func__, handle, run_softmax_backward, algo, mode, alpha, beta, yDesc, dxDesc));
    TRY(cudnn_images_of(__func__, "dyDesc", dyDesc, &gradient));
    TRY(cudnn_same_sizes(__func__, "y", &work.x, "dy", &gradient));
    work.work.in_place = "dy";
    TRY(cudnn_reads(&work.work, "y", work.from = y, cudnn_elements(&work.x)));
    TRY(cudnn_reads(&work.work, "dy", work.dy = dy, cudnn_elements(&work.x)));
    TRY(cudnn_writes(&work.work, "dx", work.to = dx, cudnn_elements(&work.x)));
    return cudnn_queue(&work.work, sizeof work);
}
