/* For libraries that a test preloads: which calls are the program's own. They are those whose return address
 * lies in an executable segment of the main program, or of a library that own_code_note takes in.
 *
 * Our archives are linked statically, so their calls are the main program's. Calls from inside the C library,
 * libzmq and oneDNN are not the program's own. */
#ifndef TEST_PRELOAD_OWN_CODE_H
#define TEST_PRELOAD_OWN_CODE_H

#include <fcntl.h>
#include <link.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

enum { OWN_SEGMENTS_MAX = 16, OWN_TITLE_BYTES_MAX = 2048 };

static struct own_segment {
    uintptr_t begin, end;
    uintptr_t base;   /* an address minus `base` is an address of the object's file */
    const char *part; /* of the object's path; "" is the main program */
} own_segments[OWN_SEGMENTS_MAX];
static size_t own_segment_count;

/* The segment of `address`; NULL: the call is not the program's own. */
static inline const struct own_segment *own_segment_of(uintptr_t address)
{
    const size_t count = __atomic_load_n(&own_segment_count, __ATOMIC_ACQUIRE);
    for (size_t i = 0; i < count; i++)
        if (address >= own_segments[i].begin && address < own_segments[i].end)
            return &own_segments[i];
    return NULL;
}

static void own_note_segments(const struct dl_phdr_info *info, const char *part)
{
    for (size_t i = 0; i < info->dlpi_phnum && own_segment_count < OWN_SEGMENTS_MAX; i++) {
        const ElfW(Phdr) *header = &info->dlpi_phdr[i];
        const uintptr_t begin = info->dlpi_addr + header->p_vaddr;
        if (header->p_type != PT_LOAD || (header->p_flags & PF_X) == 0 || own_segment_of(begin) != NULL)
            continue;
        own_segments[own_segment_count] =
            (struct own_segment){begin, begin + header->p_memsz, info->dlpi_addr, part};
        __atomic_fetch_add(&own_segment_count, 1, __ATOMIC_RELEASE);
    }
}

/* `parts` ends with NULL. */
static int own_note_object(struct dl_phdr_info *info, size_t bytes, void *parts)
{
    (void)bytes;
    if (own_segment_count == 0) { /* the main program comes first */
        own_note_segments(info, "");
        return 0;
    }
    for (const char *const *part = parts; *part != NULL; part++)
        if (strstr(info->dlpi_name, *part) != NULL)
            own_note_segments(info, *part);
    return 0;
}

/* Takes in the main program and each loaded library whose path contains one of `parts` (ended by NULL). A
 * second call takes in what was loaded since. */
static inline void own_code_note(const char *const *parts)
{
    dl_iterate_phdr(own_note_object, (void *)(uintptr_t)parts);
}

/* Reads this process's command line; a zero byte ends each argument. Returns its length. */
static inline size_t own_command_line(char *text, size_t bytes)
{
    const int fd = open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC);
    const ssize_t length = fd < 0 ? -1 : read(fd, text, bytes - 1);
    if (fd >= 0)
        close(fd);
    text[length > 0 ? length : 0] = '\0';
    return length > 0 ? (size_t)length : 0;
}

#endif
