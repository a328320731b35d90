/* Finds races and wild accesses in kernels. The .cu files are compiled with -fsanitize=thread, but not linked
 * with its runtime: the functions that gcc calls before each access to memory are defined here. A sanitizer's
 * build has none of this.
 *
 * Two accesses race where at least one writes, in one launch, from different blocks, or from different
 * threads of a block with no barrier between them. For each 4 bytes of device and __shared__ memory there are
 * two records: the last write, and the last reads. An interval is the time between two barriers of one block;
 * all intervals, ever, are numbered. A record is
 *
 *     interval << 16 | reader or writer << 4 | mask of the bytes
 *
 * and the reader or writer is a thread of the interval's block, or SEVERAL threads of the block, or threads
 * of several BLOCKS of the launch. */
#include "test/gpu/gpu_internal.h"

#ifdef GPU_NO_RACES

void gpu_race_launch(const void *args, size_t args_bytes, const void *stacks, size_t stack_bytes)
{
    (void)args;
    (void)args_bytes;
    (void)stacks;
    (void)stack_bytes;
}

void gpu_race_block(void)
{
}

void gpu_race_interval(void)
{
}

void gpu_race_thread(uint32_t thread)
{
    (void)thread;
}

void gpu_race_end(void)
{
}

#else

#include <errno.h>
#include <link.h>
#include <string.h>
#include <sys/mman.h>

enum { SEVERAL = 1024, BLOCKS = 1025, WHO_SHIFT = 4, WHO_MASK = 0xfff, INTERVAL_SHIFT = 16 };
enum { GRANULE_SHIFT = 2, GRANULE = 1 << GRANULE_SHIFT };

struct shadow {
    uint64_t written, read;
};

struct range {
    uintptr_t begin, bytes;
};

static __thread bool in_kernel __attribute__((tls_model("initial-exec")));
static uint64_t interval, block_begin, launch_begin; /* intervals: now, and the first of block and launch */
static uint64_t self;                                /* a record of this thread without its mask */
static struct range device, args, stacks;
static struct range variables; /* of the object that the kernels lie in: __shared__ ones are among them */
static struct range image, relocated; /* the object itself, and its constants that were relocated */
static struct shadow *device_shadow, *variable_shadow;

static bool within(const struct range *range, uintptr_t at)
{
    return at - range->begin < range->bytes;
}

/* ---- the object of the kernels ---- */

static int find_object(struct dl_phdr_info *info, size_t bytes, void *unused)
{
    (void)bytes;
    (void)unused;
    struct range writable = {0}, constants = {0}, all = {info->dlpi_addr, 0};
    for (size_t i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *header = &info->dlpi_phdr[i];
        const struct range range = {info->dlpi_addr + header->p_vaddr, header->p_memsz};
        if (header->p_type == PT_LOAD && within(&range, (uintptr_t)&gpu_place))
            writable = range;
        if (header->p_type == PT_LOAD)
            all.bytes = range.begin + range.bytes - all.begin;
        if (header->p_type == PT_GNU_RELRO)
            constants = range;
    }
    if (writable.bytes == 0)
        return 0;
    variables = writable;
    relocated = constants;
    image = all;
    return 1;
}

static struct shadow *shadow_new(uint64_t bytes)
{
    struct shadow *shadow = mmap(NULL, (bytes / GRANULE + 1) * sizeof *shadow, PROT_READ | PROT_WRITE,
                                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (shadow == MAP_FAILED)
        gpu_misuse("no memory for the records of accesses: %s", strerror(errno));
    madvise(shadow, (bytes / GRANULE + 1) * sizeof *shadow, MADV_DONTDUMP);
    return shadow;
}

/* ---- from gpu_kernel.c ---- */

void gpu_race_launch(const void *args_now, size_t args_bytes, const void *stacks_now, size_t stack_bytes)
{
    if (variable_shadow == NULL) {
        dl_iterate_phdr(find_object, NULL);
        variable_shadow = shadow_new(variables.bytes);
        device_shadow = shadow_new(GPU_SPACE_BYTES);
    }
    device = (struct range){(uintptr_t)gpu_device_base, gpu_device_base != NULL ? GPU_SPACE_BYTES : 0};
    args = (struct range){(uintptr_t)args_now, args_bytes};
    stacks = (struct range){(uintptr_t)stacks_now, stack_bytes};
    launch_begin = interval + 1;
}

void gpu_race_block(void)
{
    block_begin = ++interval;
}

void gpu_race_interval(void)
{
    interval++;
}

/* The thread's code runs from here on; the code of the stand-in has no hooks. */
void gpu_race_thread(uint32_t thread)
{
    self = interval << INTERVAL_SHIFT | (uint64_t)thread << WHO_SHIFT;
    in_kernel = true;
}

void gpu_race_end(void)
{
    in_kernel = false;
}

/* ---- accesses ---- */

static const char *memory_text(uintptr_t at)
{
    return within(&variables, at) ? "a __shared__ variable" : gpu_memory_text((const void *)at);
}

static _Noreturn void race(uintptr_t at, bool write, bool other_wrote, uint64_t other)
{
    const uint64_t who = other >> WHO_SHIFT & WHO_MASK;
    const bool same_block = other >> INTERVAL_SHIFT >= block_begin;
    gpu_misuse("a race: thread %u of block %u,%u,%u %s %s, which %s %s since the last barrier",
               (unsigned)(self >> WHO_SHIFT & WHO_MASK), gpu_place.block.x, gpu_place.block.y,
               gpu_place.block.z, write ? "writes" : "reads", memory_text(at),
               who == BLOCKS || !same_block ? "another block"
               : who == SEVERAL             ? "several threads"
                                            : "another thread",
               other_wrote ? "has written" : "has read");
}

/* Whether an earlier record and this thread have no order, and have bytes in common. Records before the
 * interval `since` are of another launch, or of another block's __shared__ memory. */
static bool concurrent(uint64_t record, uint64_t since, uint64_t mask)
{
    const uint64_t when = record >> INTERVAL_SHIFT, who = record >> WHO_SHIFT & WHO_MASK;
    if (when < since || (record & mask) == 0)
        return false;
    if (who == BLOCKS || when < block_begin)
        return true;
    return when == interval && (record ^ self) >> WHO_SHIFT != 0;
}

/* The record of the reads so far, this one included. */
static uint64_t add_reader(uint64_t record, uint64_t since, uint64_t mask)
{
    const uint64_t when = record >> INTERVAL_SHIFT, who = record >> WHO_SHIFT & WHO_MASK;
    const uint64_t now = interval << INTERVAL_SHIFT;
    if (when < since)
        return self | mask;
    if (who == BLOCKS || when < block_begin)
        return now | BLOCKS << WHO_SHIFT | ((record | mask) & 0xf);
    if (when < interval)
        return self | mask;
    if ((record ^ self) >> WHO_SHIFT != 0)
        return now | SEVERAL << WHO_SHIFT | ((record | mask) & 0xf);
    return record | mask;
}

static void note(struct shadow *shadow, uint64_t since, uintptr_t at, uint64_t mask, bool write)
{
    if (concurrent(shadow->written, since, mask))
        race(at, write, true, shadow->written);
    if (!write) {
        shadow->read = add_reader(shadow->read, since, mask);
        return;
    }
    if (concurrent(shadow->read, since, mask))
        race(at, true, false, shadow->read);
    shadow->written =
        shadow->written >> WHO_SHIFT == self >> WHO_SHIFT ? shadow->written | mask : self | mask;
}

/* `offset` is that of `at` from the begin of the shadowed memory. */
static void note_all(struct shadow *shadow, uint64_t since, uint64_t offset, uintptr_t at, size_t bytes,
                     bool write)
{
    for (uint64_t end = offset + bytes; offset < end;) {
        const uint64_t first = offset % GRANULE, left = end - offset,
                       count = left < GRANULE - first ? left : GRANULE - first;
        note(&shadow[offset >> GRANULE_SHIFT], since, at, ((1u << count) - 1) << first, write);
        offset += count;
        at += count;
    }
}

static void access_device(uint64_t offset, uintptr_t at, size_t bytes, bool write)
{
    const struct gpu_block *block = &gpu_device_blocks[gpu_device_owner[offset >> GPU_PAGE_SHIFT]];
    if (!block->live || offset < block->begin || offset + bytes > block->begin + block->bytes)
        gpu_misuse("thread %u of block %u,%u,%u %s %zu bytes outside of memory: %s",
                   (unsigned)(self >> WHO_SHIFT & WHO_MASK), gpu_place.block.x, gpu_place.block.y,
                   gpu_place.block.z, write ? "writes" : "reads", bytes, gpu_memory_text((const void *)at));
    note_all(device_shadow, launch_begin, offset, at, bytes, write);
}

/* __shared__ memory has no value before the block writes it. */
static void access_variable(uintptr_t at, size_t bytes, bool write)
{
    const uint64_t offset = at - variables.begin;
    if (!write && variable_shadow[offset >> GRANULE_SHIFT].written >> INTERVAL_SHIFT < block_begin)
        gpu_misuse("thread %u of block %u,%u,%u reads __shared__ memory that the block has not written",
                   (unsigned)(self >> WHO_SHIFT & WHO_MASK), gpu_place.block.x, gpu_place.block.y,
                   gpu_place.block.z);
    note_all(variable_shadow, block_begin, offset, at, bytes, write);
}

static inline void access_memory(const void *address, size_t bytes, bool write)
{
    const uintptr_t at = (uintptr_t)address;
    if (!in_kernel || within(&stacks, at))
        return;
    if (within(&device, at)) {
        access_device(at - device.begin, at, bytes, write);
        return;
    }
    in_kernel = false; /* for what this calls */
    const bool place = at - (uintptr_t)&gpu_place < sizeof gpu_place;
    const bool constant = within(&relocated, at) || (within(&image, at) && !within(&variables, at));
    if (!place && !constant && within(&variables, at))
        access_variable(at, bytes, write);
    else if ((write || !(place || constant || within(&args, at))) && !gpu_is_pinned(address, bytes))
        gpu_misuse("thread %u of block %u,%u,%u %s host memory", (unsigned)(self >> WHO_SHIFT & WHO_MASK),
                   gpu_place.block.x, gpu_place.block.y, gpu_place.block.z, write ? "writes" : "reads");
    in_kernel = true;
}

/* ---- what gcc calls ---- */

void __tsan_init(void);
void __tsan_func_entry(void *caller);
void __tsan_func_exit(void);
void __tsan_vptr_update(void **at, void *value);
void __tsan_vptr_read(void **at);
void __tsan_read_range(void *at, size_t bytes);
void __tsan_write_range(void *at, size_t bytes);

void __tsan_init(void)
{
}

void __tsan_func_entry(void *caller)
{
    (void)caller;
}

void __tsan_func_exit(void)
{
}

void __tsan_vptr_update(void **at, void *value)
{
    (void)value;
    access_memory(at, sizeof *at, true);
}

void __tsan_vptr_read(void **at)
{
    access_memory(at, sizeof *at, false);
}

void __tsan_read_range(void *at, size_t bytes)
{
    access_memory(at, bytes, false);
}

void __tsan_write_range(void *at, size_t bytes)
{
    access_memory(at, bytes, true);
}

#define HOOK(name, bytes, write)                                                                             \
    void name(void *at);                                                                                     \
    void name(void *at)                                                                                      \
    {                                                                                                        \
        access_memory(at, bytes, write);                                                                     \
    }
HOOK(__tsan_read1, 1, false)
HOOK(__tsan_read2, 2, false)
HOOK(__tsan_read4, 4, false)
HOOK(__tsan_read8, 8, false)
HOOK(__tsan_read16, 16, false)
HOOK(__tsan_write1, 1, true)
HOOK(__tsan_write2, 2, true)
HOOK(__tsan_write4, 4, true)
HOOK(__tsan_write8, 8, true)
HOOK(__tsan_write16, 16, true)
HOOK(__tsan_unaligned_read2, 2, false)
HOOK(__tsan_unaligned_read4, 4, false)
HOOK(__tsan_unaligned_read8, 8, false)
HOOK(__tsan_unaligned_read16, 16, false)
HOOK(__tsan_unaligned_write2, 2, true)
HOOK(__tsan_unaligned_write4, 4, true)
HOOK(__tsan_unaligned_write8, 8, true)
HOOK(__tsan_unaligned_write16, 16, true)

#endif
