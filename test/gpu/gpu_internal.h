/* What the files of the runtime's stand-in share. Callers hold the lock, except in gpu_begin. */
#ifndef TEST_GPU_GPU_INTERNAL_H
#define TEST_GPU_GPU_INTERNAL_H

#include "test/gpu/gpu.h"

#if defined(__SANITIZE_ADDRESS__)
#define GPU_ASAN 1
#else
#define GPU_ASAN 0
#endif

/* ---- gpu_faults.c ---- */

/* Takes the lock and counts the call. Returns what the call must fail with: the fault, an error that stays,
 * or cudaSuccess. */
cudaError_t gpu_begin(const char *function);
/* Keeps the error for cudaGetLastError, releases the lock and returns `code`. */
cudaError_t gpu_end(cudaError_t code);

void gpu_lock(void);
void gpu_unlock(void);

/* A random number below `bound`, which is not 0. */
uint64_t gpu_random(uint64_t bound);
uint64_t gpu_seed_now(void);

extern struct gpu_counts gpu_counted;

/* ---- gpu_memory.c ---- */

enum { GPU_PAGE_SHIFT = 12 };
#define GPU_SPACE_BYTES ((uint64_t)64 << 30)

/* One allocation of device memory. Entry 0 of the table is none. */
struct gpu_block {
    uint64_t begin, bytes; /* from the device's base */
    bool live;
};
extern char *gpu_device_base;      /* of GPU_SPACE_BYTES; NULL before the first allocation */
extern uint32_t *gpu_device_owner; /* by page: an index of gpu_device_blocks */
extern struct gpu_block *gpu_device_blocks;

/* Opens the live device memory for work, and closes it. */
void gpu_memory_open(void);
void gpu_memory_close(void);

/* Describes a device address: "byte 12 of a freed allocation of 8 bytes". Not an error's text: static. */
const char *gpu_memory_text(const void *at);

/* ---- gpu_stream.c ---- */

/* Runs all work of all streams. */
void gpu_stream_drain_all(void);
/* Whether a stream captures in a mode that forbids allocations; if so, the capture becomes invalid. */
bool gpu_stream_forbids_allocation(void);
/* The name of a queued copy that uses the host memory, or NULL. */
const char *gpu_stream_copy_of(const void *host, size_t bytes);
/* The name of the work that runs, or NULL. */
const char *gpu_running(void);

/* ---- gpu_race.c: nothing in a sanitizer's build ---- */

/* `args` may be read by the kernel, and the stacks [stacks, stacks + stack_bytes) are its threads'. */
void gpu_race_launch(const void *args, size_t args_bytes, const void *stacks, size_t stack_bytes);
void gpu_race_block(void);
void gpu_race_interval(void); /* after a barrier */
void gpu_race_thread(uint32_t thread);
void gpu_race_end(void);

#endif
