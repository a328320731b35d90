/* Streams of the stand-in for a GPU: queued work, waits, copies, events, capture and graphs.
 *
 * A stream's work runs in its order, late: at a wait, or at a moment within a later call that the seed
 * chooses. Work of different streams has no order but by events, and by the default stream, before and behind
 * which all other streams' work stands. */
#include "test/gpu/gpu_internal.h"

#include <stdlib.h>
#include <string.h>

enum { QUEUE_MAX = 4096 }; /* then the oldest work runs */

struct work {
    struct work *next;
    const char *name;
    void (*run)(void *args);
    size_t bytes;
    _Alignas(64) char args[];
};

struct works {
    struct work *first, **end;
    size_t count;
};

/* A destroyed stream stays in the list: events may name it. */
struct CUstream_st {
    struct CUstream_st *next;
    struct works works;
    uint64_t queued, done; /* works, ever */
    enum cudaStreamCaptureStatus capture;
    enum cudaStreamCaptureMode mode;
    struct works captured;
    bool blocking; /* ordered with the default stream */
    bool live;
};

struct CUgraph_st {
    struct works works;
};

struct CUgraphExec_st {
    struct works works;
};

struct CUevent_st {
    struct CUstream_st *stream; /* NULL: not recorded */
    uint64_t behind;            /* complete when the stream has done so many works */
};

static struct CUstream_st default_stream = {.live = true, .blocking = true};
static struct CUstream_st *streams = &default_stream;
static const char *running;

const char *gpu_running(void)
{
    return running;
}

/* ---- lists of work ---- */

static void works_add(struct works *works, const char *name, void (*run)(void *args), const void *args,
                      size_t bytes)
{
    struct work *work = aligned_alloc(64, (sizeof *work + bytes + 63) / 64 * 64);
    if (work == NULL)
        gpu_misuse("no memory for queued work");
    work->next = NULL;
    work->name = name;
    work->run = run;
    work->bytes = bytes;
    if (bytes > 0)
        memcpy(work->args, args, bytes);
    if (works->first == NULL)
        works->end = &works->first;
    *works->end = work;
    works->end = &work->next;
    works->count++;
}

static struct work *works_take(struct works *works)
{
    struct work *work = works->first;
    works->first = work->next;
    works->count--;
    return work;
}

static void works_free(struct works *works)
{
    while (works->first != NULL)
        free(works_take(works));
}

static void works_copy(struct works *to, const struct works *from)
{
    for (const struct work *work = from->first; work != NULL; work = work->next)
        works_add(to, work->name, work->run, work->args, work->bytes);
}

/* ---- running ---- */

/* Runs the stream's work until `done` works are done, or none is left. */
static void run_until(struct CUstream_st *stream, uint64_t done)
{
    const char *outer = running;
    if (stream->done >= done || stream->works.first == NULL)
        return;
    gpu_memory_open();
    while (stream->done < done && stream->works.first != NULL) {
        struct work *work = works_take(&stream->works);
        running = work->name;
        work->run(work->args);
        running = outer;
        stream->done++;
        free(work);
    }
    if (outer == NULL)
        gpu_memory_close();
}

static void drain(struct CUstream_st *stream)
{
    run_until(stream, UINT64_MAX);
}

void gpu_stream_drain_all(void)
{
    for (struct CUstream_st *stream = streams; stream != NULL; stream = stream->next)
        drain(stream);
}

/* Runs some work, seldom or often by the seed: never, in one call of 256 or of 16, in each call. */
static void drain_by_chance(void)
{
    static const unsigned calls[4] = {0, 256, 16, 1};
    const unsigned every = calls[gpu_seed_now() % 4];
    if (every == 0 || gpu_random(every) != 0)
        return;
    for (struct CUstream_st *stream = streams; stream != NULL; stream = stream->next)
        if (stream->works.count > 0)
            run_until(stream, stream->done +
                                  (every == 1 ? stream->works.count : gpu_random(stream->works.count + 1)));
}

/* ---- streams ---- */

/* The stream of a handle; NULL: there is none. */
static struct CUstream_st *stream_of(cudaStream_t handle)
{
    if (handle == NULL || handle == cudaStreamLegacy)
        return &default_stream;
    for (struct CUstream_st *stream = streams; stream != NULL; stream = stream->next)
        if (stream == handle)
            return stream->live ? stream : NULL;
    return NULL;
}

static void invalidate(struct CUstream_st *stream)
{
    if (stream->capture == cudaStreamCaptureStatusActive)
        stream->capture = cudaStreamCaptureStatusInvalidated;
}

/* The code for a call that would wait for the stream. */
static cudaError_t may_wait(struct CUstream_st *stream)
{
    if (stream == NULL)
        return cudaErrorInvalidResourceHandle;
    if (stream->capture == cudaStreamCaptureStatusNone)
        return cudaSuccess;
    if (stream->capture == cudaStreamCaptureStatusInvalidated)
        return cudaErrorStreamCaptureInvalidated;
    invalidate(stream);
    return cudaErrorStreamCaptureUnsupported;
}

/* The code for a call that would wait for every stream, or for the default stream. */
static cudaError_t may_wait_for_all(bool blocking_only)
{
    cudaError_t code = cudaSuccess;
    for (struct CUstream_st *stream = streams; stream != NULL; stream = stream->next)
        if (stream->capture == cudaStreamCaptureStatusActive && (!blocking_only || stream->blocking)) {
            invalidate(stream);
            code = blocking_only ? cudaErrorStreamCaptureImplicit : cudaErrorStreamCaptureUnsupported;
        }
    return code;
}

bool gpu_stream_forbids_allocation(void)
{
    bool forbids = false;
    for (struct CUstream_st *stream = streams; stream != NULL; stream = stream->next)
        if (stream->capture != cudaStreamCaptureStatusNone && stream->mode != cudaStreamCaptureModeRelaxed) {
            invalidate(stream);
            forbids = true;
        }
    return forbids;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *out, unsigned flags)
{
    cudaError_t code = gpu_begin(__func__);
    if (code == cudaSuccess && (out == NULL || (flags & ~(unsigned)cudaStreamNonBlocking) != 0))
        code = cudaErrorInvalidValue;
    if (code != cudaSuccess)
        return gpu_end(code);
    struct CUstream_st *stream = calloc(1, sizeof *stream);
    if (stream == NULL)
        return gpu_end(cudaErrorMemoryAllocation);
    stream->live = true;
    stream->blocking = (flags & cudaStreamNonBlocking) == 0;
    stream->next = streams;
    streams = stream;
    gpu_alive("streams", 1);
    *out = stream;
    return gpu_end(cudaSuccess);
}

cudaError_t cudaStreamCreate(cudaStream_t *out)
{
    return cudaStreamCreateWithFlags(out, cudaStreamDefault);
}

/* The stream's work still runs. */
cudaError_t cudaStreamDestroy(cudaStream_t handle)
{
    const cudaError_t code = gpu_begin(__func__);
    struct CUstream_st *stream = stream_of(handle);
    if (code == cudaErrorInitializationError)
        return gpu_end(code);
    if (stream == NULL || stream == &default_stream)
        return gpu_end(cudaErrorInvalidResourceHandle);
    drain(stream);
    works_free(&stream->captured);
    stream->capture = cudaStreamCaptureStatusNone;
    stream->live = false;
    gpu_alive("streams", -1);
    return gpu_end(code);
}

/* Waits even where it then fails with the error of earlier work. */
cudaError_t cudaStreamSynchronize(cudaStream_t handle)
{
    const cudaError_t armed = gpu_begin(__func__);
    struct CUstream_st *stream = stream_of(handle);
    const cudaError_t code = may_wait(stream);
    if (code == cudaSuccess && armed != cudaErrorInitializationError) {
        drain(stream);
        gpu_counted.waits++;
    }
    return gpu_end(armed != cudaSuccess ? armed : code);
}

cudaError_t cudaDeviceSynchronize(void)
{
    const cudaError_t armed = gpu_begin(__func__), code = may_wait_for_all(false);
    if (code == cudaSuccess && armed != cudaErrorInitializationError) {
        gpu_stream_drain_all();
        gpu_counted.waits++;
    }
    return gpu_end(armed != cudaSuccess ? armed : code);
}

cudaError_t cudaStreamQuery(cudaStream_t handle)
{
    const cudaError_t armed = gpu_begin(__func__);
    struct CUstream_st *stream = stream_of(handle);
    cudaError_t code = may_wait(stream);
    if (code == cudaSuccess) {
        drain_by_chance();
        code = stream->works.count > 0 ? cudaErrorNotReady : cudaSuccess;
        if (code == cudaErrorNotReady && gpu_random(4) == 0) /* a caller that polls ends */
            drain(stream);
    }
    return gpu_end(armed != cudaSuccess ? armed : code);
}

/* ---- queueing ---- */

static cudaError_t queue(cudaStream_t handle, const char *name, void (*run)(void *args), const void *args,
                         size_t bytes)
{
    struct CUstream_st *stream = stream_of(handle);
    if (stream == NULL)
        return cudaErrorInvalidResourceHandle;
    if (stream->capture == cudaStreamCaptureStatusInvalidated)
        return cudaErrorStreamCaptureInvalidated;
    if (stream->capture == cudaStreamCaptureStatusActive) {
        works_add(&stream->captured, name, run, args, bytes);
        return cudaSuccess;
    }
    if (stream == &default_stream) {
        const cudaError_t code = may_wait_for_all(true);
        if (code != cudaSuccess)
            return code;
        for (struct CUstream_st *other = streams; other != NULL; other = other->next)
            if (other->blocking && other != stream)
                drain(other);
    } else if (stream->blocking)
        drain(&default_stream);
    if (stream->works.count >= QUEUE_MAX)
        run_until(stream, stream->done + QUEUE_MAX / 2);
    works_add(&stream->works, name, run, args, bytes);
    stream->queued++;
    drain_by_chance();
    return cudaSuccess;
}

cudaError_t gpu_queue(cudaStream_t stream, const char *name, void (*run)(void *args), const void *args,
                      size_t bytes)
{
    gpu_lock();
    return gpu_end(queue(stream, name, run, args, bytes));
}

/* ---- copies and fills ---- */

struct copy {
    void *to;
    const void *from;
    size_t bytes;
    enum cudaMemcpyKind kind;
    bool pinned; /* the host's end is pinned memory */
};

static bool to_device(enum cudaMemcpyKind kind)
{
    return kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
}

static bool from_device(enum cudaMemcpyKind kind)
{
    return kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
}

/* Ends the process unless both ends are what the direction says. */
static void check_copy(const struct copy *c)
{
    const char *ends[2] = {"to", "from"};
    const void *at[2] = {c->to, c->from};
    const bool device[2] = {to_device(c->kind), from_device(c->kind)};
    for (int i = 0; i < 2; i++) {
        if (device[i] && !gpu_is_device(at[i], c->bytes))
            gpu_misuse("a copy of %zu bytes %s no device memory: %s", c->bytes, ends[i],
                       gpu_memory_text(at[i]));
        if (!device[i] &&
            (gpu_is_device(at[i], 1) || (gpu_is_pinned(at[i], 1) && !gpu_is_pinned(at[i], c->bytes))))
            gpu_misuse("a copy of %zu bytes %s host memory that ends before, or is the device's", c->bytes,
                       ends[i]);
    }
    const char *to = c->to, *from = c->from;
    if (to < from + c->bytes && from < to + c->bytes)
        gpu_misuse("a copy of %zu bytes whose ends overlap", c->bytes);
}

static void count_copy(const struct copy *c)
{
    if (c->kind == cudaMemcpyHostToDevice) {
        gpu_counted.to_device++;
        gpu_counted.to_device_bytes += c->bytes;
    } else if (c->kind == cudaMemcpyDeviceToHost) {
        gpu_counted.to_host++;
        gpu_counted.to_host_bytes += c->bytes;
    } else {
        gpu_counted.within_device++;
        gpu_counted.within_device_bytes += c->bytes;
    }
}

static void run_copy(void *args)
{
    const struct copy *c = args;
    check_copy(c);
    if (c->pinned && !gpu_is_pinned(to_device(c->kind) ? c->from : c->to, c->bytes))
        gpu_misuse("a copy of %zu bytes of pinned memory that was freed", c->bytes);
    count_copy(c);
    memcpy(c->to, c->from, c->bytes);
}

/* Bytes that were staged at the call, behind the struct. */
static void run_staged_copy(void *args)
{
    struct copy *c = args;
    c->from = c + 1;
    if (!gpu_is_device(c->to, c->bytes))
        gpu_misuse("a copy of %zu bytes to no device memory: %s", c->bytes, gpu_memory_text(c->to));
    count_copy(c);
    memcpy(c->to, c->from, c->bytes);
}

const char *gpu_stream_copy_of(const void *host, size_t bytes)
{
    const char *begin = host, *end = begin + bytes;
    for (struct CUstream_st *stream = streams; stream != NULL; stream = stream->next)
        for (const struct work *work = stream->works.first; work != NULL; work = work->next) {
            if (work->run != run_copy)
                continue;
            const struct copy *c = (const struct copy *)work->args;
            const char *at = c->kind == cudaMemcpyHostToDevice ? c->from : c->to;
            if (c->kind != cudaMemcpyDeviceToDevice && at < end && at + c->bytes > begin)
                return work->name;
        }
    return NULL;
}

/* Fills in the direction of cudaMemcpyDefault. */
static bool resolve(struct copy *c)
{
    if (c->kind == cudaMemcpyDefault) {
        const bool to = gpu_is_device(c->to, 1), from = gpu_is_device(c->from, 1);
        c->kind = to     ? from ? cudaMemcpyDeviceToDevice : cudaMemcpyHostToDevice
                  : from ? cudaMemcpyDeviceToHost
                         : cudaMemcpyHostToHost;
    }
    return c->kind >= cudaMemcpyHostToHost && c->kind <= cudaMemcpyDeviceToDevice;
}

/* From pageable memory: the bytes are staged at the call. */
static cudaError_t queue_staged(cudaStream_t stream, const struct copy *c)
{
    char *args = malloc(sizeof *c + c->bytes);
    if (args == NULL)
        gpu_misuse("no memory to stage a copy of %zu bytes", c->bytes);
    memcpy(args, c, sizeof *c);
    memcpy(args + sizeof *c, c->from, c->bytes);
    const cudaError_t code =
        queue(stream, "copy of staged bytes", run_staged_copy, args, sizeof *c + c->bytes);
    free(args);
    return code;
}

static cudaError_t copy_now(struct CUstream_st *stream, struct copy *c)
{
    const cudaError_t code = may_wait(stream);
    if (code != cudaSuccess)
        return code;
    const cudaError_t queued = queue(stream, "copy", run_copy, c, sizeof *c);
    if (queued == cudaSuccess)
        drain(stream);
    gpu_counted.waits++;
    return queued;
}

static cudaError_t copy_async(cudaStream_t handle, struct copy *c)
{
    struct CUstream_st *stream = stream_of(handle);
    if (stream == NULL)
        return cudaErrorInvalidResourceHandle;
    if (!resolve(c))
        return cudaErrorInvalidMemcpyDirection;
    if (c->bytes == 0)
        return cudaSuccess;
    check_copy(c);
    const bool pageable = (!to_device(c->kind) && !gpu_is_pinned(c->to, c->bytes)) ||
                          (!from_device(c->kind) && !gpu_is_pinned(c->from, c->bytes));
    if (pageable && stream->capture == cudaStreamCaptureStatusActive) {
        invalidate(stream);
        return cudaErrorStreamCaptureUnsupported;
    }
    c->pinned = !pageable && c->kind != cudaMemcpyDeviceToDevice;
    if (pageable && c->kind == cudaMemcpyHostToDevice)
        return queue_staged(handle, c);
    if (pageable || c->kind == cudaMemcpyHostToHost)
        return copy_now(stream, c);
    return queue(handle, "copy", run_copy, c, sizeof *c);
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind,
                            cudaStream_t stream)
{
    cudaError_t code = gpu_begin(__func__);
    struct copy c = {to, from, bytes, kind, false};
    if (code == cudaSuccess)
        code = copy_async(stream, &c);
    return gpu_end(code);
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind)
{
    cudaError_t code = gpu_begin(__func__);
    struct copy c = {to, from, bytes, kind, false};
    if (code == cudaSuccess)
        code = may_wait_for_all(true);
    if (code == cudaSuccess && !resolve(&c))
        code = cudaErrorInvalidMemcpyDirection;
    if (code == cudaSuccess && bytes > 0) {
        check_copy(&c);
        code = copy_now(&default_stream, &c);
    }
    return gpu_end(code);
}

struct fill {
    void *to;
    int value;
    size_t bytes;
};

static void run_fill(void *args)
{
    const struct fill *f = args;
    if (!gpu_is_device(f->to, f->bytes))
        gpu_misuse("a fill of %zu bytes of no device memory: %s", f->bytes, gpu_memory_text(f->to));
    gpu_counted.fills++;
    memset(f->to, f->value, f->bytes);
}

cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t stream)
{
    cudaError_t code = gpu_begin(__func__);
    const struct fill f = {to, value, bytes};
    if (code != cudaSuccess || bytes == 0)
        return gpu_end(code);
    if (!gpu_is_device(to, bytes))
        gpu_misuse("a fill of %zu bytes of no device memory: %s", bytes, gpu_memory_text(to));
    return gpu_end(queue(stream, "fill", run_fill, &f, sizeof f));
}

/* Of device memory it does not wait. */
cudaError_t cudaMemset(void *to, int value, size_t bytes)
{
    return cudaMemsetAsync(to, value, bytes, NULL);
}

/* ---- events ---- */

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, unsigned flags)
{
    const cudaError_t code = gpu_begin(__func__);
    (void)flags;
    if (code != cudaSuccess)
        return gpu_end(code);
    *out = calloc(1, sizeof **out);
    if (*out == NULL)
        return gpu_end(cudaErrorMemoryAllocation);
    gpu_alive("events", 1);
    return gpu_end(cudaSuccess);
}

cudaError_t cudaEventCreate(cudaEvent_t *out)
{
    return cudaEventCreateWithFlags(out, cudaEventDefault);
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    const cudaError_t code = gpu_begin(__func__);
    if (code == cudaErrorInitializationError)
        return gpu_end(code);
    if (event == NULL)
        return gpu_end(cudaErrorInvalidResourceHandle);
    free(event);
    gpu_alive("events", -1);
    return gpu_end(code);
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t handle)
{
    cudaError_t code = gpu_begin(__func__);
    struct CUstream_st *stream = stream_of(handle);
    if (code == cudaSuccess && (event == NULL || stream == NULL))
        code = cudaErrorInvalidResourceHandle;
    if (code == cudaSuccess && stream->capture != cudaStreamCaptureStatusNone)
        gpu_misuse("an event in a capture: the stand-in has none");
    if (code == cudaSuccess)
        *event = (struct CUevent_st){stream, stream->queued};
    return gpu_end(code);
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    cudaError_t code = gpu_begin(__func__);
    if (event != NULL && event->stream != NULL && code != cudaErrorInitializationError) {
        run_until(event->stream, event->behind);
        gpu_counted.waits++;
    }
    return gpu_end(event == NULL ? cudaErrorInvalidResourceHandle : code);
}

cudaError_t cudaEventQuery(cudaEvent_t event)
{
    const cudaError_t code = gpu_begin(__func__);
    if (code != cudaSuccess || event == NULL)
        return gpu_end(code != cudaSuccess ? code : cudaErrorInvalidResourceHandle);
    drain_by_chance();
    if (event->stream == NULL || event->stream->done >= event->behind)
        return gpu_end(cudaSuccess);
    if (gpu_random(4) == 0) /* a caller that polls ends */
        run_until(event->stream, event->behind);
    return gpu_end(cudaErrorNotReady);
}

static void run_event_wait(void *args)
{
    const struct CUevent_st *event = args;
    run_until(event->stream, event->behind);
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags)
{
    cudaError_t code = gpu_begin(__func__);
    (void)flags;
    if (code == cudaSuccess && event == NULL)
        code = cudaErrorInvalidResourceHandle;
    if (code == cudaSuccess && event->stream != NULL)
        code = queue(stream, "wait for an event", run_event_wait, event, sizeof *event);
    return gpu_end(code);
}

/* ---- capture ---- */

cudaError_t cudaStreamBeginCapture(cudaStream_t handle, enum cudaStreamCaptureMode mode)
{
    cudaError_t code = gpu_begin(__func__);
    struct CUstream_st *stream = stream_of(handle);
    if (code == cudaSuccess && stream == NULL)
        code = cudaErrorInvalidResourceHandle;
    if (code == cudaSuccess && stream == &default_stream)
        code = cudaErrorStreamCaptureUnsupported;
    if (code == cudaSuccess && stream->capture != cudaStreamCaptureStatusNone)
        code = cudaErrorIllegalState;
    if (code == cudaSuccess) {
        stream->capture = cudaStreamCaptureStatusActive;
        stream->mode = mode;
    }
    return gpu_end(code);
}

cudaError_t cudaStreamIsCapturing(cudaStream_t handle, enum cudaStreamCaptureStatus *out)
{
    cudaError_t code = gpu_begin(__func__);
    struct CUstream_st *stream = stream_of(handle);
    if (code == cudaSuccess && stream == NULL)
        code = cudaErrorInvalidResourceHandle;
    if (code == cudaSuccess)
        *out = stream->capture;
    return gpu_end(code);
}

/* Ends the capture also where it then fails. */
cudaError_t cudaStreamEndCapture(cudaStream_t handle, cudaGraph_t *out)
{
    const cudaError_t armed = gpu_begin(__func__);
    struct CUstream_st *stream = stream_of(handle);
    *out = NULL;
    if (armed == cudaErrorInitializationError || stream == NULL)
        return gpu_end(armed != cudaSuccess ? armed : cudaErrorInvalidResourceHandle);
    const enum cudaStreamCaptureStatus status = stream->capture;
    struct works captured = stream->captured;
    stream->captured = (struct works){0};
    stream->capture = cudaStreamCaptureStatusNone;
    struct CUgraph_st *graph = NULL;
    if (armed == cudaSuccess && status == cudaStreamCaptureStatusActive)
        graph = calloc(1, sizeof *graph);
    if (graph == NULL) {
        works_free(&captured);
        return gpu_end(armed != cudaSuccess                           ? armed
                       : status == cudaStreamCaptureStatusNone        ? cudaErrorIllegalState
                       : status == cudaStreamCaptureStatusInvalidated ? cudaErrorStreamCaptureInvalidated
                                                                      : cudaErrorMemoryAllocation);
    }
    graph->works = captured;
    gpu_alive("graphs", 1);
    *out = graph;
    return gpu_end(cudaSuccess);
}

/* ---- graphs ---- */

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *out, cudaGraph_t graph, unsigned long long flags)
{
    cudaError_t code = gpu_begin(__func__);
    if (code == cudaSuccess && (out == NULL || graph == NULL || flags != 0))
        code = cudaErrorInvalidValue;
    if (code != cudaSuccess)
        return gpu_end(code);
    struct CUgraphExec_st *exec = calloc(1, sizeof *exec);
    if (exec == NULL)
        return gpu_end(cudaErrorMemoryAllocation);
    works_copy(&exec->works, &graph->works);
    gpu_alive("executable graphs", 1);
    *out = exec;
    return gpu_end(cudaSuccess);
}

cudaError_t cudaGraphUpload(cudaGraphExec_t exec, cudaStream_t handle)
{
    cudaError_t code = gpu_begin(__func__);
    if (code == cudaSuccess && exec == NULL)
        code = cudaErrorInvalidValue;
    if (code == cudaSuccess && stream_of(handle) == NULL)
        code = cudaErrorInvalidResourceHandle;
    return gpu_end(code);
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t handle)
{
    cudaError_t code = gpu_begin(__func__);
    if (code == cudaSuccess && exec == NULL)
        code = cudaErrorInvalidValue;
    if (code != cudaSuccess)
        return gpu_end(code);
    gpu_counted.graph_launches++;
    for (const struct work *work = exec->works.first; work != NULL && code == cudaSuccess; work = work->next)
        code = queue(handle, work->name, work->run, work->args, work->bytes);
    return gpu_end(code);
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec)
{
    const cudaError_t code = gpu_begin(__func__);
    if (code == cudaErrorInitializationError)
        return gpu_end(code);
    if (exec == NULL)
        return gpu_end(cudaErrorInvalidValue);
    works_free(&exec->works);
    free(exec);
    gpu_alive("executable graphs", -1);
    return gpu_end(code);
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
    const cudaError_t code = gpu_begin(__func__);
    if (code == cudaErrorInitializationError)
        return gpu_end(code);
    if (graph == NULL)
        return gpu_end(cudaErrorInvalidValue);
    works_free(&graph->works);
    free(graph);
    gpu_alive("graphs", -1);
    return gpu_end(code);
}
