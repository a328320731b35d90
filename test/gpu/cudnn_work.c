/* The stand-in's handle, its errors, and the work that its calls queue. */
#include "test/gpu/cudnn_stand_in.h"

#include "test/gpu/gpu_cudnn.h"

#include <math.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- errors ---- */

enum { SENTENCE_BYTES = 256 };
static _Thread_local char last_error[SENTENCE_BYTES];

static bool strict;
static pthread_once_t environment_read = PTHREAD_ONCE_INIT;

static void read_environment(void)
{
    strict = getenv("GPU_CUDNN_STRICT") != NULL;
}

void gpu_cudnn_strict(bool on)
{
    pthread_once(&environment_read, read_environment);
    strict = on;
}

cudnnStatus_t cudnn_refusal(cudnnStatus_t status, const char *function, const char *format, ...)
{
    char sentence[SENTENCE_BYTES];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(sentence, sizeof sentence, format, arguments);
    va_end(arguments);
    pthread_once(&environment_read, read_environment);
    if (strict && CUDNN_STATUS_CATEGORY((int)status) == CUDNN_STATUS_BAD_PARAM)
        gpu_misuse("%s: %s", function, sentence);
    snprintf(last_error, sizeof last_error, "%.60s: %.190s", function, sentence);
    return status;
}

cudnnStatus_t cudnn_fault(int status)
{
    snprintf(last_error, sizeof last_error, "a test's fault");
    return (cudnnStatus_t)status;
}

/* The last sentence of this thread, cut to `max_size` bytes with the final zero. The sentence is then gone.
 */
void cudnnGetLastErrorString(char *message, size_t max_size)
{
    (void)gpu_enter(__func__);
    if (message == NULL || max_size == 0)
        return;
    snprintf(message, max_size, "%s", last_error);
    last_error[0] = '\0';
}

#define NAMED(status)                                                                                        \
    {                                                                                                        \
        status, #status                                                                                      \
    }

static const struct {
    cudnnStatus_t status;
    const char *name;
} status_names[] = {
    NAMED(CUDNN_STATUS_SUCCESS),
    NAMED(CUDNN_STATUS_NOT_INITIALIZED),
    NAMED(CUDNN_STATUS_SUBLIBRARY_VERSION_MISMATCH),
    NAMED(CUDNN_STATUS_SERIALIZATION_VERSION_MISMATCH),
    NAMED(CUDNN_STATUS_DEPRECATED),
    NAMED(CUDNN_STATUS_LICENSE_ERROR),
    NAMED(CUDNN_STATUS_RUNTIME_IN_PROGRESS),
    NAMED(CUDNN_STATUS_RUNTIME_FP_OVERFLOW),
    NAMED(CUDNN_STATUS_SUBLIBRARY_LOADING_FAILED),
    NAMED(CUDNN_STATUS_BAD_PARAM),
    NAMED(CUDNN_STATUS_BAD_PARAM_NULL_POINTER),
    NAMED(CUDNN_STATUS_BAD_PARAM_MISALIGNED_POINTER),
    NAMED(CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED),
    NAMED(CUDNN_STATUS_BAD_PARAM_OUT_OF_BOUND),
    NAMED(CUDNN_STATUS_BAD_PARAM_SIZE_INSUFFICIENT),
    NAMED(CUDNN_STATUS_BAD_PARAM_STREAM_MISMATCH),
    NAMED(CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH),
    NAMED(CUDNN_STATUS_NOT_SUPPORTED),
    NAMED(CUDNN_STATUS_NOT_SUPPORTED_SHAPE),
    NAMED(CUDNN_STATUS_NOT_SUPPORTED_DATA_TYPE),
    NAMED(CUDNN_STATUS_NOT_SUPPORTED_LAYOUT),
    NAMED(CUDNN_STATUS_NOT_SUPPORTED_ARCH_MISMATCH),
    NAMED(CUDNN_STATUS_INTERNAL_ERROR),
    NAMED(CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED),
    NAMED(CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED),
    NAMED(CUDNN_STATUS_EXECUTION_FAILED),
    NAMED(CUDNN_STATUS_EXECUTION_FAILED_CUDA_DRIVER),
    NAMED(CUDNN_STATUS_EXECUTION_FAILED_CUBLAS),
    NAMED(CUDNN_STATUS_EXECUTION_FAILED_CUDART),
};

const char *cudnnGetErrorString(cudnnStatus_t status)
{
    (void)gpu_enter(__func__);
    for (size_t i = 0; i < sizeof status_names / sizeof *status_names; i++)
        if (status_names[i].status == status)
            return status_names[i].name;
    return "CUDNN_UNKNOWN_STATUS";
}

/* ---- the handle ---- */

enum { HANDLE_MAGIC = 0x48646e4e };

struct cudnnContext {
    uint32_t magic;
    cudaStream_t stream;
};

size_t cudnnGetVersion(void)
{
    (void)gpu_enter(__func__);
    return CUDNN_VERSION;
}

static void check_handle(const char *function, cudnnHandle_t handle)
{
    if (handle->magic != HANDLE_MAGIC)
        gpu_misuse("%s: the handle is none, or was destroyed", function);
}

cudnnStatus_t cudnnCreate(cudnnHandle_t *handle)
{
    ENTER();
    REQUIRE_POINTER(handle);
    struct cudnnContext *made = calloc(1, sizeof *made);
    REQUIRE(CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED, made != NULL, "no memory for a handle");
    made->magic = HANDLE_MAGIC;
    *handle = made;
    gpu_alive("cudnnHandle_t", 1);
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnDestroy(cudnnHandle_t handle)
{
    ENTER_FREEING();
    REQUIRE_POINTER(handle);
    check_handle(__func__, handle);
    handle->magic = 0;
    free(handle);
    gpu_alive("cudnnHandle_t", -1);
    return LEAVE();
}

cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t streamId)
{
    ENTER();
    REQUIRE_POINTER(handle);
    check_handle(__func__, handle);
    handle->stream = streamId;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnGetStream(cudnnHandle_t handle, cudaStream_t *streamId)
{
    ENTER();
    REQUIRE_POINTER(handle);
    REQUIRE_POINTER(streamId);
    check_handle(__func__, handle);
    *streamId = handle->stream;
    return CUDNN_STATUS_SUCCESS;
}

/* ---- work ---- */

cudnnStatus_t cudnn_begin(struct cudnn_work *work, const char *function, cudnnHandle_t handle,
                          void (*run)(void *work))
{
    if (handle == NULL)
        return cudnn_refusal(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, function, "handle is NULL");
    check_handle(function, handle);
    *work = (struct cudnn_work){.function = function, .run = run, .stream = handle->stream};
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t add_region(struct cudnn_work *work, const char *name, void *at, size_t bytes,
                                size_t alignment, enum cudnn_use use)
{
    if (at == NULL)
        return cudnn_refusal(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, work->function, "%s is NULL", name);
    if ((uintptr_t)at % alignment != 0)
        return cudnn_refusal(CUDNN_STATUS_BAD_PARAM_MISALIGNED_POINTER, work->function,
                             "%s is not aligned to %zu bytes", name, alignment);
    if (!gpu_is_device(at, bytes))
        gpu_misuse("%s: %s: %zu bytes at %p are not within one allocation of the device", work->function,
                   name, bytes, at);
    if (work->regions == CUDNN_REGIONS_MAX)
        gpu_misuse("%s: too many regions", work->function);
    work->region[work->regions++] = (struct cudnn_region){name, at, bytes, use};
    return CUDNN_STATUS_SUCCESS;
}

/* Drops the const of a pointer that is only read. */
static void *mutable_of(const void *at)
{
    return (void *)(uintptr_t)at;
}

cudnnStatus_t cudnn_reads(struct cudnn_work *work, const char *name, const void *at, size_t count)
{
    return add_region(work, name, mutable_of(at), count * sizeof(float), sizeof(float), CUDNN_READ);
}

cudnnStatus_t cudnn_writes(struct cudnn_work *work, const char *name, void *at, size_t count)
{
    return add_region(work, name, at, count * sizeof(float), sizeof(float), CUDNN_WRITTEN);
}

cudnnStatus_t cudnn_may_read(struct cudnn_work *work, const char *name, const void *at, size_t count)
{
    return at != NULL ? cudnn_reads(work, name, at, count) : CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnn_may_write(struct cudnn_work *work, const char *name, void *at, size_t count)
{
    return at != NULL ? cudnn_writes(work, name, at, count) : CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnn_space(struct cudnn_work *work, const char *name, const void *at, size_t bytes,
                          size_t needed, enum cudnn_use use)
{
    if (bytes < needed)
        return cudnn_refusal(CUDNN_STATUS_BAD_PARAM_SIZE_INSUFFICIENT, work->function,
                             "%s has %zu bytes, expected at least %zu", name, bytes, needed);
    if (bytes == 0)
        return CUDNN_STATUS_SUCCESS;
    return add_region(work, name, mutable_of(at), bytes, 16, use);
}

cudnnStatus_t cudnn_scratch(struct cudnn_work *work, const char *name, void *at, size_t bytes, size_t needed)
{
    return cudnn_space(work, name, at, bytes, needed, CUDNN_SCRATCH);
}

cudnnStatus_t cudnn_factor(const char *function, const char *name, const void *at, float *out)
{
    if (at == NULL)
        return cudnn_refusal(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, function, "%s is NULL", name);
    if (gpu_is_device(at, sizeof *out))
        gpu_misuse("%s: %s lies on the device, expected a host float", function, name);
    memcpy(out, at, sizeof *out);
    return CUDNN_STATUS_SUCCESS;
}

static bool regions_overlap(const struct cudnn_region *a, const struct cudnn_region *b)
{
    const uintptr_t at_a = (uintptr_t)a->at, at_b = (uintptr_t)b->at;
    return at_a < at_b + b->bytes && at_b < at_a + a->bytes;
}

/* Whether the call allows that `written` is the memory of `read`. */
static bool is_in_place(const struct cudnn_work *work, const struct cudnn_region *written,
                        const struct cudnn_region *read)
{
    return work->in_place != NULL && written->use == CUDNN_WRITTEN && read->use == CUDNN_READ &&
           strcmp(work->in_place, read->name) == 0 && written->at == read->at &&
           written->bytes == read->bytes;
}

static void check_overlaps(const struct cudnn_work *work)
{
    for (uint32_t i = 0; i < work->regions; i++)
        for (uint32_t k = 0; k < i; k++) {
            const struct cudnn_region *a = &work->region[i], *b = &work->region[k];
            if ((a->use == CUDNN_READ && b->use == CUDNN_READ) || !regions_overlap(a, b))
                continue;
            if (is_in_place(work, a, b) || is_in_place(work, b, a))
                continue;
            gpu_misuse("%s: %s and %s overlap", work->function, b->name, a->name);
        }
}

static void poison_scratch(const struct cudnn_work *work)
{
    for (uint32_t i = 0; i < work->regions; i++)
        if (work->region[i].use == CUDNN_SCRATCH)
            memset(work->region[i].at, 0xff, work->region[i].bytes);
}

static void run_work(void *args)
{
    const struct cudnn_work *work = args;
    for (uint32_t i = 0; i < work->regions; i++)
        if (!gpu_is_device(work->region[i].at, work->region[i].bytes))
            gpu_misuse("%s was freed after the call", work->region[i].name);
    poison_scratch(work);
    work->run(args);
    poison_scratch(work);
}

cudnnStatus_t cudnn_queue(const struct cudnn_work *work, size_t bytes)
{
    check_overlaps(work);
    const cudaError_t code = gpu_queue(work->stream, work->function, run_work, work, bytes);
    if (code != cudaSuccess)
        return cudnn_refusal(CUDNN_STATUS_EXECUTION_FAILED_CUDART, work->function,
                             "the stream returned CUDA's error %d", (int)code);
    return CUDNN_STATUS_SUCCESS;
}

/* ---- arithmetic ---- */

double *cudnn_doubles(const float *from, size_t count)
{
    double *to = calloc(count > 0 ? count : 1, sizeof *to);
    if (to == NULL)
        gpu_misuse("no memory for %zu doubles", count);
    for (size_t i = 0; from != NULL && i < count; i++)
        to[i] = (double)from[i];
    return to;
}

struct tensor cudnn_oracle_tensor(struct shape shape, const float *from)
{
    const size_t count = shape_elements(&shape);
    return (struct tensor){.shape = shape,
                           .dtype = DTYPE_F64,
                           .data = cudnn_doubles(from, count),
                           .bytes = count * sizeof(double)};
}

void cudnn_round_to_tf32(double *value, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        int exponent;
        const double mantissa = frexp(value[i], &exponent);
        if (isfinite(value[i]))
            value[i] = ldexp(rint(ldexp(mantissa, 11)), exponent - 11);
    }
}

void cudnn_round(float *to, const double *value, size_t count, float factor, float keep)
{
    for (size_t i = 0; i < count; i++) {
        const double kept = keep != 0 ? (double)keep * (double)to[i] : 0;
        to[i] = (float)((double)factor * value[i] + kept);
    }
}
