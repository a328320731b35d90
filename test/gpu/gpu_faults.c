/* Errors, faults, seeds and counts of the stand-in for a GPU, and the check of what is alive at exit. */
#include "test/gpu/gpu_internal.h"

#include <execinfo.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { FUNCTIONS_MAX = 256, KINDS_MAX = 64, BACKTRACE_MAX = 32 };

static pthread_mutex_t mutex = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static struct {
    const char *name;
    uint64_t calls;
} functions[FUNCTIONS_MAX]; /* a hash table */

static struct {
    const char *kind;
    int64_t alive;
} kinds[KINDS_MAX];

static struct {
    char function[96];
    unsigned left; /* calls until the fault; 0: not armed */
    int code;
    bool happened;
} fault;

static cudaError_t last_error; /* what cudaGetLastError returns */
static cudaError_t stays;      /* an error after which every call fails */
static bool forked;            /* this process was forked from the one that began */
static uint64_t random_state, seed;
struct gpu_counts gpu_counted;

void gpu_misuse(const char *format, ...)
{
    char text[512];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    const char *running = gpu_running();
    fprintf(stderr, "gpu: %s%s%s\n", running != NULL ? running : "", running != NULL ? ": " : "", text);
    if (getenv("GPU_BACKTRACE") != NULL) {
        void *callers[BACKTRACE_MAX];
        backtrace_symbols_fd(callers, backtrace(callers, BACKTRACE_MAX), STDERR_FILENO);
    }
    abort();
}

/* ---- at the process's begin and end ---- */

static void print_counts(void)
{
    const char *place = getenv("GPU_COUNTS");
    if (place == NULL || *place == '\0')
        return;
    FILE *to = strchr(place, '/') != NULL ? fopen(place, "ae") : stderr;
    if (to == NULL)
        return;
    const struct gpu_counts *c = &gpu_counted;
    fprintf(to,
            "gpu: pid=%d launches=%ju graph_launches=%ju kernels=%ju to_device=%ju to_device_bytes=%ju "
            "to_host=%ju to_host_bytes=%ju within_device=%ju within_device_bytes=%ju fills=%ju waits=%ju "
            "allocations=%ju pinned_allocations=%ju\n",
            (int)getpid(), (uintmax_t)c->launches, (uintmax_t)c->graph_launches, (uintmax_t)c->kernels,
            (uintmax_t)c->to_device, (uintmax_t)c->to_device_bytes, (uintmax_t)c->to_host,
            (uintmax_t)c->to_host_bytes, (uintmax_t)c->within_device, (uintmax_t)c->within_device_bytes,
            (uintmax_t)c->fills, (uintmax_t)c->waits, (uintmax_t)c->allocations,
            (uintmax_t)c->pinned_allocations);
    if (to != stderr)
        fclose(to);
}

/* A process that reports failure may leave objects behind, unless it fails by our fault. */
static void at_exit(int status, void *unused)
{
    (void)unused;
    if (forked)
        return;
    print_counts();
    bool leaks = false;
    for (size_t i = 0; i < KINDS_MAX && kinds[i].kind != NULL; i++)
        if (kinds[i].alive != 0) {
            fprintf(stderr, "gpu: alive at exit: %jd of %s\n", (intmax_t)kinds[i].alive, kinds[i].kind);
            leaks = true;
        }
    if (leaks && (status == 0 || fault.happened))
        gpu_misuse("not everything was freed");
}

/* ---- random choices ---- */

static uint64_t mixed(uint64_t x) /* splitmix64 */
{
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
    x = (x ^ x >> 27) * 0x94d049bb133111eb;
    return x ^ x >> 31;
}

static void set_seed(uint64_t new_seed)
{
    seed = new_seed;
    random_state = mixed(new_seed + 0x9e3779b97f4a7c15);
}

void gpu_seed(uint64_t new_seed)
{
    gpu_lock();
    set_seed(new_seed);
    gpu_unlock();
}

uint64_t gpu_seed_now(void)
{
    return seed;
}

uint64_t gpu_random(uint64_t bound)
{
    random_state += 0x9e3779b97f4a7c15;
    return mixed(random_state) % bound;
}

/* ---- calls and faults ---- */

static uint64_t *calls_of(const char *function)
{
    size_t at = 5381;
    for (const char *c = function; *c != '\0'; c++)
        at = at * 33 + (unsigned char)*c;
    for (size_t tries = 0; tries < FUNCTIONS_MAX; tries++) {
        at %= FUNCTIONS_MAX;
        if (functions[at].name == NULL)
            functions[at].name = strdup(function);
        if (strcmp(functions[at].name, function) == 0)
            return &functions[at].calls;
        at++;
    }
    gpu_misuse("more than %d functions", (int)FUNCTIONS_MAX);
}

int gpu_enter(const char *function)
{
    int code = 0;
    gpu_lock();
    if (gpu_running() != NULL)
        gpu_misuse("work calls %s", function);
    ++*calls_of(function);
    if (fault.left > 0 && strcmp(fault.function, function) == 0 && --fault.left == 0) {
        code = fault.code;
        fault.happened = true;
    }
    gpu_unlock();
    return code;
}

static void arm(const char *function, unsigned nth, int code)
{
    snprintf(fault.function, sizeof fault.function, "%s", function);
    fault.left = nth;
    fault.code = code;
    fault.happened = false;
}

void gpu_arm(const char *function, unsigned nth, int code)
{
    gpu_lock();
    arm(function, nth, code);
    gpu_unlock();
}

void gpu_disarm(void)
{
    gpu_lock();
    fault.left = 0;
    stays = last_error = cudaSuccess;
    gpu_unlock();
}

/* ---- the lock ---- */

static void after_fork(void)
{
    forked = true;
}

static void begin(void)
{
    const char *text = getenv("GPU_SEED"), *armed = getenv("GPU_FAULT");
    set_seed(text != NULL ? strtoull(text, NULL, 10) : 1);
    if (armed != NULL && *armed != '\0') {
        char function[sizeof fault.function];
        unsigned nth;
        int code;
        if (sscanf(armed, "%95[^:]:%u:%d", function, &nth, &code) != 3 || nth == 0)
            gpu_misuse("GPU_FAULT is %s, expected function:nth:code", armed);
        arm(function, nth, code);
    }
    pthread_atfork(NULL, NULL, after_fork);
    on_exit(at_exit, NULL);
}

void gpu_lock(void)
{
    pthread_once(&once, begin);
    pthread_mutex_lock(&mutex);
}

void gpu_unlock(void)
{
    pthread_mutex_unlock(&mutex);
}

/* ---- what tests ask ---- */

bool gpu_fault_happened(void)
{
    return fault.happened;
}

uint64_t gpu_calls(const char *function)
{
    gpu_lock();
    const uint64_t calls = *calls_of(function);
    gpu_unlock();
    return calls;
}

const char *gpu_called(unsigned number)
{
    const char *name = NULL;
    gpu_lock();
    for (size_t i = 0; i < FUNCTIONS_MAX && name == NULL; i++)
        if (functions[i].calls > 0 && number-- == 0)
            name = functions[i].name;
    gpu_unlock();
    return name;
}

void gpu_counts(struct gpu_counts *out)
{
    gpu_lock();
    *out = gpu_counted;
    gpu_unlock();
}

/* Errors of a device whose context is lost: "the process must be terminated and relaunched". */
static bool error_stays(cudaError_t code)
{
    return code == cudaErrorIllegalAddress || code == cudaErrorLaunchFailure ||
           code == cudaErrorLaunchTimeout || code == cudaErrorHardwareStackError ||
           code == cudaErrorIllegalInstruction || code == cudaErrorMisalignedAddress ||
           code == cudaErrorInvalidAddressSpace || code == cudaErrorInvalidPc || code == cudaErrorAssert ||
           code == cudaErrorECCUncorrectable;
}

cudaError_t gpu_begin(const char *function)
{
    gpu_lock();
    const cudaError_t code = (cudaError_t)gpu_enter(function);
    if (forked)
        return cudaErrorInitializationError;
    if (error_stays(code))
        stays = code;
    return stays != cudaSuccess ? stays : code;
}

cudaError_t gpu_end(cudaError_t code)
{
    if (code != cudaSuccess && code != cudaErrorNotReady)
        last_error = code;
    gpu_unlock();
    return code;
}

cudaError_t cudaGetLastError(void)
{
    const cudaError_t armed = gpu_begin(__func__);
    const cudaError_t code = armed != cudaSuccess ? armed : last_error;
    last_error = cudaSuccess;
    gpu_unlock();
    return code;
}

cudaError_t cudaPeekAtLastError(void)
{
    const cudaError_t armed = gpu_begin(__func__);
    const cudaError_t code = armed != cudaSuccess ? armed : last_error;
    gpu_unlock();
    return code;
}

const char *cudaGetErrorName(cudaError_t code)
{
    static _Thread_local char text[32];
    snprintf(text, sizeof text, "error %d", (int)code);
    return text;
}

/* The toolkit's text of the errors that tests meet. */
const char *cudaGetErrorString(cudaError_t code)
{
    static const struct {
        cudaError_t code;
        const char *text;
    } texts[] = {
        {cudaSuccess, "no error"},
        {cudaErrorInvalidValue, "invalid argument"},
        {cudaErrorMemoryAllocation, "out of memory"},
        {cudaErrorInitializationError, "initialization error"},
        {cudaErrorInvalidConfiguration, "invalid configuration argument"},
        {cudaErrorInsufficientDriver, "CUDA driver version is insufficient for CUDA runtime version"},
        {cudaErrorNoDevice, "no CUDA-capable device is detected"},
        {cudaErrorInvalidDevice, "invalid device ordinal"},
        {cudaErrorInvalidResourceHandle, "invalid resource handle"},
        {cudaErrorIllegalState, "the operation cannot be performed in the present state"},
        {cudaErrorNotSupported, "operation not supported"},
        {cudaErrorHostMemoryAlreadyRegistered, "part or all of the requested memory range is already mapped"},
        {cudaErrorIllegalAddress, "an illegal memory access was encountered"},
        {cudaErrorLaunchFailure, "unspecified launch failure"},
        {cudaErrorLaunchOutOfResources, "too many resources requested for launch"},
        {cudaErrorStreamCaptureUnsupported, "operation not permitted when stream is capturing"},
        {cudaErrorStreamCaptureInvalidated, "operation failed due to a previous error during capture"},
        {cudaErrorStreamCaptureImplicit, "operation would make the legacy stream depend on a capturing "
                                         "blocking stream"},
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        if (texts[i].code == code)
            return texts[i].text;
    return cudaGetErrorName(code);
}

/* ---- what is alive ---- */

void gpu_alive(const char *kind, int change)
{
    gpu_lock();
    for (size_t i = 0; i < KINDS_MAX; i++) {
        if (kinds[i].kind == NULL)
            kinds[i].kind = kind;
        if (strcmp(kinds[i].kind, kind) == 0) {
            kinds[i].alive += change;
            if (kinds[i].alive < 0)
                gpu_misuse("more of %s were freed than made", kind);
            break;
        }
    }
    gpu_unlock();
}

uint64_t gpu_alive_count(void)
{
    uint64_t sum = 0;
    gpu_lock();
    for (size_t i = 0; i < KINDS_MAX && kinds[i].kind != NULL; i++)
        sum += (uint64_t)kinds[i].alive;
    gpu_unlock();
    return sum;
}

/* ---- the device ---- */

cudaError_t cudaGetDeviceCount(int *count)
{
    const cudaError_t code = gpu_begin(__func__);
    *count = code == cudaSuccess;
    return gpu_end(code);
}

cudaError_t cudaSetDevice(int device)
{
    const cudaError_t code = gpu_begin(__func__);
    return gpu_end(code != cudaSuccess ? code : device == 0 ? cudaSuccess : cudaErrorInvalidDevice);
}

cudaError_t cudaGetDevice(int *device)
{
    const cudaError_t code = gpu_begin(__func__);
    if (code == cudaSuccess)
        *device = 0;
    return gpu_end(code);
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *device, int number)
{
    cudaError_t code = gpu_begin(__func__);
    if (code == cudaSuccess && number != 0)
        code = cudaErrorInvalidDevice;
    if (code == cudaSuccess) {
        memset(device, 0, sizeof *device);
        snprintf(device->name, sizeof device->name, "stand-in for a GPU");
        const char *major = getenv("GPU_CAPABILITY");
        device->major = major != NULL ? atoi(major) : 9;
        device->totalGlobalMem = (size_t)8 << 30;
        device->sharedMemPerBlock = 48 << 10;
        device->warpSize = 32;
        device->maxThreadsPerBlock = 1024;
        device->multiProcessorCount = 1;
    }
    return gpu_end(code);
}

cudaError_t cudaRuntimeGetVersion(int *version)
{
    const cudaError_t code = gpu_begin(__func__);
    *version = CUDART_VERSION;
    return gpu_end(code);
}

cudaError_t cudaDriverGetVersion(int *version)
{
    const cudaError_t code = gpu_begin(__func__);
    *version = CUDART_VERSION;
    return gpu_end(code);
}
