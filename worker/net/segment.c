/* Sizing, sealing, checking and mapping of the workers' memfds. Any worker process; the thread that asks. */
#include "worker/net/segment.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    SEALED_SIZE = F_SEAL_SHRINK | F_SEAL_GROW,
    PLACE_ALIGNMENT = 64,
};

/* Reads the size of worker `worker`'s memfd, and whether that size is sealed. Only a memfd answers
 * F_GET_SEALS; another file, or none, is the status `wrong`. */
static enum status segment_read_state(uint16_t worker, size_t *bytes, bool *sealed, enum status wrong,
                                      struct error *error)
{
    int fd = SEGMENT_FD_FIRST + worker;
    struct stat info;
    int seals = fcntl(fd, F_GET_SEALS);
    if (seals < 0 || fstat(fd, &info) != 0)
        return error_set(error, wrong, "worker %u's segment: no memory file at descriptor %d", worker, fd);
    *bytes = (size_t)info.st_size;
    *sealed = (seals & SEALED_SIZE) == SEALED_SIZE;
    return STATUS_OK;
}

static enum status segment_map(struct segment *segment, uint16_t worker, size_t bytes, bool writable,
                               struct error *error)
{
    int protection = writable ? PROT_READ | PROT_WRITE : PROT_READ;
    void *data = mmap(NULL, bytes, protection, MAP_SHARED, SEGMENT_FD_FIRST + worker, 0);
    if (data == MAP_FAILED)
        return error_set_errno(error, errno, "cannot map the %zu bytes of worker %u's segment", bytes,
                               worker);
    *segment = (struct segment){.worker = worker, .data = data, .bytes = bytes};
    return STATUS_OK;
}

/* A segment that a predecessor sized but did not seal has no readers and may be sized again. F_SEAL_SEAL
 * keeps every process from adding seals later. */
static enum status segment_set_size(uint16_t worker, size_t bytes, struct error *error)
{
    int fd = SEGMENT_FD_FIRST + worker;
    if (ftruncate(fd, (off_t)bytes) != 0)
        return error_set_errno(error, errno, "cannot give worker %u's segment %zu bytes", worker, bytes);
    if (fcntl(fd, F_ADD_SEALS, SEALED_SIZE | F_SEAL_SEAL) != 0)
        return error_set_errno(error, errno, "cannot seal worker %u's segment", worker);
    return STATUS_OK;
}

enum status segment_create(struct segment *segment, uint16_t worker, size_t bytes, struct error *error)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE), found;
    bool sealed;
    *segment = (struct segment){.worker = worker};
    if (bytes == 0 || bytes > INT64_MAX - page)
        return error_set(error, STATUS_INVALID, "worker %u's segment cannot have %zu bytes", worker, bytes);
    bytes = (bytes + page - 1) / page * page;
    enum status status = segment_read_state(worker, &found, &sealed, STATUS_INTERNAL, error);
    if (status == STATUS_OK && sealed && found != bytes)
        return error_set(error, STATUS_INTERNAL, "worker %u's segment is sealed at %zu bytes: expected %zu",
                         worker, found, bytes);
    if (status == STATUS_OK && !sealed)
        status = segment_set_size(worker, bytes, error);
    return status == STATUS_OK ? segment_map(segment, worker, bytes, true, error) : status;
}

enum status segment_attach(struct segment *segment, uint16_t worker, size_t bytes_min, struct error *error)
{
    size_t found;
    bool sealed;
    *segment = (struct segment){.worker = worker};
    enum status status = segment_read_state(worker, &found, &sealed, STATUS_INVALID, error);
    if (status != STATUS_OK)
        return status;
    if (!sealed)
        return error_set(error, STATUS_INVALID, "worker %u's segment (%zu bytes) is not sealed yet", worker,
                         found);
    if (found == 0 || found < bytes_min)
        return error_set(error, STATUS_INVALID, "worker %u's segment has %zu bytes: expected at least %zu",
                         worker, found, bytes_min);
    return segment_map(segment, worker, found, false, error);
}

/* If the kernel refuses, the mapping stays as it was. */
void segment_set_writable(const struct segment *segment, bool writable)
{
    (void)mprotect(segment->data, segment->bytes, writable ? PROT_READ | PROT_WRITE : PROT_READ);
}

void *segment_at(const struct segment *segment, uint64_t offset, uint64_t bytes)
{
    if (segment->data == NULL || offset % PLACE_ALIGNMENT != 0 || offset > segment->bytes ||
        bytes > segment->bytes - offset)
        return NULL;
    return segment->data + offset;
}

/* If the kernel keeps the pages, that is no failure: they are written over later. */
void segment_discard(const struct segment *segment, void *at, size_t bytes)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    const size_t begin = (size_t)((unsigned char *)at - segment->data);
    const size_t first = (begin + page - 1) / page * page, end = (begin + bytes) / page * page;
    if (first < end)
        (void)fallocate(SEGMENT_FD_FIRST + segment->worker, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                        (off_t)first, (off_t)(end - first));
}

void segment_detach(struct segment *segment)
{
    if (segment->data != NULL)
        munmap(segment->data, segment->bytes);
    *segment = (struct segment){0};
}
