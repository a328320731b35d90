/* Makes, opens, grows and flushes the file of a replay buffer. */
#include "worker/replay/replay_file.h"

#include "kernels/base/crc32c.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum {
    HEADER_BYTES = 4096,
    VERSION = 1,
    PIECE_BYTES = 32 << 20, /* taken of the disk at once: milliseconds for any file system */
    ZEROS_BYTES = 1 << 16,
};

static const char magic[8] = "CoalRply";

struct header {
    char magic[sizeof magic];
    uint32_t version;
    uint32_t crc; /* of the page, with 0 here */
    struct replay_shape shape;
};
_Static_assert(sizeof(struct header) == 80 && sizeof(struct header) <= HEADER_BYTES, "the file's format");

union header_page {
    struct header header;
    char bytes[HEADER_BYTES];
};

struct replay_file {
    int fd;           /* -1: memory */
    char *name;       /* the file's path; NULL: memory */
    struct path path; /* the same, below its folder */
    char *map;        /* the header, and the rows */
    uint64_t bytes;   /* of the map */
    uint64_t room;    /* of the file; the rows beyond it may not be touched */
};

char *replay_file_rows(const struct replay_file *file)
{
    return file->map + HEADER_BYTES;
}

uint64_t replay_file_room(const struct replay_file *file)
{
    return file->room - HEADER_BYTES;
}

const char *replay_file_name(const struct replay_file *file)
{
    return file->name != NULL ? file->name : "the replay buffer in memory";
}

/* ---- the header ---- */

static uint32_t header_crc(const union header_page *page)
{
    union header_page copy = *page;
    copy.header.crc = 0;
    return crc32c(copy.bytes, sizeof copy.bytes);
}

static enum status header_write(const struct replay_file *file, const struct replay_shape *shape,
                                struct error *error)
{
    union header_page page = {.header = {.version = VERSION, .shape = *shape}};
    memcpy(page.header.magic, magic, sizeof magic);
    page.header.crc = header_crc(&page);
    if (!file_write(file->fd, page.bytes, sizeof page.bytes) || fsync(file->fd) != 0)
        return error_set_errno(error, errno, "%s: cannot be written", file->name);
    return STATUS_OK;
}

static enum status header_compare(const char *name, const struct replay_shape *found,
                                  const struct replay_shape *expected, struct error *error)
{
    const struct {
        const char *what;
        uint64_t found, expected;
    } facts[] = {
        {"bytes of an observation", found->observation_bytes, expected->observation_bytes},
        {"frames", found->frames, expected->frames},
        {"bytes of a frame's last axis", found->frame_bytes, expected->frame_bytes},
        {"bytes of an action", found->action_bytes, expected->action_bytes},
        {"choices of an action", found->choices, expected->choices},
        {"rows to draw from", found->window_rows, expected->window_rows},
        {"bytes of a row", found->row_bytes, expected->row_bytes},
    };
    for (size_t i = 0; i < sizeof facts / sizeof *facts; i++)
        if (facts[i].found != facts[i].expected)
            return error_set(error, STATUS_INVALID,
                             "%.300s: a replay buffer of another shape: %s: found %llu, expected %llu", name,
                             facts[i].what, (unsigned long long)facts[i].found,
                             (unsigned long long)facts[i].expected);
    return STATUS_OK;
}

static enum status header_read(const struct replay_file *file, struct replay_shape *shape,
                               struct error *error)
{
    union header_page page = {0};
    const ssize_t bytes = file_read_at(file->fd, page.bytes, sizeof page.bytes, 0);
    if (bytes < 0)
        return error_set_errno(error, errno, "%.300s: cannot be read", file->name);
    if (memcmp(page.header.magic, magic, sizeof magic) != 0)
        return error_set(error, STATUS_CORRUPT,
                         "%.300s: not a replay buffer's file: expected \"%.8s\" at its beginning", file->name,
                         magic);
    if (bytes < HEADER_BYTES)
        return error_set(error, STATUS_CORRUPT, "%.300s: the header is cut: expected %d bytes, found %zd",
                         file->name, HEADER_BYTES, bytes);
    if (header_crc(&page) != page.header.crc)
        return error_set(error, STATUS_CORRUPT,
                         "%.300s: the header is damaged: its CRC-32C is %08x, expected %08x", file->name,
                         header_crc(&page), page.header.crc);
    if (page.header.version != VERSION)
        return error_set(error, STATUS_INVALID, "%.300s: of version %u, expected version %d", file->name,
                         page.header.version, VERSION);
    const enum status status = header_compare(file->name, &page.header.shape, shape, error);
    shape->capacity = page.header.shape.capacity;
    return status;
}

/* ---- opening ---- */

/* Another text below the folder that the path lies below. */
static struct path path_beside(struct path path, const char *text)
{
    path.text = text;
    return path;
}

/* The file has this path from now on. */
static char *copy_name(struct path path, struct error *error)
{
    char *name = strdup(path.text);
    if (name == NULL)
        error_set(error, STATUS_NO_MEMORY, "no memory for the name of a replay buffer's file");
    return name;
}

static void set_name(struct replay_file *file, struct path path, char *name)
{
    free(file->name);
    file->name = name;
    file->path = path_beside(path, name);
}

static enum status open_file(struct replay_file *file, struct path path, int flags, struct error *error)
{
    char *name = copy_name(path, error);
    if (name == NULL)
        return STATUS_NO_MEMORY;
    set_name(file, path, name);
    return file_open_as(&file->fd, file->path, O_RDWR | O_NOFOLLOW | flags, error);
}

/* A loss of power does not take the file's name away. */
static enum status sync_name(const struct replay_file *file, struct error *error)
{
    const char *slash = strrchr(file->name, '/');
    char *folder = slash == NULL ? strdup(".") : strndup(file->name, (size_t)(slash - file->name) + 1);
    if (folder == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for the name of a replay buffer's folder");
    const enum status status = file_sync_folder(path_beside(file->path, folder), error);
    free(folder);
    return status;
}

enum status replay_file_rename(struct replay_file *file, struct path path, struct error *error)
{
    char *name = copy_name(path, error);
    if (name == NULL)
        return STATUS_NO_MEMORY;
    if (!file_rename(file->path, path, 0)) {
        free(name);
        return error_set_errno(error, errno, "%.300s: cannot be renamed", file->name);
    }
    set_name(file, path, name);
    return sync_name(file, error);
}

/* The kernel grants more memory than there is, and kills whoever uses all of it: so this asks first. */
static enum status check_memory(uint64_t bytes, struct error *error)
{
    const double machine = (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE);
    if ((double)bytes <= machine)
        return STATUS_OK;
    return error_set(error, STATUS_INVALID,
                     "/algorithm/buffer_size: a replay buffer in memory (/replay/save false) takes %.1f GiB: "
                     "this machine has %.1f GiB",
                     (double)bytes / 0x1p30, machine / 0x1p30);
}

static enum status map_rows(struct replay_file *file, const struct replay_shape *shape, struct error *error)
{
    const int sharing = file->fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE : MAP_SHARED;
    uint64_t bytes;
    if (__builtin_mul_overflow(shape->capacity, shape->row_bytes, &bytes) ||
        bytes > (UINT64_C(1) << 46) - HEADER_BYTES)
        return error_set(error, STATUS_INVALID, "%.300s: %llu rows of %llu bytes cannot be addressed",
                         replay_file_name(file), (unsigned long long)shape->capacity,
                         (unsigned long long)shape->row_bytes);
    file->bytes = HEADER_BYTES + bytes;
    if (file->fd < 0 && check_memory(file->bytes, error) != STATUS_OK)
        return STATUS_INVALID;
    void *map = mmap(NULL, file->bytes, PROT_READ | PROT_WRITE, sharing, file->fd, 0);
    if (map == MAP_FAILED)
        return error_set_errno(error, errno, "%.300s: %llu bytes cannot be mapped", replay_file_name(file),
                               (unsigned long long)file->bytes);
    file->map = map;
    madvise(map, file->bytes, MADV_HUGEPAGE); // rows are drawn at random: larger pages, fewer walks
    return STATUS_OK;
}

static struct replay_file *file_alloc(struct error *error)
{
    struct replay_file *file = calloc(1, sizeof *file);
    if (file == NULL)
        error_set(error, STATUS_NO_MEMORY, "no memory for a replay buffer");
    else
        file->fd = -1;
    return file;
}

enum status replay_file_new(struct replay_file **out, struct path path, const struct replay_shape *shape,
                            struct error *error)
{
    enum status status = STATUS_OK;
    struct replay_file *file = *out = file_alloc(error);
    if (file == NULL)
        return STATUS_NO_MEMORY;
    if (path.text != NULL && (status = open_file(file, path, O_CREAT | O_TRUNC, error)) == STATUS_OK &&
        (status = header_write(file, shape, error)) == STATUS_OK)
        status = sync_name(file, error);
    if (status == STATUS_OK)
        status = map_rows(file, shape, error);
    if (status != STATUS_OK) {
        replay_file_close(file);
        *out = NULL;
        return status;
    }
    file->room = path.text != NULL ? HEADER_BYTES : file->bytes;
    return STATUS_OK;
}

enum status replay_file_resume(struct replay_file **out, struct path path, struct replay_shape *shape,
                               struct error *error)
{
    struct replay_file *file = *out = file_alloc(error);
    if (file == NULL)
        return STATUS_NO_MEMORY;
    enum status status = open_file(file, path, 0, error);
    if (status == STATUS_OK)
        status = header_read(file, shape, error);
    if (status == STATUS_OK)
        status = map_rows(file, shape, error);
    const off_t bytes = status == STATUS_OK ? lseek(file->fd, 0, SEEK_END) : 0;
    if (bytes < 0)
        status = error_set_errno(error, errno, "%s", file->name);
    if (status != STATUS_OK) {
        replay_file_close(file);
        *out = NULL;
        return status;
    }
    file->room = (uint64_t)bytes < file->bytes ? (uint64_t)bytes : file->bytes;
    return STATUS_OK;
}

void replay_file_close(struct replay_file *file)
{
    if (file == NULL)
        return;
    if (file->map != NULL)
        munmap(file->map, file->bytes);
    if (file->fd >= 0)
        close(file->fd);
    free(file->name);
    free(file);
}

void replay_file_discard(struct replay_file *file)
{
    file_remove(file->path);
    replay_file_close(file);
}

/* ---- room and flushes ---- */

/* For a file system that cannot reserve: what is written there has its place. False: see errno. */
static bool write_zeros(int fd, uint64_t from, uint64_t end)
{
    static const char zeros[ZEROS_BYTES];
    while (from < end) {
        const size_t bytes = end - from < sizeof zeros ? (size_t)(end - from) : sizeof zeros;
        const ssize_t written = pwrite(fd, zeros, bytes, (off_t)from);
        if (written < 0 && errno != EINTR)
            return false;
        from += written > 0 ? (uint64_t)written : 0;
    }
    return true;
}

/* False: see errno. */
static bool take_room(int fd, uint64_t from, uint64_t end)
{
    int failed;
    do
        failed = fallocate(fd, 0, (off_t)from, (off_t)(end - from));
    while (failed != 0 && errno == EINTR);
    return failed == 0 || (errno == EOPNOTSUPP && write_zeros(fd, from, end));
}

enum status replay_file_reserve(struct replay_file *file, uint64_t bytes, struct error *error)
{
    const uint64_t needed = HEADER_BYTES + bytes;
    assert(needed <= file->bytes);
    if (needed <= file->room)
        return STATUS_OK;
    const uint64_t ahead = file->room + PIECE_BYTES < file->bytes ? file->room + PIECE_BYTES : file->bytes;
    const uint64_t end = needed > ahead ? needed : ahead;
    if (!take_room(file->fd, file->room, end))
        return error_set_errno(error, errno,
                               "%.300s: no room on the disk for %llu bytes more, behind %llu of %llu",
                               file->name, (unsigned long long)(end - file->room),
                               (unsigned long long)file->room, (unsigned long long)file->bytes);
    file->room = end;
    return STATUS_OK;
}

enum status replay_file_flush(const struct replay_file *file, uint64_t from, uint64_t end,
                              struct error *error)
{
    const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    const uint64_t begin = (HEADER_BYTES + from) / page * page;
    if (file->fd < 0 || from >= end)
        return STATUS_OK;
    if (msync(file->map + begin, HEADER_BYTES + end - begin, MS_SYNC) != 0)
        return error_set_errno(error, errno, "%.300s: cannot be written to the disk", file->name);
    return STATUS_OK;
}
