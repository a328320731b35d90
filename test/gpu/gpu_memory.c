/* Device memory, pinned and registered memory of the stand-in for a GPU.
 *
 * The device is one reserved range of addresses. Each allocation has pages of its own, begins at a multiple
 * of 256 bytes, and ends at most 255 bytes before a page that stays closed. Its pages are closed to the host,
 * too, except while work runs. Freed addresses stay closed until the whole range has been used once.
 *
 * Opening and closing costs page faults. With more than CLOSE_ALWAYS_BYTES of live memory only every
 * CLOSE_EVERYth drain closes it. */
#include "test/gpu/gpu_internal.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#if GPU_ASAN
#include <sanitizer/asan_interface.h>
#define IS_POISONED(at, bytes) (__asan_region_is_poisoned(at, bytes) != NULL)
#else
#define IS_POISONED(at, bytes) ((void)(at), (void)(bytes), false)
#define ASAN_POISON_MEMORY_REGION(at, bytes) ((void)(at), (void)(bytes))
#define ASAN_UNPOISON_MEMORY_REGION(at, bytes) ((void)(at), (void)(bytes))
#endif

enum { PAGE = 1 << GPU_PAGE_SHIFT, ALIGNMENT = 256, CLOSE_EVERY = 16, FRESH = 0xff };
#define CLOSE_ALWAYS_BYTES ((uint64_t)32 << 20)

char *gpu_device_base;
uint32_t *gpu_device_owner;
struct gpu_block *gpu_device_blocks;
static uint32_t block_count, blocks_max;
static uint64_t device_next; /* where the next allocation's pages begin */
static uint64_t live_bytes, live_bytes_max;
static bool opened;

static uint64_t pages_of(uint64_t bytes)
{
    return (bytes + PAGE - 1) / PAGE * PAGE;
}

/* The pages of an allocation, which begin before it where it is no multiple of a page. */
static uint64_t block_pages(const struct gpu_block *block, char **begin)
{
    const uint64_t from = block->begin / PAGE * PAGE;
    *begin = gpu_device_base + from;
    return pages_of(block->begin + block->bytes) - from;
}

/* ---- what an address is ---- */

static uint64_t device_offset(const void *at)
{
    return (uint64_t)((uintptr_t)at - (uintptr_t)gpu_device_base);
}

static const struct gpu_block *block_of(const void *at)
{
    const uint64_t offset = device_offset(at);
    if (gpu_device_base == NULL || offset >= GPU_SPACE_BYTES)
        return NULL;
    const uint32_t owner = gpu_device_owner[offset >> GPU_PAGE_SHIFT];
    return owner != 0 ? &gpu_device_blocks[owner] : NULL;
}

const char *gpu_memory_text(const void *at)
{
    static char text[160];
    const struct gpu_block *block = block_of(at);
    if (block == NULL && device_offset(at) >= PAGE)
        block = block_of((const char *)at - PAGE); /* in the closed page behind it */
    if (block == NULL)
        return "device memory that was never allocated";
    const int64_t byte = (int64_t)(device_offset(at) - block->begin);
    snprintf(text, sizeof text, "byte %jd of a %s allocation of %ju bytes", (intmax_t)byte,
             block->live ? "live" : "freed", (uintmax_t)block->bytes);
    return text;
}

bool gpu_is_device(const void *at, size_t bytes)
{
    const struct gpu_block *block = block_of(at);
    const uint64_t offset = device_offset(at);
    return block != NULL && block->live && offset >= block->begin && bytes <= block->bytes &&
           offset - block->begin <= block->bytes - bytes;
}

static struct sigaction previous;

static void on_fault(int signal, siginfo_t *info, void *context)
{
    (void)context;
    if (gpu_device_base != NULL && device_offset(info->si_addr) < GPU_SPACE_BYTES)
        gpu_misuse("%s touches device memory: %s", gpu_running() != NULL ? "the work" : "the host",
                   gpu_memory_text(info->si_addr));
    sigaction(signal, &previous, NULL); /* the access faults again, for the handler before */
}

/* ---- opening and closing ---- */

static void protect(int access)
{
    static uint32_t first = 1; /* those before it were freed */
    while (first < block_count && !gpu_device_blocks[first].live)
        first++;
    for (uint32_t i = first; i < block_count; i++) {
        const struct gpu_block *block = &gpu_device_blocks[i];
        char *begin;
        if (!block->live)
            continue;
        const uint64_t bytes = block_pages(block, &begin);
        if (mprotect(begin, bytes, access) != 0)
            gpu_misuse("mprotect failed: %s", strerror(errno));
    }
}

void gpu_memory_open(void)
{
    if (!opened)
        protect(PROT_READ | PROT_WRITE);
    opened = true;
}

void gpu_memory_close(void)
{
    if (!opened || (live_bytes > CLOSE_ALWAYS_BYTES && gpu_random(CLOSE_EVERY) != 0))
        return;
    protect(PROT_NONE);
    opened = false;
}

/* ---- device memory ---- */

static void *reserve(uint64_t bytes, int access)
{
    void *at = mmap(NULL, bytes, access, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED)
        gpu_misuse("mmap of %ju bytes failed: %s", (uintmax_t)bytes, strerror(errno));
    madvise(at, bytes, MADV_DONTDUMP);
    return at;
}

static void begin(void)
{
    const char *mib = getenv("GPU_MEMORY_MIB");
    gpu_device_owner = reserve(GPU_SPACE_BYTES / PAGE * sizeof *gpu_device_owner, PROT_READ | PROT_WRITE);
    gpu_device_base = reserve(GPU_SPACE_BYTES, PROT_NONE);
    live_bytes_max = (mib != NULL ? strtoull(mib, NULL, 10) : 8192) << 20;
    device_next = PAGE;
    block_count = 1;
    const struct sigaction ours = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_NODEFER};
    sigaction(SIGSEGV, &ours, &previous);
}

/* A free range of pages between two closed ones, or 0. Behind the end of the device's addresses the search
 * begins again. */
static uint64_t find_range(uint64_t bytes)
{
    for (int round = 0; round < 2; round++) {
        while (device_next + bytes + PAGE <= GPU_SPACE_BYTES) {
            uint64_t skip = 0;
            for (uint64_t at = device_next - PAGE; at < device_next + bytes + PAGE && skip == 0; at += PAGE) {
                const uint32_t owner = gpu_device_owner[at / PAGE];
                if (owner != 0 && gpu_device_blocks[owner].live)
                    skip = at + 2 * PAGE;
            }
            if (skip == 0)
                return device_next;
            device_next = skip;
        }
        device_next = PAGE;
    }
    return 0;
}

static uint32_t new_block(void)
{
    if (block_count >= blocks_max) {
        blocks_max = blocks_max == 0 ? 256 : 2 * blocks_max;
        gpu_device_blocks = realloc(gpu_device_blocks, blocks_max * sizeof *gpu_device_blocks);
        if (gpu_device_blocks == NULL)
            gpu_misuse("no memory for the table of allocations");
        gpu_device_blocks[0] = (struct gpu_block){0};
    }
    return block_count++;
}

static cudaError_t allocate(void **out, size_t bytes)
{
    if (out == NULL)
        return cudaErrorInvalidValue;
    *out = NULL;
    if (bytes == 0)
        return cudaSuccess;
    if (gpu_device_base == NULL)
        begin();
    const uint64_t aligned = (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT, mapped = pages_of(aligned);
    if (bytes > live_bytes_max || live_bytes + bytes > live_bytes_max)
        return cudaErrorMemoryAllocation;
    const uint64_t range = find_range(mapped);
    if (range == 0)
        return cudaErrorMemoryAllocation;
    const uint32_t number = new_block();
    struct gpu_block *block = &gpu_device_blocks[number];
    *block = (struct gpu_block){range + mapped - aligned, bytes, true};
    device_next = range + mapped + PAGE;
    for (uint64_t at = range; at < range + mapped; at += PAGE)
        gpu_device_owner[at / PAGE] = number;
    char *begin_at = gpu_device_base + range, *end = gpu_device_base + block->begin + bytes;
    if (mprotect(begin_at, mapped, PROT_READ | PROT_WRITE) != 0)
        gpu_misuse("mprotect failed: %s", strerror(errno));
    ASAN_UNPOISON_MEMORY_REGION(begin_at, mapped);
    memset(begin_at, FRESH, mapped);
    ASAN_POISON_MEMORY_REGION(begin_at, mapped - aligned);
    ASAN_POISON_MEMORY_REGION(end, aligned - bytes);
    if (!opened && mprotect(begin_at, mapped, PROT_NONE) != 0)
        gpu_misuse("mprotect failed: %s", strerror(errno));
    live_bytes += bytes;
    gpu_counted.allocations++;
    gpu_alive("device memory", 1);
    *out = gpu_device_base + block->begin;
    return cudaSuccess;
}

cudaError_t cudaMalloc(void **out, size_t bytes)
{
    cudaError_t code = gpu_begin(__func__);
    if (code == cudaSuccess && gpu_stream_forbids_allocation())
        code = cudaErrorStreamCaptureUnsupported;
    if (code == cudaSuccess)
        code = allocate(out, bytes);
    return gpu_end(code);
}

static cudaError_t release(void *at)
{
    struct gpu_block *block = (struct gpu_block *)(uintptr_t)block_of(at);
    char *begin_at;
    if (block == NULL || !block->live || device_offset(at) != block->begin)
        return cudaErrorInvalidValue;
    const uint64_t bytes = block_pages(block, &begin_at);
    block->live = false;
    live_bytes -= block->bytes;
    if (mprotect(begin_at, bytes, PROT_NONE) != 0 || madvise(begin_at, bytes, MADV_DONTNEED) != 0)
        gpu_misuse("mprotect failed: %s", strerror(errno));
    ASAN_POISON_MEMORY_REGION(begin_at, bytes);
    gpu_alive("device memory", -1);
    return cudaSuccess;
}

/* Waits for all streams. Frees even where it then fails with the error of earlier work. */
cudaError_t cudaFree(void *at)
{
    cudaError_t code = gpu_begin(__func__);
    if (code == cudaErrorInitializationError || at == NULL)
        return gpu_end(code);
    if (gpu_stream_forbids_allocation())
        return gpu_end(cudaErrorStreamCaptureUnsupported);
    gpu_stream_drain_all();
    gpu_counted.waits++;
    const cudaError_t released = release(at);
    return gpu_end(code != cudaSuccess ? code : released);
}

cudaError_t cudaMemGetInfo(size_t *available, size_t *total)
{
    const cudaError_t code = gpu_begin(__func__);
    if (gpu_device_base == NULL)
        begin();
    *available = live_bytes_max - live_bytes;
    *total = live_bytes_max;
    return gpu_end(code);
}

/* ---- pinned memory ---- */

static struct pinned {
    struct pinned *next;
    char *pages, *begin;
    size_t mapped, bytes;
    bool live;
    bool registered; /* the caller's memory: cudaHostRegister */
} * pinned_first;    /* freed ones stay in the list, and their pages closed */

static struct pinned *pinned_of(const void *at)
{
    for (struct pinned *p = pinned_first; p != NULL; p = p->next)
        if (p->live && (const char *)at >= p->begin && (const char *)at < p->begin + p->bytes)
            return p;
    return NULL;
}

bool gpu_is_pinned(const void *at, size_t bytes)
{
    const struct pinned *p = pinned_of(at);
    return p != NULL && bytes <= (size_t)(p->begin + p->bytes - (const char *)at);
}

static cudaError_t allocate_pinned(void **out, size_t bytes, unsigned flags)
{
    const unsigned known = cudaHostAllocPortable | cudaHostAllocMapped | cudaHostAllocWriteCombined;
    if (out == NULL || (flags & ~known) != 0)
        return cudaErrorInvalidValue;
    *out = NULL;
    if (bytes == 0)
        return cudaSuccess;
    if (bytes > (uint64_t)1 << 40)
        return cudaErrorMemoryAllocation;
    struct pinned *p = malloc(sizeof *p);
    if (p == NULL)
        return cudaErrorMemoryAllocation;
    const size_t aligned = (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    *p = (struct pinned){.next = pinned_first, .mapped = pages_of(aligned), .bytes = bytes, .live = true};
    p->pages = reserve(p->mapped + PAGE, PROT_NONE);
    p->begin = p->pages + p->mapped - aligned;
    if (mprotect(p->pages, p->mapped, PROT_READ | PROT_WRITE) != 0) {
        munmap(p->pages, p->mapped + PAGE);
        free(p);
        return cudaErrorMemoryAllocation;
    }
    memset(p->pages, FRESH, p->mapped);
    ASAN_POISON_MEMORY_REGION(p->pages, p->mapped - aligned);
    ASAN_POISON_MEMORY_REGION(p->begin + bytes, aligned - bytes);
    pinned_first = p;
    gpu_counted.pinned_allocations++;
    gpu_alive("pinned memory", 1);
    *out = p->begin;
    return cudaSuccess;
}

cudaError_t cudaHostAlloc(void **out, size_t bytes, unsigned flags)
{
    cudaError_t code = gpu_begin(__func__);
    if (code == cudaSuccess && gpu_stream_forbids_allocation())
        code = cudaErrorStreamCaptureUnsupported;
    if (code == cudaSuccess)
        code = allocate_pinned(out, bytes, flags);
    return gpu_end(code);
}

cudaError_t cudaMallocHost(void **out, size_t bytes)
{
    cudaError_t code = gpu_begin(__func__);
    if (code == cudaSuccess && gpu_stream_forbids_allocation())
        code = cudaErrorStreamCaptureUnsupported;
    if (code == cudaSuccess)
        code = allocate_pinned(out, bytes, cudaHostAllocDefault);
    return gpu_end(code);
}

cudaError_t cudaFreeHost(void *at)
{
    const cudaError_t code = gpu_begin(__func__);
    if (code == cudaErrorInitializationError || at == NULL)
        return gpu_end(code);
    if (gpu_stream_forbids_allocation())
        return gpu_end(cudaErrorStreamCaptureUnsupported);
    struct pinned *p = pinned_of(at);
    if (p == NULL || p->begin != (char *)at || p->registered)
        return gpu_end(code != cudaSuccess ? code : cudaErrorInvalidValue);
    const char *copy = gpu_stream_copy_of(p->begin, p->bytes);
    if (copy != NULL)
        gpu_misuse("cudaFreeHost of %zu bytes that a queued %s uses", p->bytes, copy);
    p->live = false;
    if (mprotect(p->pages, p->mapped, PROT_NONE) != 0 || madvise(p->pages, p->mapped, MADV_DONTNEED) != 0)
        gpu_misuse("mprotect failed: %s", strerror(errno));
    ASAN_UNPOISON_MEMORY_REGION(p->pages, p->mapped);
    gpu_alive("pinned memory", -1);
    return gpu_end(code);
}

/* ---- registered memory ---- */

/* Whether all of [begin, end) is mapped; *writable: and may be written everywhere. */
static bool host_is_mapped(const char *begin, const char *end, bool *writable)
{
    char line[512];
    uintptr_t from, to, reached = (uintptr_t)begin;
    char access[5];
    FILE *maps = fopen("/proc/self/maps", "re");
    if (maps == NULL)
        gpu_misuse("no /proc/self/maps: %s", strerror(errno));
    *writable = true;
    while (reached < (uintptr_t)end && fgets(line, sizeof line, maps) != NULL) {
        if (sscanf(line, "%" SCNxPTR "-%" SCNxPTR " %4s", &from, &to, access) != 3 || reached < from ||
            reached >= to)
            continue;
        if (access[0] != 'r')
            break;
        *writable = *writable && access[1] == 'w';
        reached = to;
    }
    fclose(maps);
    return reached >= (uintptr_t)end;
}

/* Whole pages are registered; a page belongs to one registration or allocation. As on GPUs beside an x86,
 * cudaDevAttrHostRegisterReadOnlySupported is 0, and memory that is mapped read-only cannot be registered. */
static cudaError_t register_memory(void *at, size_t bytes, unsigned flags)
{
    const unsigned known = cudaHostRegisterPortable | cudaHostRegisterMapped | cudaHostRegisterReadOnly;
    bool writable;
    if (at == NULL || bytes == 0 || (flags & ~known) != 0 || gpu_is_device(at, 1))
        return cudaErrorInvalidValue;
    if ((flags & cudaHostRegisterReadOnly) != 0)
        return cudaErrorNotSupported;
    char *begin_at = (char *)((uintptr_t)at / PAGE * PAGE);
    char *end = (char *)(((uintptr_t)at + bytes + PAGE - 1) / PAGE * PAGE);
    for (const struct pinned *p = pinned_first; p != NULL; p = p->next)
        if (p->live && p->pages < end && begin_at < p->pages + p->mapped)
            return cudaErrorHostMemoryAlreadyRegistered;
    if (!host_is_mapped(begin_at, end, &writable) || !writable)
        return cudaErrorInvalidValue;
    struct pinned *p = malloc(sizeof *p);
    if (p == NULL)
        return cudaErrorMemoryAllocation;
    *p = (struct pinned){.next = pinned_first,
                         .pages = begin_at,
                         .begin = at,
                         .mapped = (size_t)(end - begin_at),
                         .bytes = bytes,
                         .live = true,
                         .registered = true};
    pinned_first = p;
    gpu_alive("registered memory", 1);
    return cudaSuccess;
}

cudaError_t cudaHostRegister(void *at, size_t bytes, unsigned flags)
{
    cudaError_t code = gpu_begin(__func__);
    if (code == cudaSuccess && gpu_stream_forbids_allocation())
        code = cudaErrorStreamCaptureUnsupported;
    if (code == cudaSuccess)
        code = register_memory(at, bytes, flags);
    return gpu_end(code);
}

cudaError_t cudaHostUnregister(void *at)
{
    const cudaError_t code = gpu_begin(__func__);
    bool writable;
    if (code == cudaErrorInitializationError)
        return gpu_end(code);
    struct pinned *p = at != NULL ? pinned_of(at) : NULL;
    if (p == NULL || p->begin != (char *)at || !p->registered)
        return gpu_end(code != cudaSuccess ? code
                       : at == NULL        ? cudaErrorInvalidValue
                                           : cudaErrorHostMemoryNotRegistered);
    const char *copy = gpu_stream_copy_of(p->begin, p->bytes);
    if (copy != NULL)
        gpu_misuse("cudaHostUnregister of %zu bytes that a queued %s uses", p->bytes, copy);
    if (!host_is_mapped(p->pages, p->pages + p->mapped, &writable) || IS_POISONED(p->begin, p->bytes))
        gpu_misuse("cudaHostUnregister of %zu bytes that the host has freed", p->bytes);
    p->live = false;
    gpu_alive("registered memory", -1);
    return gpu_end(code);
}
