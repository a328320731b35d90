/* Asks the launcher's PMI-1 server. Supervisor process; its only thread.
 *
 * Requests and answers strictly alternate. An exchange that ends early leaves its answer under way, and the
 * next request would take that answer for its own. So an exchange that ends early closes the connection. */
#include "daemon/hosts/pmi.h"

#include "kernels/base/text.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static void pmi_disconnect(struct pmi *pmi)
{
    if (pmi->fd >= 0)
        close(pmi->fd);
    pmi->fd = -1;
}

/* ---- one request and its answer ---- */

/* After a send or recv that failed: waits for the socket when that is all it takes, else reports errno. */
static enum status pmi_wait(const struct pmi *pmi, short events, const char *answer, struct monotime deadline,
                            struct error *error)
{
    struct pollfd entry = {.fd = pmi->fd, .events = events};
    while (errno == EAGAIN || errno == EINTR) {
        const struct monotime now = monotime_now();
        const int ready = poll(&entry, 1, monotime_poll_ms(now, deadline));
        if (ready > 0)
            return STATUS_OK;
        if (ready == 0 && !monotime_before(now, deadline))
            return error_set(error, STATUS_TIMEOUT,
                             "the PMI server has not answered in time: expected cmd=%s", answer);
        if (ready == 0) /* monotime_poll_ms ends after an hour */
            errno = EAGAIN;
    }
    return error_set_errno(error, errno, "the connection to the PMI server failed: expected cmd=%s", answer);
}

static enum status pmi_send_request(struct pmi *pmi, const char *answer, struct monotime deadline,
                                    struct error *error)
{
    const char *at = pmi->line;
    while (*at != '\0') {
        const ssize_t sent = send(pmi->fd, at, strlen(at), MSG_DONTWAIT | MSG_NOSIGNAL);
        if (sent >= 0) {
            at += sent;
            continue;
        }
        const enum status status = pmi_wait(pmi, POLLOUT, answer, deadline, error);
        if (status != STATUS_OK)
            return status;
    }
    return STATUS_OK;
}

/* Reports an answer of `length` bytes that is not what PMI-1 prescribes. */
static enum status pmi_reject_answer(struct pmi *pmi, size_t length, const char *expected,
                                     struct error *error)
{
    char shown[256];
    text_show(shown, sizeof shown, pmi->line, length, 100);
    pmi_disconnect(pmi);
    return error_set(error, STATUS_IO, "the PMI server answered \"%s\": expected %s", shown, expected);
}

/* Reads one line of printable ASCII into pmi->line, where a zero replaces the newline. */
static enum status pmi_receive_answer(struct pmi *pmi, const char *answer, struct monotime deadline,
                                      struct error *error)
{
    size_t length = 0, printable = 0;
    do {
        const ssize_t got = recv(pmi->fd, pmi->line + length, sizeof pmi->line - length, MSG_DONTWAIT);
        if (got == 0)
            return error_set(error, STATUS_IO, "the PMI server closed the connection: expected cmd=%s",
                             answer);
        if (got < 0) {
            const enum status status = pmi_wait(pmi, POLLIN, answer, deadline, error);
            if (status != STATUS_OK)
                return status;
            continue;
        }
        length += (size_t)got;
        while (printable < length && pmi->line[printable] >= ' ' && pmi->line[printable] <= '~')
            printable++;
    } while (printable == length && length < sizeof pmi->line);
    if (printable + 1 != length || pmi->line[printable] != '\n') {
        char expected[96];
        snprintf(expected, sizeof expected, "cmd=%s in one line of printable ASCII, at most %d bytes", answer,
                 PMI_ANSWER_BYTES_MAX);
        return pmi_reject_answer(pmi, length, expected, error);
    }
    pmi->line[printable] = '\0';
    return STATUS_OK;
}

/* The text of the answer's field "NAME=TEXT"; fields are separated by spaces. NULL: there is none. */
static const char *pmi_find_field(const struct pmi *pmi, const char *name, size_t *length)
{
    const size_t name_length = strlen(name);
    for (const char *at = pmi->line; *at != '\0'; at += strspn(at, " ")) {
        const size_t field_length = strcspn(at, " ");
        if (field_length > name_length && memcmp(at, name, name_length) == 0 && at[name_length] == '=') {
            *length = field_length - name_length - 1;
            return at + name_length + 1;
        }
        at += field_length;
    }
    return NULL;
}

static bool pmi_field_is(const struct pmi *pmi, const char *name, const char *expected)
{
    size_t length;
    const char *text = pmi_find_field(pmi, name, &length);
    return text != NULL && length == strlen(expected) && memcmp(text, expected, length) == 0;
}

/* Copies a field's text with a zero. False: it is absent, empty or too long. */
static bool pmi_copy_field(const struct pmi *pmi, const char *name, char *text, size_t text_bytes)
{
    size_t length;
    const char *found = pmi_find_field(pmi, name, &length);
    if (found == NULL || length == 0 || length >= text_bytes)
        return false;
    memcpy(text, found, length);
    text[length] = '\0';
    return true;
}

static bool pmi_copy_size(const struct pmi *pmi, const char *name, size_t *size)
{
    char text[16];
    uint64_t number;
    if (!pmi_copy_field(pmi, name, text, sizeof text) || !text_integer(text, INT_MAX, &number))
        return false;
    *size = number;
    return true;
}

/* Judges a line that has come: "cmd=ANSWER rc=0 …", where some servers leave out rc=0. */
static enum status pmi_check_answer(struct pmi *pmi, const char *answer, struct error *error)
{
    size_t length;
    char expected[64];
    snprintf(expected, sizeof expected, "cmd=%s", answer);
    if (!pmi_field_is(pmi, "cmd", answer))
        return pmi_reject_answer(pmi, strlen(pmi->line), expected, error);
    if (pmi_find_field(pmi, "rc", &length) == NULL || pmi_field_is(pmi, "rc", "0"))
        return STATUS_OK;
    char shown[256];
    text_show(shown, sizeof shown, pmi->line, strlen(pmi->line), 100);
    return error_set(error, STATUS_UNAVAILABLE, "the PMI server refused with \"%s\": expected rc=0", shown);
}

/* Sends the line that `request` and its arguments make, and reads "cmd=ANSWER …" into pmi->line. */
__attribute__((format(printf, 5, 6))) static enum status pmi_exchange(struct pmi *pmi, const char *answer,
                                                                      struct monotime deadline,
                                                                      struct error *error,
                                                                      const char *request, ...)
{
    va_list list;
    assert(pmi->fd >= 0);
    va_start(list, request);
    const int length = vsnprintf(pmi->line, sizeof pmi->line, request, list);
    va_end(list);
    if (length > PMI_REQUEST_BYTES_MAX)
        return error_set(error, STATUS_INVALID,
                         "the PMI request has %d bytes: expected at most %d; shorten the value", length,
                         PMI_REQUEST_BYTES_MAX);
    enum status status = pmi_send_request(pmi, answer, deadline, error);
    if (status == STATUS_OK)
        status = pmi_receive_answer(pmi, answer, deadline, error);
    if (status != STATUS_OK) {
        pmi_disconnect(pmi);
        return status;
    }
    return pmi_check_answer(pmi, answer, error);
}

/* ---- open and close ---- */

bool pmi_is_there(void)
{
    uint64_t fd;
    return text_integer(getenv("PMI_FD"), INT_MAX, &fd);
}

static enum status pmi_read_variable(const char *name, uint64_t min, uint64_t max, uint64_t *value,
                                     struct error *error)
{
    const char *text = getenv(name);
    if (text == NULL)
        return error_set(
            error, STATUS_UNAVAILABLE,
            "%s is not set: expected the launcher's number; start the tasks with srun --mpi=pmi2 or mpiexec",
            name);
    if (!text_integer(text, max, value) || *value < min)
        return error_set(error, STATUS_UNAVAILABLE, "%s=%s: expected a number from %ju to %ju", name, text,
                         (uintmax_t)min, (uintmax_t)max);
    return STATUS_OK;
}

static enum status pmi_read_environment(struct pmi *pmi, struct error *error)
{
    uint64_t fd = 0, rank = 0, size = 1;
    struct sockaddr_storage peer;
    socklen_t peer_bytes = sizeof peer;
    enum status status = pmi_read_variable("PMI_FD", 0, INT_MAX, &fd, error);
    if (status == STATUS_OK)
        status = pmi_read_variable("PMI_SIZE", 1, PMI_TASKS_MAX, &size, error);
    if (status == STATUS_OK)
        status = pmi_read_variable("PMI_RANK", 0, size - 1, &rank, error);
    /* A job script may inherit the variables of the step that submitted it, but not the socket. Its PMI_FD
     * may be the number of any open file. */
    if (status == STATUS_OK && (getpeername((int)fd, (struct sockaddr *)&peer, &peer_bytes) != 0 ||
                                fcntl((int)fd, F_SETFD, FD_CLOEXEC) != 0))
        status =
            error_set(error, STATUS_UNAVAILABLE,
                      "PMI_FD=%d is no connected socket: expected the PMI server's; start the tasks with "
                      "srun --mpi=pmi2 or mpiexec, or unset PMI_FD",
                      (int)fd);
    pmi->fd = status == STATUS_OK ? (int)fd : -1;
    pmi->rank = (unsigned)rank;
    pmi->size = (unsigned)size;
    return status;
}

static enum status pmi_greet(struct pmi *pmi, struct monotime deadline, struct error *error)
{
    enum status status =
        pmi_exchange(pmi, "response_to_init", deadline, error, "cmd=init pmi_version=1 pmi_subversion=1\n");
    if (status == STATUS_OK && !pmi_field_is(pmi, "pmi_version", "1"))
        return pmi_reject_answer(pmi, strlen(pmi->line), "pmi_version=1", error);
    if (status == STATUS_OK)
        status = pmi_exchange(pmi, "maxes", deadline, error, "cmd=get_maxes\n");
    if (status == STATUS_OK && !(pmi_copy_size(pmi, "keylen_max", &pmi->key_bytes) &&
                                 pmi_copy_size(pmi, "vallen_max", &pmi->value_bytes)))
        return pmi_reject_answer(pmi, strlen(pmi->line), "numbers as keylen_max and vallen_max", error);
    if (status == STATUS_OK)
        status = pmi_exchange(pmi, "my_kvsname", deadline, error, "cmd=get_my_kvsname\n");
    if (status == STATUS_OK && !pmi_copy_field(pmi, "kvsname", pmi->space, sizeof pmi->space))
        return pmi_reject_answer(pmi, strlen(pmi->line), "kvsname of 1 to 255 bytes", error);
    return status;
}

enum status pmi_open(struct pmi *pmi, struct monotime deadline, struct error *error)
{
    *pmi = (struct pmi){.fd = -1};
    enum status status = pmi_read_environment(pmi, error);
    unsetenv("PMI_FD");
    unsetenv("PMI_RANK");
    unsetenv("PMI_SIZE");
    unsetenv("PMI_JOBID"); /* Slurm's */
    if (status == STATUS_OK)
        status = pmi_greet(pmi, deadline, error);
    if (status != STATUS_OK)
        pmi_disconnect(pmi);
    return status;
}

enum status pmi_close(struct pmi *pmi, struct monotime deadline, struct error *error)
{
    if (pmi->fd < 0)
        return STATUS_OK;
    const enum status status = pmi_exchange(pmi, "finalize_ack", deadline, error, "cmd=finalize\n");
    pmi_disconnect(pmi);
    return status;
}

/* ---- keys and values ---- */

/* No server reports a text that is too long: MPICH's cuts a value and loses a key. */
enum status pmi_put(struct pmi *pmi, const char *key, const char *value, struct monotime deadline,
                    struct error *error)
{
    if (strlen(key) >= pmi->key_bytes || strlen(value) >= pmi->value_bytes)
        return error_set(
            error, STATUS_INVALID,
            "the PMI key %s and its value have %zu and %zu bytes: expected fewer than %zu and %zu", key,
            strlen(key), strlen(value), pmi->key_bytes, pmi->value_bytes);
    return pmi_exchange(pmi, "put_result", deadline, error, "cmd=put kvsname=%s key=%s value=%s\n",
                        pmi->space, key, value);
}

enum status pmi_barrier(struct pmi *pmi, struct monotime deadline, struct error *error)
{
    const enum status status = pmi_exchange(pmi, "barrier_out", deadline, error, "cmd=barrier_in\n");
    if (status == STATUS_TIMEOUT)
        return error_set(error, status, "the PMI barrier has not ended in time: expected all %u tasks there",
                         pmi->size);
    return status;
}

/* Servers refuse a get for one reason: nobody has put the key. Slurm's says so with rc=1, MPICH's with rc=-1.
 */
enum status pmi_get(struct pmi *pmi, const char *key, char *value, size_t value_bytes,
                    struct monotime deadline, struct error *error)
{
    const enum status status =
        pmi_exchange(pmi, "get_result", deadline, error, "cmd=get kvsname=%s key=%s\n", pmi->space, key);
    if (status == STATUS_UNAVAILABLE)
        return error_set(error, STATUS_NOT_FOUND, "no task has put the PMI key %s", key);
    if (status == STATUS_OK && !pmi_copy_field(pmi, "value", value, value_bytes)) {
        char expected[64];
        snprintf(expected, sizeof expected, "a value of 1 to %zu bytes", value_bytes - 1);
        return pmi_reject_answer(pmi, strlen(pmi->line), expected, error);
    }
    return status;
}
