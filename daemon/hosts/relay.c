/* Starts the link, and sends and receives messages through it. Supervisor process; its only thread; no lock.
 */
#include "daemon/hosts/relay.h"

#include "daemon/process/spawn.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sodium.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
    OPEN_US = 10000000,
    STUCK_US = 2000000,
    CLOSE_US = 2000000,
    REOPEN_US = 500000,
};

static struct control_message packet; /* too large for a stack; one thread */

/* ---- the link's life ---- */

/* A hash of this program's file: messages between supervisors are plain structs of one build. */
static uint64_t program_hash(void)
{
    static uint64_t build;
    uint8_t hash[crypto_generichash_BYTES_MIN], block[16384];
    crypto_generichash_state state;
    ssize_t got = 0;
    if (build != 0)
        return build;
    const int fd = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    crypto_generichash_init(&state, NULL, 0, sizeof hash);
    while (fd >= 0 && (got = read(fd, block, sizeof block)) > 0)
        crypto_generichash_update(&state, block, (size_t)got);
    if (fd >= 0)
        close(fd);
    crypto_generichash_final(&state, hash, sizeof hash);
    memcpy(&build, hash, sizeof build);
    return build;
}

/* Waits for BOUND. */
static enum status await_bound(struct relay *relay, uint16_t *port, struct error *error)
{
    const struct monotime until = monotime_add_us(monotime_now(), OPEN_US);
    for (;;) {
        struct pollfd line = {.fd = relay->fd, .events = POLLIN};
        const struct monotime now = monotime_now();
        if (!monotime_before(now, until))
            return error_set(error, STATUS_TIMEOUT, "the link does not start: no answer in 10 s");
        poll(&line, 1, monotime_poll_ms(now, until));
        const enum status status = control_receive(relay->fd, false, &packet);
        if (status == STATUS_AGAIN)
            continue;
        if (status == STATUS_OK && packet.kind == CONTROL_FAILED)
            return error_set(error, packet.body.failed.status, "%.300s", packet.body.failed.text);
        if (status != STATUS_OK || packet.kind != CONTROL_BOUND ||
            packet.body_bytes < sizeof packet.body.bound)
            return error_set(error, STATUS_INTERNAL, "the link does not start");
        if (port != NULL)
            *port = packet.body.bound.far_port;
        return STATUS_OK;
    }
}

enum status relay_open(struct relay *relay, const struct control_link *order, uint16_t *port,
                       struct error *error)
{
    static const struct spawn_segments none;
    struct spawn_setting setting = {
        .run_fd = open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC), .segments = &none, .call_fd = -1};
    *relay = (struct relay){.fd = -1, .order = *order, .broken = true};
    relay->order.build = program_hash();
    relay->may_open = monotime_add_us(monotime_now(), REOPEN_US);
    enum status status = spawn(&relay->pid, &relay->fd, 0, order->keys.host, &setting, error);
    if (setting.run_fd >= 0)
        close(setting.run_fd);
    if (status != STATUS_OK)
        return status;
    control_send(relay->fd, CONTROL_LINK, &relay->order, sizeof relay->order);
    status = await_bound(relay, port, error);
    relay->broken = status != STATUS_OK;
    if (status != STATUS_OK)
        relay_close(relay, true);
    return status;
}

void relay_close(struct relay *relay, bool at_once)
{
    const struct monotime until = monotime_add_us(monotime_now(), at_once ? 0 : CLOSE_US);
    if (relay->pid == 0)
        return;
    if (!at_once)
        control_send(relay->fd, CONTROL_EXIT, NULL, 0);
    bool has_ended = false;
    while (!at_once && !has_ended && monotime_before(monotime_now(), until)) {
        has_ended = waitpid(relay->pid, NULL, WNOHANG) != 0;
        if (!has_ended)
            poll(NULL, 0, 5);
    }
    if (!has_ended) {
        kill(relay->pid, SIGKILL);
        waitpid(relay->pid, NULL, 0);
    }
    close(relay->fd);
    *relay = (struct relay){.fd = -1, .order = relay->order, .broken = true, .may_open = relay->may_open};
}

enum status relay_reopen(struct relay *relay, struct error *error)
{
    relay_close(relay, true);
    return relay_open(relay, &relay->order, NULL, error);
}

/* ---- messages ---- */

int relay_fd(const struct relay *relay)
{
    return relay->pid != 0 && !relay->broken ? relay->fd : -1;
}

/* Sends one message to the link. Waits for room, at most STUCK_US. */
static void send_packet(struct relay *relay, enum control_kind kind, const void *body, size_t bytes)
{
    const struct monotime until = monotime_add_us(monotime_now(), STUCK_US);
    enum status status = STATUS_PEER_DIED;
    while (!relay->broken && relay->pid != 0 &&
           (status = control_send(relay->fd, kind, body, bytes)) == STATUS_BUSY &&
           monotime_before(monotime_now(), until)) {
        struct pollfd line = {.fd = relay->fd, .events = POLLOUT};
        poll(&line, 1, monotime_poll_ms(monotime_now(), until));
    }
    relay->broken = relay->broken || status != STATUS_OK;
}

void relay_admit(struct relay *relay, const struct host_keys *keys)
{
    relay->order.keys = *keys;
    send_packet(relay, CONTROL_LINK, &relay->order, sizeof relay->order);
}

void relay_send(struct relay *relay, uint16_t host, const struct control_start *start, enum control_kind kind,
                const void *body, size_t body_bytes)
{
    const struct control_relay head = {.host = host,
                                       .worker = start != NULL ? start->worker : CONTROL_NO_WORKER,
                                       .kind = kind,
                                       .incarnation = start != NULL ? start->incarnation : 0,
                                       .generation = start != NULL ? start->generation : 0};
    if (body_bytes > sizeof packet.body - sizeof head)
        return;
    memcpy(packet.body.bytes, &head, sizeof head);
    if (body_bytes > 0)
        memcpy(packet.body.bytes + sizeof head, body, body_bytes);
    send_packet(relay, CONTROL_RELAY, packet.body.bytes, sizeof head + body_bytes);
}

enum status relay_receive(struct relay *relay, struct control_relay *head, struct control_message *message)
{
    if (relay_fd(relay) < 0)
        return STATUS_PEER_DIED;
    const enum status status = control_receive(relay->fd, false, &packet);
    relay->broken = status == STATUS_PEER_DIED;
    if (status != STATUS_OK)
        return status;
    if (packet.kind != CONTROL_RELAY)
        return STATUS_INVALID;
    *head = packet.body.relay;
    message->kind = head->kind;
    message->body_bytes = packet.body_bytes - sizeof *head;
    memcpy(message->body.bytes, packet.body.bytes + sizeof *head, message->body_bytes);
    return control_check(message);
}
