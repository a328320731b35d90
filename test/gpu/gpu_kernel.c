/* Launches of kernels: blocks one after the other, and a block's threads as fibers.
 *
 * A fiber runs thread after thread. At a barrier its thread waits and keeps the fiber, and the scheduler
 * starts or resumes another. So a kernel without barriers needs one fiber and no switches. A seeded
 * permutation orders the blocks, the threads, and the threads again behind each barrier.
 *
 * A fiber starts by setcontext; later switches are __builtin_setjmp and __builtin_longjmp, which make no
 * system call. The thread sanitizer is not told of fibers: it takes ten times as long with them, and without
 * them only its reports' stacks are mixed, since every fiber enters and leaves equally many functions.
 *
 * Denormal numbers are zero in kernels, as nvcc's -ftz=true has it. */
#include "test/gpu/gpu_internal.h"

#include <errno.h>
#include <pmmintrin.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>

#if GPU_ASAN
#include <sanitizer/common_interface_defs.h>
#endif

enum {
    THREADS_MAX = 1024,
    STACK_BYTES = 256 << 10, /* of which the lowest page is closed */
    PAGE = 1 << GPU_PAGE_SHIFT,
    GRID_YZ_MAX = 65535,
    BLOCK_Z_MAX = 64
};
#define STACKS_BYTES ((size_t)THREADS_MAX * STACK_BYTES)

struct fiber {
    void *jump[5]; /* where it was left */
    char *stack;   /* NULL: the scheduler, on the caller's stack */
    size_t stack_bytes;
    void *fake_stack; /* the address sanitizer's */
    bool started;
    uint32_t thread;  /* that it runs */
    const char *file; /* of the barrier where the thread waits; NULL: it does not wait */
    int line;
};

struct launch {
    const char *name;
    dim3 grid, block;
    void (*body)(const void *args);
    size_t bytes;
    _Alignas(16) char args[];
};

/* i -> (factor * i + offset) % count. */
struct permutation {
    uint64_t factor, offset, count;
};

struct gpu_place gpu_place;

static struct fiber scheduler, fibers[THREADS_MAX], *current = &scheduler;
static char *stacks;

/* Of the block that runs. */
static const struct launch *launch;
static struct permutation thread_order;
static uint32_t threads, threads_begun, threads_ended;

static struct permutation permutation_new(uint64_t count)
{
    struct permutation p = {1 + gpu_random(count), gpu_random(count), count};
    for (;; p.factor = 1 + gpu_random(count)) {
        uint64_t a = p.factor, b = count;
        while (b != 0) {
            const uint64_t rest = a % b;
            a = b;
            b = rest;
        }
        if (a == 1)
            return p;
    }
}

static uint64_t permuted(const struct permutation *p, uint64_t i)
{
    return (p->factor * i + p->offset) % p->count; /* count < 2^32, or the grid has one row */
}

/* ---- fibers ---- */

static void place_thread(uint32_t thread)
{
    gpu_place.thread.x = thread % launch->block.x;
    gpu_place.thread.y = thread / launch->block.x % launch->block.y;
    gpu_place.thread.z = thread / launch->block.x / launch->block.y;
    gpu_race_thread(thread);
}

/* __builtin_longjmp must not stand in a function that calls __builtin_setjmp. The address sanitizer would
 * clear the whole stack's shadow at each jump. */
__attribute__((noinline, noreturn, no_sanitize("thread,address"))) static void leap(void **to)
{
    __builtin_longjmp(to, 1);
}

__attribute__((noinline, no_sanitize("thread,address"))) static void jump(void **from, void **to)
{
    if (__builtin_setjmp(from) == 0)
        leap(to);
}

__attribute__((noinline, no_sanitize("thread,address"))) static void jump_to_new(void **from,
                                                                                 const ucontext_t *to)
{
    if (__builtin_setjmp(from) == 0)
        setcontext(to);
}

static void fiber_main(void);

static void new_fiber(struct fiber *fiber, ucontext_t *context)
{
    char *stack = stacks + (size_t)(fiber - fibers) * STACK_BYTES;
    mprotect(stack, PAGE, PROT_NONE);
    fiber->stack = stack + PAGE;
    fiber->stack_bytes = STACK_BYTES - PAGE;
    fiber->started = true;
    getcontext(context);
    context->uc_stack.ss_sp = fiber->stack;
    context->uc_stack.ss_size = fiber->stack_bytes;
    context->uc_link = NULL;
    makecontext(context, fiber_main, 0);
}

/* Runs on the new stack, or on the old one that was left before. */
static void arrive(struct fiber *here)
{
#if GPU_ASAN
    const void *bottom;
    size_t bytes;
    __sanitizer_finish_switch_fiber(here->fake_stack, &bottom, &bytes);
    if (here != &scheduler && scheduler.stack == NULL) {
        scheduler.stack = (char *)(uintptr_t)bottom;
        scheduler.stack_bytes = bytes;
    }
#else
    (void)here;
#endif
}

static void switch_to(struct fiber *to)
{
    struct fiber *from = current;
    ucontext_t context;
    const bool starts = to != &scheduler && !to->started;
    if (starts)
        new_fiber(to, &context);
    current = to;
#if GPU_ASAN
    __sanitizer_start_switch_fiber(&from->fake_stack, to->stack, to->stack_bytes);
#endif
    if (starts)
        jump_to_new(from->jump, &context);
    else
        jump(from->jump, to->jump);
    arrive(from);
}

static void fiber_main(void)
{
    struct fiber *self = current;
    arrive(self);
    for (;;) {
        while (threads_begun < threads) {
            self->thread = (uint32_t)permuted(&thread_order, threads_begun++);
            place_thread(self->thread);
            launch->body(launch->args);
            threads_ended++;
        }
        switch_to(&scheduler);
    }
}

void gpu_barrier(const char *file, int line)
{
    current->file = file;
    current->line = line;
    switch_to(&scheduler);
    current->file = NULL;
    place_thread(current->thread);
}

/* ---- blocks ---- */

/* All threads of the block wait at one barrier, or the process ends. */
static void check_barrier(uint32_t waiting)
{
    const struct fiber *first = fibers;
    while (first->file == NULL)
        first++;
    if (waiting < threads)
        gpu_misuse("%u of %u threads of block %u,%u,%u wait at the barrier in %s:%d, and %u have returned",
                   waiting, threads, gpu_place.block.x, gpu_place.block.y, gpu_place.block.z, first->file,
                   first->line, threads_ended);
    for (uint32_t i = 1; i < waiting; i++)
        if (fibers[i].line != first->line || strcmp(fibers[i].file, first->file) != 0)
            gpu_misuse("threads %u and %u of block %u,%u,%u wait at different barriers, %s:%d and %s:%d",
                       first->thread, fibers[i].thread, gpu_place.block.x, gpu_place.block.y,
                       gpu_place.block.z, first->file, first->line, fibers[i].file, fibers[i].line);
}

static void run_block(void)
{
    uint32_t waiting = 0;
    threads_begun = threads_ended = 0;
    thread_order = permutation_new(threads);
    gpu_race_block();
    while (threads_begun < threads) {
        struct fiber *fiber = &fibers[waiting];
        switch_to(fiber);
        waiting += fiber->file != NULL;
    }
    while (waiting > 0) {
        check_barrier(waiting);
        const struct permutation order = permutation_new(threads);
        gpu_race_interval();
        waiting = 0;
        for (uint32_t i = 0; i < threads; i++) {
            struct fiber *fiber = &fibers[permuted(&order, i)];
            switch_to(fiber);
            waiting += fiber->file != NULL;
        }
    }
}

static void run_launch(void *args)
{
    const uint32_t mode = _mm_getcsr();
    _MM_SET_FLUSH_ZERO_MODE(_MM_FLUSH_ZERO_ON);
    _MM_SET_DENORMALS_ZERO_MODE(_MM_DENORMALS_ZERO_ON);
    if (stacks == NULL)
        stacks = mmap(NULL, STACKS_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                      -1, 0);
    if (stacks == MAP_FAILED)
        gpu_misuse("no memory for stacks: %s", strerror(errno));
    launch = args;
    const dim3 grid = launch->grid, block = launch->block;
    const uint64_t plane = (uint64_t)grid.x * grid.y;
    const struct permutation columns = permutation_new(grid.x), rows = permutation_new(grid.y),
                             planes = permutation_new(grid.z);
    threads = block.x * block.y * block.z;
    gpu_place.threads = block;
    gpu_place.blocks = grid;
    gpu_counted.kernels++;
    scheduler.stack = NULL;
    gpu_race_launch(launch->args, launch->bytes, stacks, STACKS_BYTES);
    for (uint64_t i = 0; i < plane * grid.z; i++) {
        gpu_place.block.x = (uint32_t)permuted(&columns, i % grid.x);
        gpu_place.block.y = (uint32_t)permuted(&rows, i / grid.x % grid.y);
        gpu_place.block.z = (uint32_t)permuted(&planes, i / plane);
        run_block();
    }
    gpu_race_end();
    _mm_setcsr(mode);
}

/* ---- launches ---- */

/* CUDA's limits. */
static bool fits(dim3 grid, dim3 block)
{
    const uint64_t in_block = (uint64_t)block.x * block.y * block.z;
    return grid.x >= 1 && grid.x <= INT32_MAX && grid.y >= 1 && grid.y <= GRID_YZ_MAX && grid.z >= 1 &&
           grid.z <= GRID_YZ_MAX && in_block >= 1 && in_block <= THREADS_MAX && block.x <= THREADS_MAX &&
           block.y <= THREADS_MAX && block.z <= BLOCK_Z_MAX;
}

static cudaError_t queue_launch(cudaStream_t stream, const struct launch *header, const void *args)
{
    if (!fits(header->grid, header->block))
        return cudaErrorInvalidConfiguration;
    struct launch *it = malloc(sizeof *it + header->bytes);
    if (it == NULL)
        gpu_misuse("no memory for a launch");
    memcpy(it, header, sizeof *it);
    memcpy(it->args, args, header->bytes);
    const cudaError_t code = gpu_queue(stream, it->name, run_launch, it, sizeof *it + it->bytes);
    free(it);
    return code;
}

void gpu_launch(cudaStream_t stream, const char *name, dim3 grid, dim3 block, void (*body)(const void *args),
                const void *args, size_t bytes)
{
    cudaError_t code = gpu_begin("cudaLaunchKernel");
    const struct launch header = {.name = name, .grid = grid, .block = block, .body = body, .bytes = bytes};
    if (code == cudaSuccess)
        code = queue_launch(stream, &header, args);
    gpu_counted.launches += code == cudaSuccess;
    gpu_end(code);
}
