/* Tests of the stand-in for a GPU: each promise of gpu.h, with kernels of test_gpu_kernels.cu. What ends the
 * process is tested in a child. */
#include "test/gpu/gpu.h"
#include "test/gpu/test_gpu_kernels.h"
#include "test/workplace.h"

#include <check.h>
#include <math.h>
#include <pmmintrin.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

/* What finds an access outside of an allocation that is in its pages. */
#if defined(__SANITIZE_ADDRESS__)
enum { RACES_FOUND = 0, POISON_FOUND = 1 };
#elif defined(GPU_NO_RACES)
enum { RACES_FOUND = 0, POISON_FOUND = 0 };
#else
enum { RACES_FOUND = 1, POISON_FOUND = 0 };
#endif

enum { COUNT = 4 * BLOCK_THREADS, BYTES = COUNT * sizeof(float), SEEDS = 20, NEVER_EARLY = 4, AT_ONCE = 3 };

static cudaStream_t stream;
static float *device, *other, *pinned;

static void must(cudaError_t code)
{
    ck_assert_msg(code == cudaSuccess, "%s", cudaGetErrorString(code));
}

static void wait_for_stream(void)
{
    must(cudaStreamSynchronize(stream));
}

/* Each test runs in a process of its own. */
static void open_all(void)
{
    must(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    must(cudaMalloc((void **)&device, BYTES));
    must(cudaMalloc((void **)&other, BYTES));
    must(cudaHostAlloc((void **)&pinned, BYTES, cudaHostAllocDefault));
}

static void close_all(void)
{
    must(cudaFree(device));
    must(cudaFree(other));
    must(cudaFreeHost(pinned));
    must(cudaStreamDestroy(stream));
    ck_assert_uint_eq(gpu_alive_count(), 0);
}

static void download(float *to, const float *from)
{
    must(cudaMemcpyAsync(to, from, BYTES, cudaMemcpyDeviceToHost, stream));
    wait_for_stream();
}

/* Runs a function in a child, which must end by abort() or a sanitizer, with `expected` on stderr. */
static void must_die(void (*function)(void), const char *expected)
{
    int ends[2], status;
    char text[4096];
    size_t length = 0;
    ck_assert_int_eq(pipe(ends), 0);
    fflush(NULL);
    const pid_t child = fork();
    ck_assert_int_ge(child, 0);
    if (child == 0) {
        dup2(ends[1], STDERR_FILENO);
        close(ends[0]);
        close(ends[1]);
        open_all();
        function();
        exit(EXIT_SUCCESS);
    }
    close(ends[1]);
    for (ssize_t n = 1; n > 0 && length<sizeof text - 1; length += n> 0 ? (size_t)n : 0)
        n = read(ends[0], text + length, sizeof text - 1 - length);
    text[length] = '\0';
    close(ends[0]);
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert_msg(!WIFEXITED(status) || WEXITSTATUS(status) != EXIT_SUCCESS, "the child ended well");
    ck_assert_msg(strstr(text, expected) != NULL, "expected \"%s\" in: %s", expected, text);
}

/* ---- memory ---- */

static void host_reads(void)
{
    wait_for_stream();
    printf("%g\n", (double)*(volatile float *)device);
}

static void host_writes_before_it_waits(void)
{
    gpu_seed(NEVER_EARLY);
    queue_fill(device, 1, 1, stream);
    ((volatile float *)device)[1] = 2;
}

START_TEST(the_host_cannot_touch_device_memory)
{
    must_die(host_reads, "gpu: the host touches device memory: byte 0 of a live allocation of 1024 bytes");
    must_die(host_writes_before_it_waits, "byte 4 of a live allocation");
}
END_TEST

START_TEST(fresh_memory_is_nan)
{
    open_all();
    float got[COUNT];
    for (int i = 0; i < COUNT; i++)
        ck_assert(isnan(pinned[i]));
    download(got, device);
    for (int i = 0; i < COUNT; i++)
        ck_assert(isnan(got[i]));
    close_all();
}
END_TEST

static void one_too_many(void)
{
    queue_one_too_many(device, COUNT, stream);
    wait_for_stream();
}

static void one_too_many_of_few(void)
{
    float *few;
    must(cudaMalloc((void **)&few, 12));
    queue_one_too_many(few, 3, stream);
    wait_for_stream();
}

static void one_before(void)
{
    queue_one_before(device, other, stream);
    wait_for_stream();
}

static void freed_memory(void)
{
    float *freed = device;
    must(cudaFree(device));
    queue_add_one(other, freed, 1, stream);
    wait_for_stream();
}

START_TEST(wild_accesses_end_the_process)
{
    must_die(one_too_many, "one_too_many_kernel");
    if (RACES_FOUND) {
        must_die(one_too_many,
                 "writes 4 bytes outside of memory: byte 1024 of a live allocation of 1024 bytes");
        must_die(one_too_many_of_few, "byte 12 of a live allocation of 12 bytes");
        must_die(one_before, "byte -4 of a live allocation of 1024 bytes");
    } else if (POISON_FOUND) {
        must_die(one_too_many_of_few, "use-after-poison");
        must_die(one_before, "use-after-poison");
    }
    must_die(freed_memory, RACES_FOUND ? "of a freed allocation of 1024 bytes" : "");
}
END_TEST

static void host_write(void)
{
    float *heap = malloc(sizeof *heap);
    queue_host_write(heap, stream);
    wait_for_stream();
    free(heap);
}

START_TEST(a_kernel_cannot_touch_host_memory)
{
    must_die(host_write, "host_write_kernel: thread 0 of block 0,0,0 writes host memory");
}
END_TEST

START_TEST(a_wrong_free_is_an_error)
{
    open_all();
    float *wrong = device, *host = malloc(BYTES);
    ck_assert_int_eq(cudaFree(device + 1), cudaErrorInvalidValue);
    ck_assert_int_eq(cudaGetLastError(), cudaErrorInvalidValue);
    ck_assert_int_eq(cudaGetLastError(), cudaSuccess);
    ck_assert_int_eq(cudaFree(host), cudaErrorInvalidValue);
    ck_assert_int_eq(cudaFreeHost(host), cudaErrorInvalidValue);
    must(cudaFree(NULL));
    must(cudaFreeHost(NULL));
    must(cudaFree(device));
    ck_assert_int_eq(cudaFree(wrong), cudaErrorInvalidValue);
    must(cudaMalloc((void **)&device, BYTES));
    ck_assert_ptr_ne(device, wrong); /* addresses are not used again soon */
    void *much = host;
    ck_assert_int_eq(cudaMalloc(&much, (size_t)1 << 40), cudaErrorMemoryAllocation);
    ck_assert_ptr_null(much);
    free(host);
    close_all();
}
END_TEST

START_TEST(a_free_waits)
{
    open_all();
    gpu_seed(NEVER_EARLY);
    queue_fill(device, 4, 3, stream);
    must(cudaMemcpyAsync(pinned, device, BYTES, cudaMemcpyDeviceToHost, stream));
    ck_assert(isnan(pinned[0]));
    must(cudaFree(other));
    ck_assert_float_eq(pinned[0], 3);
    must(cudaMalloc((void **)&other, BYTES));
    close_all();
}
END_TEST

static void free_pinned_in_use(void)
{
    gpu_seed(NEVER_EARLY);
    must(cudaMemcpyAsync(device, pinned, BYTES, cudaMemcpyHostToDevice, stream));
    cudaFreeHost(pinned);
}

START_TEST(pinned_memory_in_use_is_not_freed)
{
    must_die(free_pinned_in_use, "gpu: cudaFreeHost of 1024 bytes that a queued copy uses");
}
END_TEST

/* ---- registered memory ---- */

enum { REGISTERED_BYTES = 3 << 12 };

static float *host_pages(void)
{
    float *pages = aligned_alloc(1 << 12, REGISTERED_BYTES);
    ck_assert_ptr_nonnull(pages);
    return pages;
}

/* It is read and written late, as pinned memory is. */
START_TEST(registered_memory_is_pinned)
{
    open_all();
    gpu_seed(NEVER_EARLY);
    float *host = host_pages(), got[COUNT];
    ck_assert(!gpu_is_pinned(host, BYTES));
    must(cudaHostRegister(host, REGISTERED_BYTES, cudaHostRegisterDefault));
    ck_assert(gpu_is_pinned(host, REGISTERED_BYTES) && !gpu_is_pinned(host, REGISTERED_BYTES + 1));
    ck_assert_uint_eq(gpu_alive_count(), 5);
    host[0] = 1;
    must(cudaMemcpyAsync(device, host, BYTES, cudaMemcpyHostToDevice, stream));
    host[0] = 2;
    download(got, device);
    ck_assert_float_eq(got[0], 2);
    must(cudaHostUnregister(host));
    ck_assert(!gpu_is_pinned(host, BYTES));
    must(cudaMemcpyAsync(device, host, BYTES, cudaMemcpyHostToDevice, stream));
    host[0] = 3;
    download(got, device);
    ck_assert_float_eq(got[0], 2);
    free(host);
    close_all();
}
END_TEST

START_TEST(a_wrong_registration_is_an_error)
{
    open_all();
    float *host = host_pages();
    ck_assert_int_eq(cudaHostRegister(NULL, 8, cudaHostRegisterDefault), cudaErrorInvalidValue);
    ck_assert_int_eq(cudaHostRegister(host, 0, cudaHostRegisterDefault), cudaErrorInvalidValue);
    ck_assert_int_eq(cudaHostRegister(host, 8, 1 << 10), cudaErrorInvalidValue);
    ck_assert_int_eq(cudaHostRegister(host, 8, cudaHostRegisterReadOnly), cudaErrorNotSupported);
    ck_assert_int_eq(cudaHostRegister(device, 8, cudaHostRegisterDefault), cudaErrorInvalidValue);
    ck_assert_int_eq(cudaHostUnregister(host), cudaErrorHostMemoryNotRegistered);
    must(cudaHostRegister(host, 8, cudaHostRegisterDefault));
    ck_assert_int_eq(cudaHostRegister(host + 4, 8, cudaHostRegisterDefault),
                     cudaErrorHostMemoryAlreadyRegistered); /* in the same page */
    ck_assert_int_eq(cudaHostUnregister(host + 1), cudaErrorHostMemoryNotRegistered);
    ck_assert_int_eq(cudaFreeHost(host), cudaErrorInvalidValue);
    ck_assert_int_eq(cudaHostUnregister(pinned), cudaErrorHostMemoryNotRegistered);
    must(cudaHostUnregister(host));
    ck_assert_int_eq(mprotect(host, REGISTERED_BYTES, PROT_READ), 0);
    ck_assert_int_eq(cudaHostRegister(host, 8, cudaHostRegisterDefault), cudaErrorInvalidValue);
    ck_assert_int_eq(mprotect(host, REGISTERED_BYTES, PROT_READ | PROT_WRITE), 0);
    free(host);
    close_all();
}
END_TEST

static void unregister_in_use(void)
{
    float *host = host_pages();
    gpu_seed(NEVER_EARLY);
    must(cudaHostRegister(host, BYTES, cudaHostRegisterDefault));
    must(cudaMemcpyAsync(device, host, BYTES, cudaMemcpyHostToDevice, stream));
    cudaHostUnregister(host);
}

static void unmap_registered(void)
{
    void *host = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ck_assert(host != MAP_FAILED);
    must(cudaHostRegister(host, BYTES, cudaHostRegisterDefault));
    munmap(host, BYTES);
    cudaHostUnregister(host);
}

static void leave_registered(void)
{
    must(cudaHostRegister(host_pages(), BYTES, cudaHostRegisterDefault));
}

START_TEST(registered_memory_outlives_its_use)
{
    must_die(unregister_in_use, "gpu: cudaHostUnregister of 1024 bytes that a queued copy uses");
    must_die(unmap_registered, "gpu: cudaHostUnregister of 1024 bytes that the host has freed");
    must_die(leave_registered, "gpu: alive at exit: 1 of registered memory");
}
END_TEST

/* ---- streams and copies ---- */

/* With seed _i; all seeds compute the same where every wait is in its place. */
START_TEST(work_runs_in_order)
{
    open_all();
    gpu_seed((uint64_t)_i);
    float got[COUNT];
    for (int i = 0; i < COUNT; i++)
        pinned[i] = (float)i;
    must(cudaMemcpyAsync(device, pinned, BYTES, cudaMemcpyHostToDevice, stream));
    queue_add_one(other, device, 4, stream);
    must(cudaMemsetAsync(device, 0, BYTES, stream));
    queue_add_one(device, other, 3, stream);
    must(cudaMemcpyAsync(other, device, BYTES / 2, cudaMemcpyDeviceToDevice, stream));
    must(cudaGetLastError());
    download(got, other);
    for (int i = 0; i < COUNT; i++)
        ck_assert_float_eq(got[i], (float)(i + (i < COUNT / 2 ? 2 : 1)));
    close_all();
}
END_TEST

/* A missing wait: the copy reads what the host wrote later, and the host reads what stood before. */
START_TEST(pinned_memory_is_read_late)
{
    open_all();
    gpu_seed(NEVER_EARLY);
    float got[COUNT];
    pinned[0] = 1;
    must(cudaMemcpyAsync(device, pinned, BYTES, cudaMemcpyHostToDevice, stream));
    pinned[0] = 2;
    must(cudaMemcpyAsync(other, pinned, BYTES, cudaMemcpyHostToDevice, stream));
    wait_for_stream();
    download(got, device);
    ck_assert_float_eq(got[0], 2);
    pinned[0] = 3;
    must(cudaMemcpyAsync(pinned, device, BYTES, cudaMemcpyDeviceToHost, stream));
    ck_assert_float_eq(pinned[0], 3);
    wait_for_stream();
    ck_assert_float_eq(pinned[0], 2);
    gpu_seed(AT_ONCE);
    pinned[0] = 4;
    must(cudaMemcpyAsync(device, pinned, BYTES, cudaMemcpyHostToDevice, stream));
    pinned[0] = 5;
    download(got, device);
    ck_assert_float_eq(got[0], 4);
    close_all();
}
END_TEST

/* As CUDA documents it: staged at the call; and back, the call waits. */
START_TEST(pageable_memory_is_copied_at_the_call)
{
    open_all();
    gpu_seed(NEVER_EARLY);
    float host[COUNT] = {1}, got[COUNT];
    struct gpu_counts before, after;
    must(cudaMemcpyAsync(device, host, BYTES, cudaMemcpyHostToDevice, stream));
    host[0] = 2;
    gpu_counts(&before);
    must(cudaMemcpyAsync(got, device, BYTES, cudaMemcpyDeviceToHost, stream));
    gpu_counts(&after);
    ck_assert_float_eq(got[0], 1);
    ck_assert_uint_eq(after.waits, before.waits + 1);
    close_all();
}
END_TEST

static void copy_in_wrong_direction(void)
{
    cudaMemcpyAsync(device, other, BYTES, cudaMemcpyHostToDevice, stream);
}

static void copy_too_long(void)
{
    cudaMemcpyAsync(device, pinned, BYTES + 1, cudaMemcpyHostToDevice, stream);
}

static void copy_onto_itself(void)
{
    cudaMemcpyAsync(device, device + 1, BYTES - 4, cudaMemcpyDeviceToDevice, stream);
}

static void fill_of_host(void)
{
    cudaMemsetAsync(pinned, 0, BYTES, stream);
}

START_TEST(a_wrong_copy_is_misuse)
{
    must_die(copy_in_wrong_direction,
             "gpu: a copy of 1024 bytes from host memory that ends before, or is the");
    must_die(copy_too_long, "gpu: a copy of 1025 bytes to no device memory: byte 0 of a live allocation");
    must_die(copy_onto_itself, "gpu: a copy of 1020 bytes whose ends overlap");
    must_die(fill_of_host, "gpu: a fill of 1024 bytes of no device memory");
}
END_TEST

START_TEST(events_order_streams)
{
    open_all();
    gpu_seed(NEVER_EARLY);
    cudaStream_t second;
    cudaEvent_t event;
    float got[COUNT];
    must(cudaStreamCreateWithFlags(&second, cudaStreamNonBlocking));
    must(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    must(cudaEventQuery(event));
    queue_fill(device, 4, 7, stream);
    must(cudaEventRecord(event, stream));
    must(cudaStreamWaitEvent(second, event, 0));
    queue_add_one(other, device, 4, second);
    must(cudaMemcpyAsync(got, other, BYTES, cudaMemcpyDeviceToHost, second));
    ck_assert_float_eq(got[0], 8);
    queue_fill(device, 4, 9, stream);
    must(cudaEventRecord(event, stream));
    queue_fill(device, 4, 10, stream);
    must(cudaEventSynchronize(event));
    must(cudaMemcpyAsync(got, device, BYTES, cudaMemcpyDeviceToHost, second));
    ck_assert_float_eq(got[0], 9);
    must(cudaEventDestroy(event));
    must(cudaStreamDestroy(second));
    close_all();
}
END_TEST

START_TEST(a_wrong_stream_is_an_error)
{
    open_all();
    cudaStream_t gone;
    must(cudaStreamCreateWithFlags(&gone, cudaStreamNonBlocking));
    must(cudaStreamDestroy(gone));
    ck_assert_int_eq(cudaStreamSynchronize(gone), cudaErrorInvalidResourceHandle);
    queue_fill(device, 1, 1, gone);
    ck_assert_int_eq(cudaGetLastError(), cudaErrorInvalidResourceHandle);
    close_all();
}
END_TEST

/* ---- kernels ---- */

START_TEST(blocks_and_threads_run_once_each)
{
    open_all();
    gpu_seed((uint64_t)_i);
    const dim3 grid = {3, 2, 4}, block = {5, 1 + (unsigned)_i % 7, 2};
    enum { PLACES = 24 * 10 * 7 };
    const unsigned count = 24 * 10 * block.y;
    int *places, *got = malloc(PLACES * sizeof *got);
    must(cudaMalloc((void **)&places, count * sizeof *places));
    queue_places(places, grid, block, stream);
    must(cudaGetLastError());
    must(cudaMemcpyAsync(got, places, count * sizeof *places, cudaMemcpyDeviceToHost, stream));
    for (unsigned i = 0; i < count; i++)
        ck_assert_int_eq(got[i], (int)i);
    must(cudaFree(places));
    free(got);
    close_all();
}
END_TEST

START_TEST(threads_meet_at_barriers)
{
    open_all();
    gpu_seed((uint64_t)_i);
    float got[COUNT];
    for (int i = 0; i < COUNT; i++)
        pinned[i] = (float)i;
    must(cudaMemcpyAsync(device, pinned, BYTES, cudaMemcpyHostToDevice, stream));
    for (int round = 0; round < 3; round++)
        queue_sums(other, device, 4, stream);
    must(cudaGetLastError());
    download(got, other);
    for (int block = 0; block < 4; block++) {
        const int sum = BLOCK_THREADS * BLOCK_THREADS * block + BLOCK_THREADS * (BLOCK_THREADS - 1) / 2;
        ck_assert_float_eq(got[block], (float)sum);
    }
    close_all();
}
END_TEST

START_TEST(denormal_numbers_are_zero)
{
    open_all();
    float got[COUNT];
    const float zero = 0;
    _mm_setcsr(_mm_getcsr() & ~(uint32_t)(_MM_FLUSH_ZERO_MASK | _MM_DENORMALS_ZERO_MASK));
    queue_denormal(device, 1e-39f, stream);
    download(got, device);
    ck_assert_mem_eq(got, &zero, sizeof zero);
    ck_assert_uint_eq(_MM_GET_FLUSH_ZERO_MODE(), _MM_FLUSH_ZERO_OFF);
    close_all();
}
END_TEST

START_TEST(a_launch_has_cudas_limits)
{
    static const struct {
        dim3 grid, block;
        bool fits;
    } cases[] = {
        {{1, 1, 1}, {1024, 1, 1}, true},   {{1, 1, 1}, {1025, 1, 1}, false},
        {{0, 1, 1}, {1, 1, 1}, false},     {{1, 1, 1}, {0, 1, 1}, false},
        {{1, 1, 1}, {32, 33, 1}, false},   {{1, 1, 1}, {1, 1, 65}, false},
        {{1, 65535, 1}, {1, 1, 1}, true},  {{1, 65536, 1}, {1, 1, 1}, false},
        {{1, 1, 65536}, {1, 1, 1}, false}, {{0x80000000, 1, 1}, {1, 1, 1}, false},
    };
    open_all();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        queue_nothing(cases[i].grid, cases[i].block, stream);
        ck_assert_int_eq(cudaGetLastError(), cases[i].fits ? cudaSuccess : cudaErrorInvalidConfiguration);
    }
    wait_for_stream();
    close_all();
}
END_TEST

#define DEFECT(name)                                                                                         \
    static void name(void)                                                                                   \
    {                                                                                                        \
        gpu_seed(11);                                                                                        \
        must(cudaMemsetAsync(device, 0, BYTES, stream));                                                     \
        queue_##name(device, stream);                                                                        \
        wait_for_stream();                                                                                   \
    }
DEFECT(barrier_in_branch)
DEFECT(barrier_after_return)
DEFECT(different_barriers)
DEFECT(missing_barrier)
DEFECT(write_of_all)
DEFECT(read_behind_reads)
DEFECT(blocks_in_one_place)
DEFECT(blocks_without_order)
DEFECT(shared_without_value)

START_TEST(a_barrier_is_for_all_threads)
{
    must_die(barrier_in_branch, "gpu: barrier_in_branch_kernel: 7 of 64 threads of block 0,0,0 wait at the "
                                "barrier in test/gpu/test_gpu_kernels.cu:");
    must_die(barrier_after_return, "gpu: barrier_after_return_kernel: 63 of 64 threads of block 0,0,0 wait");
    must_die(different_barriers, "wait at different barriers, test/gpu/test_gpu_kernels.cu:");
}
END_TEST

START_TEST(races_are_found)
{
    must_die(missing_barrier, "gpu: missing_barrier_kernel: a race: thread ");
    must_die(write_of_all,
             "byte 20 of a live allocation of 1024 bytes, which another thread has written since");
    must_die(read_behind_reads, "gpu: read_behind_reads_kernel: a race: thread ");
    must_die(blocks_in_one_place, "which another block has written since the last barrier");
    must_die(blocks_without_order, "gpu: blocks_without_order_kernel: a race: thread ");
    must_die(shared_without_value, "reads __shared__ memory that the block has not written");
}
END_TEST

/* ---- capture and graphs ---- */

static cudaGraphExec_t captured_step(void)
{
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    must(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
    must(cudaMemcpyAsync(device, pinned, BYTES, cudaMemcpyHostToDevice, stream));
    queue_add_one(other, device, 4, stream);
    must(cudaGetLastError());
    must(cudaMemcpyAsync(pinned, other, BYTES, cudaMemcpyDeviceToHost, stream));
    must(cudaStreamEndCapture(stream, &graph));
    must(cudaGraphInstantiate(&exec, graph, 0));
    must(cudaGraphUpload(exec, stream));
    must(cudaGraphDestroy(graph));
    return exec;
}

START_TEST(a_graph_runs_when_it_is_launched)
{
    open_all();
    gpu_seed((uint64_t)_i);
    pinned[0] = 1;
    cudaGraphExec_t exec = captured_step();
    wait_for_stream();
    ck_assert_float_eq(pinned[0], 1);
    for (int round = 2; round < 5; round++) {
        must(cudaGraphLaunch(exec, stream));
        wait_for_stream();
        ck_assert_float_eq(pinned[0], (float)round);
    }
    must(cudaGraphExecDestroy(exec));
    close_all();
}
END_TEST

static void stale_device_pointer(void)
{
    cudaGraphExec_t exec = captured_step();
    must(cudaFree(other));
    must(cudaGraphLaunch(exec, stream));
    wait_for_stream();
}

static void stale_host_pointer(void)
{
    cudaGraphExec_t exec = captured_step();
    must(cudaFreeHost(pinned));
    must(cudaGraphLaunch(exec, stream));
    wait_for_stream();
}

START_TEST(a_graph_with_a_stale_pointer_ends_the_process)
{
    must_die(stale_device_pointer, RACES_FOUND ? "of a freed allocation of 1024 bytes" : "");
    must_die(stale_host_pointer, "gpu: copy: a copy of 1024 bytes of pinned memory that was freed");
}
END_TEST

/* What CUDA forbids to a capture, with its code; `modes` are those in which it is forbidden. */
static cudaError_t wait_in_capture(void)
{
    return cudaStreamSynchronize(stream);
}

static cudaError_t wait_for_device_in_capture(void)
{
    return cudaDeviceSynchronize();
}

static cudaError_t query_in_capture(void)
{
    return cudaStreamQuery(stream);
}

static cudaError_t pageable_in_capture(void)
{
    static float host[COUNT];
    return cudaMemcpyAsync(host, device, BYTES, cudaMemcpyDeviceToHost, stream);
}

static cudaError_t malloc_in_capture(void)
{
    void *at;
    return cudaMalloc(&at, 1);
}

static cudaError_t host_alloc_in_capture(void)
{
    void *at;
    return cudaHostAlloc(&at, 1, cudaHostAllocDefault);
}

static cudaError_t free_in_capture(void)
{
    return cudaFree(device);
}

static const struct {
    cudaError_t (*call)(void);
    bool relaxed; /* forbidden in the relaxed mode, too */
} forbidden[] = {
    {wait_in_capture, true},     {wait_for_device_in_capture, true}, {query_in_capture, true},
    {pageable_in_capture, true}, {malloc_in_capture, false},         {host_alloc_in_capture, false},
    {free_in_capture, false},
};
enum { FORBIDDEN = sizeof forbidden / sizeof *forbidden };

START_TEST(a_capture_forbids_what_cuda_forbids)
{
    open_all();
    const enum cudaStreamCaptureMode mode =
        forbidden[_i].relaxed ? cudaStreamCaptureModeRelaxed : cudaStreamCaptureModeGlobal;
    cudaGraph_t graph = (cudaGraph_t)(uintptr_t)1;
    must(cudaStreamBeginCapture(stream, mode));
    queue_fill(device, 1, 1, stream);
    must(cudaGetLastError());
    ck_assert_int_eq(forbidden[_i].call(), cudaErrorStreamCaptureUnsupported);
    queue_fill(device, 1, 1, stream);
    ck_assert_int_eq(cudaGetLastError(), cudaErrorStreamCaptureInvalidated);
    ck_assert_int_eq(cudaStreamEndCapture(stream, &graph), cudaErrorStreamCaptureInvalidated);
    ck_assert_ptr_null(graph);
    wait_for_stream();
    ck_assert_int_eq(cudaStreamEndCapture(stream, &graph), cudaErrorIllegalState);
    close_all();
}
END_TEST

START_TEST(a_relaxed_capture_may_allocate)
{
    open_all();
    void *more;
    cudaGraph_t graph;
    must(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
    ck_assert_int_eq(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed), cudaErrorIllegalState);
    must(cudaMalloc(&more, 1));
    must(cudaStreamEndCapture(stream, &graph));
    must(cudaGraphDestroy(graph));
    must(cudaFree(more));
    ck_assert_int_eq(cudaStreamBeginCapture(NULL, cudaStreamCaptureModeRelaxed),
                     cudaErrorStreamCaptureUnsupported);
    close_all();
}
END_TEST

/* ---- faults ---- */

static cudaError_t call_function(const char *name)
{
    cudaGraph_t graph = NULL;
    void *more = NULL;
    cudaError_t code = cudaSuccess;
    if (strcmp(name, "cudaMalloc") == 0)
        code = cudaMalloc(&more, 1);
    else if (strcmp(name, "cudaHostAlloc") == 0)
        code = cudaHostAlloc(&more, 1, cudaHostAllocDefault);
    else if (strcmp(name, "cudaMemcpyAsync") == 0)
        code = cudaMemcpyAsync(device, pinned, BYTES, cudaMemcpyHostToDevice, stream);
    else if (strcmp(name, "cudaMemsetAsync") == 0)
        code = cudaMemsetAsync(device, 0, BYTES, stream);
    else if (strcmp(name, "cudaStreamSynchronize") == 0)
        code = cudaStreamSynchronize(stream);
    else if (strcmp(name, "cudaStreamBeginCapture") == 0)
        code = cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed);
    else if (strcmp(name, "cudaStreamEndCapture") == 0) {
        must(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
        code = cudaStreamEndCapture(stream, &graph);
    } else if (strcmp(name, "cudaFree") == 0) {
        code = cudaFree(device);
        device = NULL;
    } else if (strcmp(name, "cudaFreeHost") == 0) {
        code = cudaFreeHost(pinned);
        pinned = NULL;
    } else {
        queue_fill(device, 1, 1, stream);
        code = cudaGetLastError();
    }
    return code;
}

static const char *const functions[] = {
    "cudaMalloc",
    "cudaHostAlloc",
    "cudaMemcpyAsync",
    "cudaMemsetAsync",
    "cudaFree",
    "cudaFreeHost",
    "cudaStreamSynchronize",
    "cudaStreamBeginCapture",
    "cudaStreamEndCapture",
    "cudaLaunchKernel",
};
enum { FUNCTIONS = sizeof functions / sizeof *functions };

/* Nothing stays alive: a function that frees does so and fails, one that makes does not make. */
START_TEST(a_fault_makes_a_call_fail)
{
    open_all();
    const uint64_t calls = gpu_calls(functions[_i]);
    gpu_arm(functions[_i], 1, cudaErrorLaunchOutOfResources);
    ck_assert_int_eq(call_function(functions[_i]), cudaErrorLaunchOutOfResources);
    ck_assert(gpu_fault_happened());
    ck_assert_uint_eq(gpu_calls(functions[_i]), calls + 1);
    cudaGetLastError();
    close_all();
}
END_TEST

START_TEST(a_fault_hits_the_nth_call)
{
    open_all();
    gpu_arm("cudaMemsetAsync", 3, cudaErrorInvalidValue);
    for (int i = 1; i <= 4; i++)
        ck_assert_int_eq(cudaMemsetAsync(device, 0, BYTES, stream),
                         i == 3 ? cudaErrorInvalidValue : cudaSuccess);
    close_all();
}
END_TEST

START_TEST(a_lost_device_stays_lost)
{
    open_all();
    gpu_arm("cudaStreamSynchronize", 1, cudaErrorIllegalAddress);
    ck_assert_int_eq(cudaStreamSynchronize(stream), cudaErrorIllegalAddress);
    ck_assert_int_eq(cudaMemsetAsync(device, 0, BYTES, stream), cudaErrorIllegalAddress);
    ck_assert_int_eq(cudaGetLastError(), cudaErrorIllegalAddress);
    ck_assert_int_eq(cudaGetLastError(), cudaErrorIllegalAddress);
    gpu_disarm();
    ck_assert_int_eq(cudaGetLastError(), cudaSuccess);
    close_all();
}
END_TEST

START_TEST(the_environment_arms_a_fault)
{
    void *first, *second;
    setenv("GPU_FAULT", "cudaMalloc:2:2", 1);
    setenv("GPU_MEMORY_MIB", "1", 1);
    must(cudaMalloc(&first, 1));
    ck_assert_int_eq(cudaMalloc(&second, 1), cudaErrorMemoryAllocation);
    ck_assert(gpu_fault_happened());
    ck_assert_int_eq(cudaMalloc(&second, 1 << 20), cudaErrorMemoryAllocation);
    must(cudaMalloc(&second, (1 << 20) - 1));
    must(cudaFree(first));
    must(cudaFree(second));
}
END_TEST

static void misuse_with_callers(void)
{
    setenv("GPU_BACKTRACE", "1", 1);
    fill_of_host();
}

START_TEST(misuse_prints_its_callers)
{
    must_die(misuse_with_callers, "test_gpu(");
}
END_TEST

/* ---- at the end ---- */

static void leak(void)
{
    must(cudaFree(other));
    must(cudaFreeHost(pinned));
    must(cudaStreamDestroy(stream));
}

START_TEST(a_leak_is_found_at_exit)
{
    must_die(leak, "gpu: alive at exit: 1 of device memory\ngpu: not everything was freed");
}
END_TEST

START_TEST(cuda_does_not_survive_a_fork)
{
    open_all();
    int status;
    const pid_t child = fork();
    ck_assert_int_ge(child, 0);
    if (child == 0)
        _exit(cudaStreamSynchronize(stream) == cudaErrorInitializationError &&
                      cudaFree(device) == cudaErrorInitializationError
                  ? EXIT_SUCCESS
                  : EXIT_FAILURE);
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert(WIFEXITED(status) && WEXITSTATUS(status) == EXIT_SUCCESS);
    close_all();
}
END_TEST

START_TEST(work_is_counted)
{
    open_all();
    struct gpu_counts before, after;
    cudaGraphExec_t exec = captured_step();
    gpu_counts(&before);
    must(cudaGraphLaunch(exec, stream));
    queue_fill(device, 1, 1, stream);
    must(cudaMemsetAsync(device, 0, BYTES, stream));
    wait_for_stream();
    gpu_counts(&after);
    ck_assert_uint_eq(after.launches - before.launches, 1);
    ck_assert_uint_eq(after.graph_launches - before.graph_launches, 1);
    ck_assert_uint_eq(after.kernels - before.kernels, 2);
    ck_assert_uint_eq(after.to_device - before.to_device, 1);
    ck_assert_uint_eq(after.to_device_bytes - before.to_device_bytes, BYTES);
    ck_assert_uint_eq(after.to_host - before.to_host, 1);
    ck_assert_uint_eq(after.fills - before.fills, 1);
    ck_assert_uint_eq(after.waits - before.waits, 1);
    must(cudaGraphExecDestroy(exec));
    close_all();
}
END_TEST

static void add_tests(TCase *tests)
{
    tcase_set_timeout(tests, 120);
    tcase_add_test(tests, the_host_cannot_touch_device_memory);
    tcase_add_test(tests, fresh_memory_is_nan);
    tcase_add_test(tests, wild_accesses_end_the_process);
    tcase_add_test(tests, a_wrong_free_is_an_error);
    tcase_add_test(tests, a_free_waits);
    tcase_add_test(tests, pinned_memory_in_use_is_not_freed);
    tcase_add_test(tests, registered_memory_is_pinned);
    tcase_add_test(tests, a_wrong_registration_is_an_error);
    tcase_add_test(tests, registered_memory_outlives_its_use);
    tcase_add_loop_test(tests, work_runs_in_order, 0, SEEDS);
    tcase_add_test(tests, pinned_memory_is_read_late);
    tcase_add_test(tests, pageable_memory_is_copied_at_the_call);
    tcase_add_test(tests, a_wrong_copy_is_misuse);
    tcase_add_test(tests, events_order_streams);
    tcase_add_test(tests, a_wrong_stream_is_an_error);
    tcase_add_loop_test(tests, blocks_and_threads_run_once_each, 0, SEEDS);
    tcase_add_loop_test(tests, threads_meet_at_barriers, 0, SEEDS);
    tcase_add_test(tests, denormal_numbers_are_zero);
    tcase_add_test(tests, a_launch_has_cudas_limits);
    tcase_add_test(tests, a_barrier_is_for_all_threads);
    if (RACES_FOUND) {
        tcase_add_test(tests, races_are_found);
        tcase_add_test(tests, a_kernel_cannot_touch_host_memory);
    }
    tcase_add_loop_test(tests, a_graph_runs_when_it_is_launched, 0, NEVER_EARLY);
    tcase_add_test(tests, a_graph_with_a_stale_pointer_ends_the_process);
    tcase_add_loop_test(tests, a_capture_forbids_what_cuda_forbids, 0, FORBIDDEN);
    tcase_add_test(tests, a_relaxed_capture_may_allocate);
    tcase_add_loop_test(tests, a_fault_makes_a_call_fail, 0, FUNCTIONS);
    tcase_add_test(tests, a_fault_hits_the_nth_call);
    tcase_add_test(tests, a_lost_device_stays_lost);
    tcase_add_test(tests, the_environment_arms_a_fault);
    tcase_add_test(tests, misuse_prints_its_callers);
    tcase_add_test(tests, a_leak_is_found_at_exit);
    tcase_add_test(tests, cuda_does_not_survive_a_fork);
    tcase_add_test(tests, work_is_counted);
}

int main(void)
{
    Suite *suite = suite_create("gpu");
    TCase *tests = tcase_create("gpu");
    add_tests(tests);
    suite_add_tcase(suite, tests);
    return suite_run(suite);
}
