/* Finds the newest sound checkpoint, and checks a checkpoint by its hashes. The supervisor and the commands
 * do this. */
#include "worker/checkpoint/checkpoint_internal.h"

#include "kernels/base/file.h"

#include <errno.h>
#include <inttypes.h>
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { BLOCK_BYTES = 1 << 16 };

/* ---- checking ---- */

static enum status read_hash_file(int fd, const char *path, uint64_t bytes,
                                  uint8_t sha256[crypto_hash_sha256_BYTES], struct error *error)
{
    char block[BLOCK_BYTES];
    crypto_hash_sha256_state state;
    crypto_hash_sha256_init(&state);
    for (uint64_t at = 0; at < bytes;) {
        ssize_t n = file_read_at(fd, block, sizeof block, at);
        if (n < 0)
            return error_set_errno(error, errno, "%s: cannot be read", path);
        if (n == 0)
            return error_set(error, STATUS_CORRUPT, "%s: it was cut short while it was read", path);
        crypto_hash_sha256_update(&state, (const unsigned char *)block, (size_t)n);
        at += (size_t)n;
    }
    crypto_hash_sha256_final(&state, sha256);
    return STATUS_OK;
}

enum status checkpoint_check_file(struct path folder, const char *name, const struct manifest_file *expected,
                                  struct error *error)
{
    char text[CHECKPOINT_PATH_BYTES];
    const struct path path = checkpoint_path(text, folder, "%s", name);
    uint8_t sha256[crypto_hash_sha256_BYTES];
    uint64_t bytes = 0;
    int fd = -1;
    enum status status = file_open(&fd, &bytes, path, error);
    if (status != STATUS_OK)
        return status;
    if (bytes != expected->bytes)
        status =
            error_set(error, STATUS_CORRUPT, "%s: %" PRIu64 " bytes, expected %" PRIu64 " by its manifest",
                      text, bytes, expected->bytes);
    else
        status = read_hash_file(fd, text, bytes, sha256, error);
    if (status == STATUS_OK && memcmp(sha256, expected->sha256, sizeof sha256) != 0)
        status = error_set(error, STATUS_CORRUPT, "%s: its SHA-256 differs from the manifest's", text);
    close(fd);
    return status;
}

/* A folder that is named like a checkpoint must hold the checkpoint of that number; other names are not
 * compared. */
static enum status read_check_number(const char *path, const struct manifest *manifest, struct error *error)
{
    char copy[CHECKPOINT_PATH_BYTES];
    uint64_t number;
    snprintf(copy, sizeof copy, "%s", path);
    if (!checkpoint_number(basename(copy), false, &number) || number == manifest->counters.update)
        return STATUS_OK;
    return error_set(error, STATUS_CORRUPT,
                     "%s: the manifest names update %" PRIu64 ", expected %" PRIu64 " from the folder's name",
                     path, manifest->counters.update, number);
}

static enum status read_check(struct path path, struct manifest *manifest, struct error *error)
{
    enum status status = manifest_read(manifest, path, error);
    if (status == STATUS_OK)
        status = read_check_number(path.text, manifest, error);
    for (int i = 0; i < CHECKPOINT_FILES_MAX && status == STATUS_OK; i++)
        if (manifest_has(manifest, i))
            status = checkpoint_check_file(path, checkpoint_file_names[i], &manifest->files[i], error);
    return status;
}

enum status checkpoint_check(struct path path, struct checkpoint_counters *counters, struct error *error)
{
    struct manifest manifest;
    const enum status status = read_check(path, &manifest, error);
    if (status == STATUS_OK)
        *counters = manifest.counters;
    return status;
}

enum status checkpoint_facts(struct path path, struct checkpoint_counters *counters,
                             struct checkpoint_text *text, struct error *error)
{
    struct manifest manifest;
    enum status status = manifest_read(&manifest, path, error);
    if (status != STATUS_OK)
        return status;
    *counters = manifest.counters;
    if (text != NULL)
        *text = manifest.text;
    return STATUS_OK;
}

/* ---- the newest ---- */

/* Whether another checkpoint may be taken in place of one that failed so. */
static bool read_is_damage(enum status status)
{
    return status == STATUS_CORRUPT || status == STATUS_NOT_FOUND || status == STATUS_IO;
}

uint64_t checkpoint_latest(struct path run)
{
    struct checkpoint_list list;
    struct error why;
    const bool is_listed = checkpoint_list(&list, run, false, &why) == STATUS_OK;
    const uint64_t latest = is_listed && list.count > 0 ? list.numbers[list.count - 1] : 0;
    free(list.numbers);
    return latest;
}

enum status checkpoint_newest(struct path run, const struct checkpoint_judge *judge,
                              char path[CHECKPOINT_PATH_BYTES], struct checkpoint_counters *counters,
                              struct run_place *place, struct error *error)
{
    struct checkpoint_list list;
    struct manifest manifest;
    struct error why = {0};
    enum status status = checkpoint_list(&list, run, false, error), found = STATUS_NOT_FOUND;
    for (size_t i = list.count; status == STATUS_OK && read_is_damage(found) && i-- > 0;) {
        found = read_check(checkpoint_folder(path, run, list.numbers[i], false), &manifest, &why);
        if (found == STATUS_OK)
            found = judge->fits(judge->context, &manifest.place, &why);
        if (read_is_damage(found) && judge->skipped != NULL)
            judge->skipped(judge->context, path, why.text);
    }
    free(list.numbers);
    if (status != STATUS_OK)
        return status;
    if (found == STATUS_OK) {
        *counters = manifest.counters;
        *place = manifest.place;
        return STATUS_OK;
    }
    if (!read_is_damage(found))
        return error_set(error, found, "%s", why.text);
    return error_set(error, STATUS_NOT_FOUND, "%s/checkpoints: no sound checkpoint is there", run.text);
}
