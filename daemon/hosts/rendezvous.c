/* The rendezvous of hosts: reads flags, key files and the environment, and asks PMI or the run
 * directory. Supervisor process, before it forks workers; its only thread. */
#include "daemon/hosts/rendezvous.h"

#include "kernels/base/file.h"
#include "kernels/base/text.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <poll.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { HEX_BYTES = 2 * HOST_KEY_BYTES + 1, TEXT_BYTES = 2048, LOOK_MS = 50, KEY_PATH_BYTES = 4096 };

/* ---- key files ---- */

/* Makes a file, and syncs it. */
static enum status write_new(const char *path, const char *text, unsigned mode, struct error *error)
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
    char path[KEY_PATH_BYTES], hex[HEX_BYTES], text[HEX_BYTES + 1];
    sodium_bin2hex(hex, sizeof hex, secret, HOST_KEY_BYTES);
    snprintf(path, sizeof path, "%.4000s/host-%u.secret", folder, host);
    snprintf(text, sizeof text, "%s\n", hex);
    const enum status status = write_new(path, text, 0600, error);
    sodium_memzero(hex, sizeof hex);
    sodium_memzero(text, sizeof text);
    return status;
}

enum status key_files_make(const char *folder, uint16_t count, struct error *error)
{
    char path[KEY_PATH_BYTES], text[HOSTS_MAX * (HEX_BYTES + 8)];
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
        status = write_new(path, text, 0644, error);
    while (status != STATUS_OK && made > 0) { /* so that the next attempt can make them */
        snprintf(path, sizeof path, "%.4000s/host-%u.secret", folder, --made);
        unlink(path);
    }
    return status;
}

/* Reads a key's digits, up to the end of the text or line. False: they are no key. */
static bool read_key(uint8_t key[HOST_KEY_BYTES], const char *hex)
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
                  keys->count < HOSTS_MAX && read_key(keys->public_of_host[host], line + digits);
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
    if (!is_read || !read_key(keys->secret, line))
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
        char path[KEY_PATH_BYTES];
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

/* Reads the public keys, and host `host`'s secret key. */
static enum status read_keys(struct host_keys *keys, const char *folder, uint16_t host, struct error *error)
{
    char path[KEY_PATH_BYTES];
    *keys = (struct host_keys){.host = host};
    snprintf(path, sizeof path, "%.4000s/hosts", folder);
    enum status status = read_hosts(keys, path, error);
    if (status == STATUS_OK && host >= keys->count)
        status =
            error_set(error, STATUS_INVALID, "%.300s has the keys of %u hosts: expected host %u among them",
                      path, keys->count, host);
    snprintf(path, sizeof path, "%.4000s/host-%u.secret", folder, host);
    return status == STATUS_OK ? read_secret(keys, path, error) : status;
}

/* ---- addresses ---- */

/* The addresses of this host that others may reach: of all interfaces that are up but the loopback, or of the
 * one that `listen` names by its name or its address. */
struct addresses {
    unsigned count;
    char of[CONTROL_LEADERS_MAX][INET_ADDRSTRLEN];
};

static bool is_wanted(const struct ifaddrs *interface, const char *address, const char *listen)
{
    if ((interface->ifa_flags & IFF_UP) == 0)
        return false;
    if (listen != NULL)
        return strcmp(listen, interface->ifa_name) == 0 || strcmp(listen, address) == 0;
    return (interface->ifa_flags & IFF_LOOPBACK) == 0;
}

static enum status find_addresses(struct addresses *found, const char *listen, struct error *error)
{
    struct ifaddrs *list, *next;
    *found = (struct addresses){.count = 0};
    if (getifaddrs(&list) != 0)
        return error_set_errno(error, errno, "cannot list the network interfaces");
    for (next = list; next != NULL && found->count < CONTROL_LEADERS_MAX; next = next->ifa_next) {
        char *address = found->of[found->count];
        if (next->ifa_addr == NULL || next->ifa_addr->sa_family != AF_INET)
            continue;
        const struct sockaddr_in *in = (const struct sockaddr_in *)(const void *)next->ifa_addr;
        inet_ntop(AF_INET, &in->sin_addr, address, INET_ADDRSTRLEN);
        found->count += is_wanted(next, address, listen);
    }
    freeifaddrs(list);
    if (found->count > 0)
        return STATUS_OK;
    if (listen != NULL)
        return error_set(error, STATUS_INVALID,
                         "/listen: no network interface that is up has the name or the IPv4 address %s",
                         listen);
    return error_set(error, STATUS_UNAVAILABLE,
                     "this host has no IPv4 address but the loopback's: other hosts cannot reach it");
}

/* Where this host's listeners bind: one address where /listen says which, else all. */
static enum status choose_listen(struct rendezvous *r, const char *listen, struct error *error)
{
    struct addresses found;
    snprintf(r->listen, sizeof r->listen, "tcp://0.0.0.0");
    if (listen == NULL)
        return STATUS_OK;
    const enum status status = find_addresses(&found, listen, error);
    if (status == STATUS_OK)
        snprintf(r->listen, sizeof r->listen, "tcp://%s", found.of[0]);
    return status;
}

/* ---- flags ---- */

static enum status rendezvous_by_flags(struct rendezvous *r, const struct rendezvous_flags *flags,
                                       struct error *error)
{
    struct host_keys *keys = &r->link.keys;
    const char *colon = flags->leader != NULL ? strrchr(flags->leader, ':') : NULL;
    uint64_t port = 0;
    r->source = RENDEZVOUS_FLAGS;
    if (flags->keys == NULL)
        return error_set(
            error, STATUS_INVALID,
            "--node without --keys: hosts speak to each other only with keys (coalesced keygen)");
    if (flags->leader != NULL && flags->leader[0] == '[')
        return error_set(error, STATUS_INVALID, "--leader: expected a name or an IPv4 address, got %.100s",
                         flags->leader);
    if (colon == NULL || colon == flags->leader || !text_integer(colon + 1, UINT16_MAX, &port) || port == 0)
        return error_set(error, STATUS_INVALID, "--leader: expected HOST:PORT, got %.100s",
                         flags->leader != NULL ? flags->leader : "nothing");
    const enum status status = read_keys(keys, flags->keys, flags->host, error);
    if (status != STATUS_OK)
        return status;
    if (flags->count > keys->count)
        return error_set(error, STATUS_INVALID, "--node %u/%u: %.200s has the keys of %u hosts", flags->host,
                         flags->count, flags->keys, keys->count);
    r->hosts = flags->count;
    if (rendezvous_is_leader(r))
        snprintf(r->link.addresses[0], CONTROL_FAR_BYTES, "%.40s:%ju", r->listen, (uintmax_t)port);
    else if ((size_t)snprintf(r->link.addresses[0], CONTROL_FAR_BYTES, "tcp://%s", flags->leader) >=
             CONTROL_FAR_BYTES)
        return error_set(error, STATUS_INVALID, "--leader: expected at most %d characters",
                         CONTROL_FAR_BYTES - 7);
    return STATUS_OK;
}

/* ---- PMI ---- */

static enum status rendezvous_by_pmi(struct rendezvous *r, struct monotime deadline, struct error *error)
{
    struct host_keys *keys = &r->link.keys;
    char key[32], hex[HEX_BYTES];
    const enum status status = pmi_open(&r->pmi, deadline, error);
    if (status != STATUS_OK || r->pmi.size <= 1)
        return status;
    if (r->pmi.size > HOSTS_MAX)
        return error_set(error, STATUS_INVALID,
                         "%u tasks in this step: expected at most %d, one on each host", r->pmi.size,
                         HOSTS_MAX);
    r->source = RENDEZVOUS_PMI;
    r->hosts = (uint16_t)r->pmi.size;
    *keys = (struct host_keys){.host = (uint16_t)r->pmi.rank, .count = (uint16_t)r->pmi.size};
    host_keys_draw(keys->secret);
    host_keys_public(keys->public_of_host[keys->host], keys->secret);
    sodium_bin2hex(hex, sizeof hex, keys->public_of_host[keys->host], HOST_KEY_BYTES);
    snprintf(key, sizeof key, "coalesced-key-%u", keys->host);
    return pmi_put(&r->pmi, key, hex, deadline, error);
}

static enum status pmi_read_keys(struct rendezvous *r, struct monotime deadline, struct error *error)
{
    struct host_keys *keys = &r->link.keys;
    enum status status = STATUS_OK;
    for (unsigned i = 0; i < keys->count && status == STATUS_OK; i++) {
        char key[32], hex[HEX_BYTES];
        snprintf(key, sizeof key, "coalesced-key-%u", i);
        status = pmi_get(&r->pmi, key, hex, sizeof hex, deadline, error);
        if (status == STATUS_OK && !read_key(keys->public_of_host[i], hex))
            status = error_set(error, STATUS_IO, "PMI: task %u has put no key: %.100s", i, hex);
    }
    return status;
}

static enum status split_addresses(struct rendezvous *r, char *text, struct error *error)
{
    char *rest = NULL;
    unsigned count = 0;
    for (char *address = strtok_r(text, ",\n", &rest); address != NULL && count < CONTROL_LEADERS_MAX;
         address = strtok_r(NULL, ",\n", &rest))
        snprintf(r->link.addresses[count++], CONTROL_FAR_BYTES, "tcp://%.50s", address);
    return count > 0 ? STATUS_OK : error_set(error, STATUS_IO, "the leader has told no address");
}

/* ---- the run directory ---- */

/* Names this start of the job by Slurm's numbers, so that it differs from earlier starts. */
static void name_start(char name[128])
{
    static const char *const variables[] = {"SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT"};
    size_t length = 0;
    for (unsigned i = 0; i < 3; i++) {
        const char *value = getenv(variables[i]);
        length += (size_t)snprintf(name + length, 128 - length, "%s%.30s", i > 0 ? "." : "",
                                   value != NULL ? value : "0");
    }
}

static enum status write_hosts_file(struct rendezvous *r, const char *run, const char *addresses,
                                    struct error *error)
{
    char temporary[sizeof r->hosts_file], name[128], hex[HEX_BYTES], text[TEXT_BYTES + 512];
    sodium_bin2hex(hex, sizeof hex, r->key_seed, sizeof r->key_seed);
    name_start(name);
    snprintf(r->hosts_file, sizeof r->hosts_file, "%.4096s/hosts", run);
    snprintf(temporary, sizeof temporary, "%.4096s/hosts.tmp", run);
    snprintf(text, sizeof text, "%s\n%s\n%s\n", name, hex, addresses);
    unlink(temporary);
    const enum status status = write_new(temporary, text, 0600, error);
    sodium_memzero(hex, sizeof hex);
    sodium_memzero(text, sizeof text);
    if (status == STATUS_OK && rename(temporary, r->hosts_file) != 0)
        return error_set_errno(error, errno, "cannot write %.300s", r->hosts_file);
    return status;
}

/* Reads RUN/hosts. False: it is not there, or an earlier start's. */
static bool read_hosts_file(struct rendezvous *r, const char *path, char addresses[TEXT_BYTES])
{
    char name[128], line[160], hex[HEX_BYTES + 1];
    uint8_t shared[HOST_KEY_BYTES];
    struct stat info;
    name_start(name);
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return false;
    const bool is_private =
        fstat(fileno(file), &info) == 0 && info.st_uid == geteuid() && (info.st_mode & 077) == 0;
    const bool is_read = is_private && fgets(line, sizeof line, file) != NULL &&
                         fgets(hex, sizeof hex, file) != NULL && fgets(addresses, TEXT_BYTES, file) != NULL;
    fclose(file);
    if (!is_read || strncmp(line, name, strlen(name)) != 0 || line[strlen(name)] != '\n' ||
        !read_key(shared, hex))
        return false;
    host_keys_derive(&r->link.keys, shared, r->link.keys.host, r->link.keys.count);
    sodium_memzero(shared, sizeof shared);
    sodium_memzero(hex, sizeof hex);
    return true;
}

static enum status seek_hosts_file(struct rendezvous *r, const char *run, struct monotime deadline,
                                   struct error *error)
{
    char path[4200], addresses[TEXT_BYTES];
    snprintf(path, sizeof path, "%.4096s/hosts", run);
    while (!read_hosts_file(r, path, addresses)) {
        if (!monotime_before(monotime_now(), deadline))
            return error_set(error, STATUS_TIMEOUT,
                             "the leader has not written %.200s in time: expected a run directory that all "
                             "hosts share (or srun --mpi=pmi2)",
                             path);
        poll(NULL, 0, LOOK_MS);
    }
    return split_addresses(r, addresses, error);
}

/* ---- Slurm ---- */

/* SLURM_STEP_NUM_TASKS is srun's own: a batch script, which runs once, has only SLURM_NTASKS. */
static enum status rendezvous_by_slurm(struct rendezvous *r, struct error *error)
{
    struct host_keys *keys = &r->link.keys;
    uint64_t tasks = 1, task = 0;
    if (!text_integer(getenv("SLURM_STEP_NUM_TASKS"), UINT16_MAX, &tasks) || tasks <= 1)
        return STATUS_OK;
    if (tasks > HOSTS_MAX || !text_integer(getenv("SLURM_PROCID"), tasks - 1, &task))
        return error_set(error, STATUS_INVALID,
                         "task %ju of %ju of a Slurm step: expected at most %d tasks, one on each host",
                         (uintmax_t)task, (uintmax_t)tasks, HOSTS_MAX);
    r->source = RENDEZVOUS_FOLDER;
    r->hosts = (uint16_t)tasks;
    *keys = (struct host_keys){.host = (uint16_t)task, .count = r->hosts};
    if (task == HOST_LEADER) { /* its link needs the secret key when it binds */
        randombytes_buf(r->key_seed, sizeof r->key_seed);
        host_keys_derive(keys, r->key_seed, HOST_LEADER, r->hosts);
    }
    return STATUS_OK;
}

/* ---- the rendezvous ---- */

enum status rendezvous_find(struct rendezvous *r, const struct rendezvous_flags *flags, const char *listen,
                            struct monotime deadline, struct error *error)
{
    *r = (struct rendezvous){.source = RENDEZVOUS_ALONE, .pmi = {.fd = -1}};
    if (sodium_init() < 0)
        return error_set(error, STATUS_INTERNAL, "libsodium does not start");
    enum status status = choose_listen(r, listen, error);
    if (status != STATUS_OK)
        return status;
    if (flags->given)
        return rendezvous_by_flags(r, flags, error);
    status = pmi_is_there() ? rendezvous_by_pmi(r, deadline, error) : rendezvous_by_slurm(r, error);
    if (status == STATUS_OK && r->source == RENDEZVOUS_ALONE)
        rendezvous_close(r);
    if (status == STATUS_OK && r->source != RENDEZVOUS_ALONE && rendezvous_is_leader(r))
        snprintf(r->link.addresses[0], CONTROL_FAR_BYTES, "%.50s:*", r->listen);
    return status;
}

enum status rendezvous_publish(struct rendezvous *r, uint16_t port, const char *run, struct monotime deadline,
                               struct error *error)
{
    struct addresses found;
    char text[TEXT_BYTES] = "";
    size_t length = 0;
    const char *listen = strstr(r->listen, "0.0.0.0") != NULL ? NULL : r->listen + strlen("tcp://");
    if (r->source == RENDEZVOUS_FLAGS)
        return STATUS_OK;
    enum status status = find_addresses(&found, listen, error);
    if (status != STATUS_OK)
        return status;
    for (unsigned i = 0; i < found.count; i++) /* one word: "10.0.0.1:4711,10.0.0.2:4711" */
        length += (size_t)snprintf(text + length, sizeof text - length, "%s%s:%u", i > 0 ? "," : "",
                                   found.of[i], port);
    if (r->source == RENDEZVOUS_FOLDER)
        return write_hosts_file(r, run, text, error);
    status = pmi_put(&r->pmi, "coalesced-leader", text, deadline, error);
    if (status == STATUS_OK)
        status = pmi_barrier(&r->pmi, deadline, error);
    return status == STATUS_OK ? pmi_read_keys(r, deadline, error) : status;
}

enum status rendezvous_seek(struct rendezvous *r, const char *run, struct monotime deadline,
                            struct error *error)
{
    char text[TEXT_BYTES];
    if (r->source == RENDEZVOUS_FLAGS)
        return STATUS_OK;
    if (r->source == RENDEZVOUS_FOLDER)
        return seek_hosts_file(r, run, deadline, error);
    enum status status = pmi_barrier(&r->pmi, deadline, error);
    if (status == STATUS_OK)
        status = pmi_read_keys(r, deadline, error);
    if (status == STATUS_OK)
        status = pmi_get(&r->pmi, "coalesced-leader", text, sizeof text, deadline, error);
    return status == STATUS_OK ? split_addresses(r, text, error) : status;
}

void rendezvous_close(struct rendezvous *r)
{
    enum { GOODBYE_US = 1000000 };
    if (r->pmi.fd >= 0)
        pmi_close(&r->pmi, monotime_add_us(monotime_now(), GOODBYE_US), NULL);
    if (r->hosts_file[0] != '\0')
        file_remove_or_warn(r->hosts_file);
}
