/* The CUDA backend: opening and closing, messages of failures, plans, workspace, table. It belongs to one
 * thread at a time. */
#include "kernels/base/fnv.h"
#include "kernels/cuda/cuda_internal.h"

#include <cassert>
#include <cstdio>
#include <cstdlib>
#include <cstring>

/* ---- failures ---- */

/* Writes the tensor's name and shape, " on images of 20x3x64x64", or nothing for NULL. */
static const char *about_text(const struct tensor *about, char *text, size_t bytes)
{
    char shape[SHAPE_TEXT_BYTES];
    text[0] = '\0';
    if (about != NULL)
        snprintf(text, bytes, " on %.60s of %s", about->name != NULL ? about->name : "a tensor",
                 shape_text(&about->shape, shape));
    return text;
}

enum status cuda_failed(struct error *error, const char *call, cudaError_t code, const struct tensor *about)
{
    char text[160];
    const enum status status = code == cudaErrorMemoryAllocation ? STATUS_NO_MEMORY : STATUS_INTERNAL;
    cudaGetLastError(); // clears the error, so that the next call does not return it
    return error_set(error, status, "CUDA: %s failed%s: %s", call, about_text(about, text, sizeof text),
                     cudaGetErrorString(code));
}

enum status cudnn_failed(struct error *error, const char *call, cudnnStatus_t code,
                         const struct tensor *about)
{
    char text[160], detail[200] = "";
    const bool memory = code == CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED ||
                        code == CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED;
    cudnnGetLastErrorString(detail, sizeof detail);
    detail[sizeof detail - 1] = '\0';
    return error_set(error, memory ? STATUS_NO_MEMORY : STATUS_INTERNAL, "cuDNN: %s failed%s: %s%s%s", call,
                     about_text(about, text, sizeof text), cudnnGetErrorString(code),
                     detail[0] != '\0' ? "; " : "", detail);
}

/* ---- plans ---- */

static void plan_free(struct plan *plan)
{
    cudnnTensorDescriptor_t tensors[] = {plan->x,     plan->y,           plan->channels,
                                         plan->state, plan->gate_matrix, plan->gate_vector};
    for (cudnnTensorDescriptor_t tensor : tensors)
        if (tensor != NULL)
            cudnnDestroyTensorDescriptor(tensor);
    if (plan->weight != NULL)
        cudnnDestroyFilterDescriptor(plan->weight);
    if (plan->convolution != NULL)
        cudnnDestroyConvolutionDescriptor(plan->convolution);
    if (plan->pooling != NULL)
        cudnnDestroyPoolingDescriptor(plan->pooling);
    if (plan->rnn != NULL)
        cudnnDestroyRNNDescriptor(plan->rnn);
    cudnnRNNDataDescriptor_t sequences[] = {plan->sequences_x, plan->sequences_y};
    for (cudnnRNNDataDescriptor_t sequence : sequences)
        if (sequence != NULL)
            cudnnDestroyRNNDataDescriptor(sequence);
    free(plan);
}

static void plans_free(struct cuda *cuda)
{
    for (struct plan *&bucket : cuda->plans)
        while (bucket != NULL) {
            struct plan *plan = bucket;
            bucket = plan->next;
            plan_free(plan);
        }
    cuda->plan_count = 0;
}

enum status cuda_plan(struct cuda *cuda, const struct plan_key *key, plan_describe *describe,
                      const struct tensor *about, struct plan **out, struct error *error)
{
    struct plan **bucket = &cuda->plans[fnv1a(FNV1A_BEGIN, key, sizeof *key) % PLAN_BUCKETS];
    for (*out = *bucket; *out != NULL; *out = (*out)->next)
        if (memcmp(&(*out)->key, key, sizeof *key) == 0)
            return STATUS_OK;
    if (cuda->plan_count == PLANS_MAX)
        plans_free(cuda);
    struct plan *plan = (struct plan *)calloc(1, sizeof *plan);
    if (plan == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for a plan");
    plan->key = *key;
    enum status status = describe(cuda, plan, about, error);
    if (status != STATUS_OK) {
        plan_free(plan);
        return status;
    }
    plan->next = *bucket;
    *bucket = *out = plan;
    cuda->plan_count++;
    return STATUS_OK;
}

enum status cuda_describe(cudnnTensorDescriptor_t *out, uint32_t n, uint32_t c, uint32_t h, uint32_t w,
                          const struct tensor *about, struct error *error)
{
    CUDNN_TRY(about, cudnnCreateTensorDescriptor, out);
    CUDNN_TRY(about, cudnnSetTensor4dDescriptor, *out, CUDNN_TENSOR_NCHW, CUDNN_DATA_FLOAT, (int)n, (int)c,
              (int)h, (int)w);
    return STATUS_OK;
}

/* ---- workspace ---- */

enum status cuda_workspace(struct cuda *cuda, size_t bytes, struct error *error)
{
    if (bytes <= cuda->workspace_bytes)
        return STATUS_OK;
    CUDA_TRY(NULL, cudaStreamSynchronize, cuda->stream);
    void *before = cuda->workspace;
    cuda->workspace = NULL;
    cuda->workspace_bytes = 0;
    CUDA_TRY(NULL, cudaFree, before);
    CUDA_TRY(NULL, cudaMalloc, &cuda->workspace, bytes);
    cuda->workspace_bytes = bytes;
    return STATUS_OK;
}

/* ---- open, close ---- */

static enum status count_devices(int *count, struct error *error)
{
    const cudaError_t code = cudaGetDeviceCount(count);
    if (code != cudaSuccess || *count == 0)
        return error_set(error, STATUS_UNAVAILABLE, "CUDA finds no device: cudaGetDeviceCount: %s",
                         cudaGetErrorString(code != cudaSuccess ? code : cudaErrorNoDevice));
    return STATUS_OK;
}

/* Reads what device `number` is, and checks its compute capability. It makes no context. */
static enum status check_device(int number, cudaDeviceProp *device, struct error *error)
{
    CUDA_TRY(NULL, cudaGetDeviceProperties, device, number);
    if (device->major < COMPUTE_CAPABILITY_MIN)
        return error_set(error, STATUS_UNAVAILABLE,
                         "%.100s has compute capability %d.%d, expected at least %d.0", device->name,
                         device->major, device->minor, (int)COMPUTE_CAPABILITY_MIN);
    return STATUS_OK;
}

static bool cuda_find(void)
{
    cudaDeviceProp device;
    struct error why;
    int count = 0;
    bool found = false;
    if (count_devices(&count, &why) != STATUS_OK)
        return false;
    for (int number = 0; number < count && !found; number++)
        found = check_device(number, &device, &why) == STATUS_OK;
    return found;
}

/* cuDNN's LSTM calls cuBLAS, which gives equal bits only with a workspace of fixed sizes. cuBLAS reads those
 * sizes from the environment. */
static enum status open_cudnn(struct cuda *cuda, struct error *error)
{
    setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:2", 0);
    CUDNN_TRY(NULL, cudnnCreate, &cuda->cudnn);
    CUDNN_TRY(NULL, cudnnSetStream, cuda->cudnn, cuda->stream);
    CUDNN_TRY(NULL, cudnnCreateActivationDescriptor, &cuda->identity);
    CUDNN_TRY(NULL, cudnnSetActivationDescriptor, cuda->identity, CUDNN_ACTIVATION_IDENTITY,
              CUDNN_NOT_PROPAGATE_NAN, 0.0);
    CUDNN_TRY(NULL, cudnnCreateDropoutDescriptor, &cuda->no_dropout);
    CUDNN_TRY(NULL, cudnnSetDropoutDescriptor, cuda->no_dropout, cuda->cudnn, 0.0f, NULL, 0, 0);
    return STATUS_OK;
}

static void cuda_close(struct backend *backend)
{
    struct cuda *cuda = cuda_of(backend);
    if (cuda->stream != NULL)
        cudaStreamSynchronize(cuda->stream);
    plans_free(cuda);
    if (cuda->no_dropout != NULL)
        cudnnDestroyDropoutDescriptor(cuda->no_dropout);
    if (cuda->identity != NULL)
        cudnnDestroyActivationDescriptor(cuda->identity);
    if (cuda->cudnn != NULL)
        cudnnDestroy(cuda->cudnn);
    cudaFree(cuda->workspace);
    cuda_memory_close(cuda);
    if (cuda->stream != NULL)
        cudaStreamDestroy(cuda->stream);
    cudaGetLastError(); // an error above must not look like the next launch's
    free(cuda);
    backend->state = NULL;
}

static enum status open_device(struct backend *backend, uint32_t number, struct error *error)
{
    struct cuda *cuda = cuda_of(backend);
    cudaDeviceProp device;
    int count = 0;
    TRY(count_devices(&count, error));
    const int taken = (int)(number % (uint32_t)count);
    TRY(check_device(taken, &device, error));
    CUDA_TRY(NULL, cudaSetDevice, taken);
    CUDA_TRY(NULL, cudaStreamCreateWithFlags, &cuda->stream, cudaStreamNonBlocking);
    TRY(cuda_memory_open(cuda, error));
    TRY(open_cudnn(cuda, error));
    const size_t version = cudnnGetVersion();
    snprintf(backend->text, sizeof backend->text, "%.80s, cuDNN %zu.%zu", device.name, version / 10000,
             version / 100 % 100);
    backend->source = cuda_source;
    backend->source.context = cuda;
    return STATUS_OK;
}

/* Every failure is STATUS_UNAVAILABLE; the text says what failed. */
static enum status cuda_open(struct backend *backend, const struct backend_settings *settings,
                             struct error *error)
{
    struct error reason = {};
    backend->state = calloc(1, sizeof(struct cuda));
    if (backend->state == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for the CUDA backend");
    enum status status = open_device(backend, settings->device, &reason);
    if (status != STATUS_OK) {
        cuda_close(backend);
        return error_set(error, STATUS_UNAVAILABLE, "%s", reason.text);
    }
    return STATUS_OK;
}

/* ---- the table ---- */

static const struct operation {
    enum op op;
    cuda_operation *forward, *backward;
} operations[] = {
    {OP_LINEAR, cuda_convolution, cuda_convolution_backward},
    {OP_CONV2D, cuda_convolution, cuda_convolution_backward},
    {OP_BATCH_NORM, cuda_batch_norm, cuda_batch_norm_backward},
    {OP_MAX_POOL, cuda_pool, cuda_pool_backward},
    {OP_AVG_POOL, cuda_pool, cuda_pool_backward},
    {OP_RELU, cuda_activation, cuda_activation_backward},
    {OP_ADD, cuda_add, cuda_add_backward},
    {OP_RESHAPE, cuda_reshape, cuda_reshape_backward},
    {OP_DROPOUT, cuda_dropout, cuda_dropout_backward},
    {OP_LOG_SOFTMAX, cuda_log_softmax, cuda_log_softmax_backward},
    {OP_EMBEDDING, cuda_embedding, cuda_embedding_backward},
    {OP_LSTM_LAYER, cuda_recurrent, cuda_recurrent_backward},
    {OP_MSE, cuda_mse, cuda_mse_backward},
    {OP_CROSS_ENTROPY, cuda_cross_entropy, cuda_cross_entropy_backward},
    {OP_LOG_PROBABILITY, cuda_log_probability, cuda_log_probability_backward},
    {OP_SUM, cuda_sum_op, cuda_sum_op_backward},
    {OP_TANH, cuda_activation, cuda_activation_backward},
    {OP_GRU_LAYER, cuda_recurrent, cuda_recurrent_backward},
};
static_assert(sizeof operations / sizeof *operations == OP_COUNT, "every operation has a slot");

/* The rows stand in the order of enum op. */
static const struct operation *operation_of(const struct op_call *call)
{
    assert(operations[call->op].op == call->op);
    return &operations[call->op];
}

static enum status cuda_forward(struct backend *backend, struct op_call *call, struct error *error)
{
    const uint32_t outputs = call->op == OP_RESHAPE ? 0 : op_outputs(call->op, &call->attributes);
    for (uint32_t i = 0; i < outputs; i++)
        TRY(cuda_output(call, call->out[i], error));
    return operation_of(call)->forward(backend, call, error);
}

static enum status cuda_backward(struct backend *backend, struct op_call *call, struct error *error)
{
    const bool shares = call->op == OP_RESHAPE || call->op == OP_ADD;
    for (uint32_t i = 0; i < OP_INPUTS_MAX && !shares; i++)
        if (call->din[i] != NULL)
            TRY(cuda_output(call, call->din[i], error));
    return operation_of(call)->backward(backend, call, error);
}

static struct backend_ops make_table(void)
{
    struct backend_ops ops = {};
    ops.name = "cuda";
    ops.dtype = DTYPE_F32;
    ops.open = cuda_open;
    ops.close = cuda_close;
    ops.find = cuda_find;
    for (int op = 0; op < OP_COUNT; op++) {
        ops.forward[op] = cuda_forward;
        ops.backward[op] = cuda_backward;
    }
    cuda_memory_slots(&ops);
    cuda_policy_slots(&ops);
    return ops;
}

extern "C" __attribute__((visibility("default"))) const struct backend_ops *coalesced_backend(uint32_t abi)
{
    static const struct backend_ops table = make_table();
    return abi == BACKEND_ABI ? &table : NULL;
}
