/* Reads folders, on the thread that opens a dataset of image folders. */
#include "worker/data/listing.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

void listing_fini(struct listing *listing)
{
    free(listing->text);
    free(listing->at);
    *listing = (struct listing){0};
}

static bool listing_make_room(struct listing *listing, size_t bytes)
{
    if (listing->used + bytes > listing->room) {
        size_t room = 2 * listing->room + bytes;
        char *text = realloc(listing->text, room);
        if (text == NULL)
            return false;
        listing->text = text;
        listing->room = room;
    }
    if (listing->count == listing->slots) {
        size_t slots = 2 * listing->slots + 16;
        size_t *at = reallocarray(listing->at, slots, sizeof *at);
        if (at == NULL)
            return false;
        listing->at = at;
        listing->slots = slots;
    }
    return true;
}

static enum status listing_add_name(struct listing *listing, const char *name, struct error *error)
{
    const size_t bytes = strlen(name) + 1;
    if (!listing_make_room(listing, bytes))
        return error_set(error, STATUS_NO_MEMORY, "no memory for a list of files");
    memcpy(listing->text + listing->used, name, bytes);
    listing->at[listing->count++] = listing->used;
    listing->used += bytes;
    return STATUS_OK;
}

static bool has_image_ending(const char *name)
{
    static const char *const endings[] = {".jpg", ".jpeg", ".png"};
    const size_t length = strlen(name);
    for (size_t i = 0; i < sizeof endings / sizeof *endings; i++) {
        const size_t ending = strlen(endings[i]);
        if (length > ending && strcasecmp(name + length - ending, endings[i]) == 0)
            return true;
    }
    return false;
}

/* An entry that cannot be examined counts as no folder; reading it as an image will name it. */
static bool is_folder(DIR *folder, const struct dirent *entry)
{
    struct stat about;
    if (entry->d_type != DT_LNK && entry->d_type != DT_UNKNOWN)
        return entry->d_type == DT_DIR;
    return fstatat(dirfd(folder), entry->d_name, &about, 0) == 0 && S_ISDIR(about.st_mode);
}

static bool wanted(DIR *folder, const struct dirent *entry, enum listing_kind kind)
{
    if (entry->d_name[0] == '.')
        return false;
    if (kind == LISTING_FOLDERS)
        return is_folder(folder, entry);
    return has_image_ending(entry->d_name) && !is_folder(folder, entry);
}

static int compare_names(const void *a, const void *b, void *text)
{
    const size_t *left = a, *right = b;
    return strcmp((const char *)text + *left, (const char *)text + *right);
}

static enum status append_wanted(struct listing *listing, DIR *folder, const char *path,
                                 enum listing_kind kind, struct error *error)
{
    for (;;) {
        errno = 0;
        const struct dirent *entry = readdir(folder);
        if (entry == NULL && errno != 0)
            return error_set_errno(error, errno, "reading the folder %.300s", path);
        if (entry == NULL)
            return STATUS_OK;
        if (!wanted(folder, entry, kind))
            continue;
        enum status status = listing_add_name(listing, entry->d_name, error);
        if (status != STATUS_OK)
            return status;
    }
}

enum status listing_append(struct listing *listing, const char *path, enum listing_kind kind,
                           struct error *error)
{
    const size_t begin = listing->count;
    DIR *folder = opendir(path);
    if (folder == NULL)
        return error_set_errno(error, errno, "%.300s", path);
    enum status status = append_wanted(listing, folder, path, kind, error);
    closedir(folder);
    if (listing->count > begin)
        qsort_r(listing->at + begin, listing->count - begin, sizeof *listing->at, compare_names,
                listing->text);
    return status;
}
