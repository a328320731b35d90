/* Writes and reads key files. The command's process, or the supervisor before it forks; its only thread. */
#include "daemon/hosts/key_files.h"

#include "kernels/base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { HEX_BYTES = 2 * HOST_KEY_BYTES + 1, PATH_BYTES = 4096 };

/* ---- writing ---- */

enum status key_files_write(const char *path, const char *text, unsigned mode, struct error *error)
{
    const int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, mode);
    if (fd < 0 && errno == EEXIST)
        return error_set(error, STATUS_BUSY, "%s is there already: expected a folder without keys", path);
    if (fd < 0)
        return error_set_errno(error, errno, "cannot make %s", path);
    const bool written = file_write(fd, text, strlen(text)) && fsync(fd) == 0;
    const int errnum = errno;
    close(fd);
    return written ? STATUS_OK : error_set_errno(error, errnum, "cannot write %s", path);
}

static enum status write_secret(const char *folder, unsigned host, const uint8_t secret[HOST_KEY_BYTES],
                                struct error *error)
{
    char path[PATH_BYTES], hex[HEX_BYTES], text[HEX_BYTES + 1];
    sodium_bin2hex(hex, sizeof hex, secret, HOST_KEY_BYTES);
    snprintf(path, sizeof path, "%.4000s/host-%u.secret", folder, host);
    snprintf(text, sizeof text, "%s\n", hex);
    const enum status status = key_files_write(path, text, 0600, error);
    sodium_memzero(hex, sizeof hex);
    sodium_memzero(text, sizeof text);
    return status;
}

/* Takes half a set back: the next try finds no key. */
static void remove_secrets(const char *folder, unsigned count)
{
    char path[PATH_BYTES];
    for (unsigned i = 0; i < count; i++) {
        snprintf(path, sizeof path, "%.4000s/host-%u.secret", folder, i);
        unlink(path);
    }
}

enum status key_files_make(const char *folder, uint16_t count, struct error *error)
{
    char path[PATH_BYTES], text[HOSTS_MAX * (HEX_BYTES + 8)];
    size_t length = 0;
    if (sodium_init() < 0)
        return error_set(error, STATUS_INTERNAL, "libsodium does not start");
    if (mkdir(folder, 0700) != 0 && errno != EEXIST)
        return error_set_errno(error, errno, "cannot make the folder %s", folder);
    enum status status = STATUS_OK;
    unsigned made = 0;
    for (; made < count && status == STATUS_OK; made += status == STATUS_OK) {
        uint8_t secret[HOST_KEY_BYTES], public_key[HOST_KEY_BYTES];
        char hex[HEX_BYTES];
        host_keys_draw(secret);
        host_keys_public(public_key, secret);
        sodium_bin2hex(hex, sizeof hex, public_key, sizeof public_key);
        length += (size_t)snprintf(text + length, sizeof text - length, "%u %s\n", made, hex);
        status = write_secret(folder, made, secret, error);
        sodium_memzero(secret, sizeof secret);
    }
    snprintf(path, sizeof path, "%.4000s/hosts", folder);
    if (status == STATUS_OK)
        status = key_files_write(path, text, 0644, error);
    if (status != STATUS_OK)
        remove_secrets(folder, made);
    return status;
}

/* ---- reading ---- */

bool key_files_parse(uint8_t key[HOST_KEY_BYTES], const char *hex)
{
    size_t bytes;
    const char *end;
    return sodium_hex2bin(key, HOST_KEY_BYTES, hex, strcspn(hex, "\n"), NULL, &bytes, &end) == 0 &&
           bytes == HOST_KEY_BYTES && (*end == '\0' || *end == '\n');
}

static enum status read_hosts(struct host_keys *keys, const char *path, struct error *error)
{
    char line[256];
    bool is_good = true;
    unsigned number = 0;
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return error_set_errno(error, errno, "cannot read %.300s", path);
    while (is_good && fgets(line, sizeof line, file) != NULL) {
        unsigned host = 0;
        int digits = 0;
        number++;
        if (line[0] == '#' || line[0] == '\n')
            continue;
        is_good = sscanf(line, "%u %n", &host, &digits) == 1 && digits > 0 && host == keys->count &&
                  keys->count < HOSTS_MAX && key_files_parse(keys->public_of_host[host], line + digits);
        keys->count += is_good;
    }
    fclose(file);
    if (!is_good)
        return error_set(error, STATUS_INVALID,
                         "%.300s:%u: expected \"%u KEY\", KEY in 64 hexadecimal digits, at most %d hosts",
                         path, number, keys->count, HOSTS_MAX);
    return keys->count > 0
               ? STATUS_OK
               : error_set(error, STATUS_INVALID, "%.300s: expected the hosts' public keys", path);
}

static enum status read_secret(struct host_keys *keys, const char *path, struct error *error)
{
    char line[256] = "";
    uint8_t public_key[HOST_KEY_BYTES];
    struct stat info = {0};
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return error_set_errno(error, errno, "cannot read %.300s", path);
    const bool is_read = fstat(fileno(file), &info) == 0 && fgets(line, sizeof line, file) != NULL;
    fclose(file);
    if ((info.st_mode & 077) != 0)
        return error_set(error, STATUS_INVALID,
                         "%.300s: other users may read this secret key (mode %04o): expected mode 0600", path,
                         info.st_mode & 07777);
    if (!is_read || !key_files_parse(keys->secret, line))
        return error_set(error, STATUS_INVALID, "%.300s: expected a secret key in 64 hexadecimal digits",
                         path);
    host_keys_public(public_key, keys->secret);
    if (memcmp(public_key, keys->public_of_host[keys->host], sizeof public_key) != 0)
        return error_set(error, STATUS_INVALID,
                         "%.300s: this secret key does not belong to host %u's public key in the same folder",
                         path, keys->host);
    return STATUS_OK;
}

enum status key_files_own(uint16_t *host, const char *folder, struct error *error)
{
    unsigned found = 0;
    for (unsigned i = 0; i < HOSTS_MAX; i++) {
        char path[PATH_BYTES];
        snprintf(path, sizeof path, "%.4000s/host-%u.secret", folder, i);
        if (access(path, F_OK) != 0)
            continue;
        *host = (uint16_t)i;
        found++;
    }
    if (found == 1)
        return STATUS_OK;
    return error_set(
        error, STATUS_INVALID,
        "%.300s has %u files host-N.secret: expected one, or --node I/N, which says whose key is "
        "this host's",
        folder, found);
}

enum status key_files_read(struct host_keys *keys, const char *folder, uint16_t host, struct error *error)
{
    char path[PATH_BYTES];
    *keys = (struct host_keys){.host = host};
    if (sodium_init() < 0)
        return error_set(error, STATUS_INTERNAL, "libsodium does not start");
    snprintf(path, sizeof path, "%.4000s/hosts", folder);
    enum status status = read_hosts(keys, path, error);
    if (status == STATUS_OK && host >= keys->count)
        status =
            error_set(error, STATUS_INVALID, "%.300s has the keys of %u hosts: expected host %u among them",
                      path, keys->count, host);
    snprintf(path, sizeof path, "%.4000s/host-%u.secret", folder, host);
    return status == STATUS_OK ? read_secret(keys, path, error) : status;
}
