/* Makes the folder of sockets, and names and removes sockets. Supervisor process; its only thread. */
#include "daemon/process/socket_folder.h"

#include "daemon/watch/status_socket.h"
#include "worker/roster.h"

#include <errno.h>
#include <grp.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

enum { SOCKET_PATH_BYTES = sizeof((struct sockaddr_un *)0)->sun_path };

static enum status choose_folder(char folder[SOCKET_PATH_BYTES], struct error *error)
{
    const char *runtime = getenv("RUNTIME_DIRECTORY"), *session = getenv("XDG_RUNTIME_DIR");
    struct stat info; /* after su, the session's folder may be gone */
    int length;
    if (runtime != NULL && runtime[0] == '/')
        length = snprintf(folder, SOCKET_PATH_BYTES, "%.*s", (int)strcspn(runtime, ":"), runtime);
    else if (session != NULL && session[0] == '/' && stat(session, &info) == 0 && S_ISDIR(info.st_mode))
        length = snprintf(folder, SOCKET_PATH_BYTES, "%s/coalesced", session);
    else
        length = snprintf(folder, SOCKET_PATH_BYTES, "/tmp/coalesced-%u", geteuid());
    if (length < 0 || length >= SOCKET_PATH_BYTES)
        return error_set(error, STATUS_INVALID,
                         "the socket folder's path is too long: expected fewer than %d bytes",
                         SOCKET_PATH_BYTES);
    return STATUS_OK;
}

/* Nobody else may write there: another user could bind a socket in place of a worker's. The group coalesced
 * may read, to find the status socket. */
static enum status make_private_folder(const char *path, struct error *error)
{
    struct stat info;
    if (mkdir(path, 0700) != 0 && errno != EEXIST) {
        error_set_errno(error, errno, "cannot make the socket folder %s", path);
        return error_of_output(error);
    }
    if (lstat(path, &info) != 0)
        return error_set_errno(error, errno, "cannot look at the socket folder %s", path);
    const struct group *readers = (info.st_mode & 070) != 0 ? getgrnam("coalesced") : NULL;
    const bool is_shared = readers != NULL && readers->gr_gid == info.st_gid;
    if (!S_ISDIR(info.st_mode) || info.st_uid != geteuid() || (info.st_mode & (is_shared ? 027 : 077)) != 0)
        return error_set(
            error, STATUS_PERMISSION,
            "the socket folder %s: expected a directory of user %u with mode 0700, or 0750 if its "
            "group is coalesced",
            path, geteuid());
    if ((info.st_mode & 070) != 0) /* the workers' sockets are not for the group, whatever the mask was */
        umask(umask(0) | 077);
    return STATUS_OK;
}

/* Writes the address of the run; all its sockets' paths fit. */
static enum status name_sockets(char address[CONTROL_ADDRESS_BYTES], const char *folder, const char *identity,
                                unsigned listeners, struct error *error)
{
    unsigned char hash[16];
    char hex[2 * sizeof hash + 1];
    if (sodium_init() < 0)
        return error_set(error, STATUS_INTERNAL, "libsodium does not start");
    crypto_generichash(hash, sizeof hash, (const unsigned char *)identity, strlen(identity), NULL, 0);
    sodium_bin2hex(hex, sizeof hex, hash, sizeof hash);
    snprintf(address, CONTROL_ADDRESS_BYTES, "ipc://%s/%s.sock", folder, hex);
    const int longest = snprintf(NULL, 0, "%s/%s.sock.%u", folder, hex, listeners - 1);
    if (longest >= SOCKET_PATH_BYTES)
        return error_set(error, STATUS_INVALID,
                         "a socket in %s would have a path of %d bytes: expected at most %d", folder, longest,
                         SOCKET_PATH_BYTES - 1);
    return STATUS_OK;
}

/* A socket of this name is the run's own or an earlier run's, because the caller holds the run's lock.
 * Another file of this name is an error and stays. */
static enum status remove_socket(const char *address, unsigned worker, struct error *error)
{
    char path[CONTROL_ADDRESS_BYTES];
    snprintf(path, sizeof path, "%s.%u", address + strlen("ipc://"), worker);
    return status_socket_clear(path, error);
}

enum status socket_folder_open(char address[CONTROL_ADDRESS_BYTES], const char *identity, unsigned listeners,
                               struct error *error)
{
    char folder[SOCKET_PATH_BYTES], chosen[CONTROL_ADDRESS_BYTES];
    enum status status = choose_folder(folder, error);
    if (status == STATUS_OK)
        status = make_private_folder(folder, error);
    if (status == STATUS_OK)
        status = name_sockets(chosen, folder, identity, listeners, error);
    /* An earlier run may have had more listeners than this one. */
    for (unsigned worker = 0; worker < ROSTER_LISTENERS_MAX && status == STATUS_OK; worker++)
        status = remove_socket(chosen, worker, error);
    if (status == STATUS_OK)
        memcpy(address, chosen, sizeof chosen);
    return status;
}

void socket_folder_find_runs(glob_t *found)
{
    char own[SOCKET_PATH_BYTES], pattern[SOCKET_PATH_BYTES + 32] = "";
    const char *const patterns[] = {pattern, "/run/coalesced/*.sock.status", "/run/coalesced/*/*.sock.status",
                                    "/run/user/*/coalesced/*.sock.status", "/tmp/coalesced-*/*.sock.status"};
    *found = (glob_t){0};
    if (choose_folder(own, NULL) == STATUS_OK)
        snprintf(pattern, sizeof pattern, "%s/*.sock.status", own);
    for (size_t i = 0; i < sizeof patterns / sizeof patterns[0]; i++)
        glob(patterns[i], GLOB_APPEND, NULL, found);
}

void socket_folder_clear(const char *address)
{
    for (unsigned worker = 0; worker < ROSTER_LISTENERS_MAX; worker++)
        remove_socket(address, worker, NULL);
}
