/* A link process; its only thread of ours, which owns the sockets; no lock. */
#include "worker/link.h"

#include "kernels/base/log.h"
#include "worker/control.h"
#include "worker/net/endpoint.h"

#include <poll.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sysexits.h>

enum {
    LINK_VERSION = 1,
    LINGER_MS = 1000,
    FULL_US = 300000, /* how long a queue may be full */
    TRY_US = 2000,
};

/* In front of each message between links. */
struct link_header {
    char magic[4];
    uint32_t version;
};

_Static_assert(sizeof(struct link_header) == 8, "the links' frame");

static const struct link_header link_header = {.magic = {'C', 'O', 'L', 'K'}, .version = LINK_VERSION};

struct link {
    struct control_link order;
    struct endpoint
        *endpoints[CONTROL_LEADERS_MAX]; /* the bound one, or one for each address of the leader */
    unsigned count;
    bool chosen;     /* another host's: one endpoint is left, the one that has answered */
    bool complained; /* that the leader does not let this host in */
    /* The leader's: */
    uint32_t route[HOSTS_MAX]; /* each host's connection; 0: none */
    uint32_t asker[HOSTS_MAX]; /* the connection of each host's newest JOIN, which waits for an answer */
    uint64_t attempt[HOSTS_MAX];
    struct strangers strangers; /* the leader's: at its socket */
    uint64_t ignored;           /* messages that were none of a host's */
};

static struct control_message from_line; /* too large for a stack; one thread */
static struct control_relay *const relay = &from_line.body.relay;

static bool is_leader(const struct link *link)
{
    return link->order.keys.host == HOST_LEADER;
}

/* ---- the line ---- */

static _Noreturn void link_end(struct link *link, int code)
{
    for (unsigned i = 0; i < link->count; i++)
        endpoint_free(link->endpoints[i], LINGER_MS);
    exit(code);
}

/* Hands a message to the supervisor, which may be busy. */
static void link_report(struct link *link, enum control_kind kind, const void *body, size_t body_bytes)
{
    enum status status;
    while ((status = control_send(CONTROL_FD, kind, body, body_bytes)) == STATUS_BUSY) {
        struct pollfd line = {.fd = CONTROL_FD, .events = POLLOUT};
        poll(&line, 1, -1);
    }
    if (status != STATUS_OK)
        link_end(link, EX_UNAVAILABLE);
}

/* ---- to the other hosts ---- */

/* STATUS_AGAIN: the queue is full. */
static enum status send_once(struct endpoint *endpoint, uint32_t peer, size_t bytes)
{
    struct endpoint_message message;
    enum status status =
        endpoint_prepare(&message, peer, (const uint8_t *)&link_header, sizeof link_header, bytes);
    if (status != STATUS_OK)
        return status;
    memcpy(message.payload, &from_line.body, bytes);
    status = endpoint_send(endpoint, &message);
    if (status != STATUS_OK)
        endpoint_release(&message);
    return status;
}

static enum status send_patiently(struct endpoint *endpoint, uint32_t peer, size_t bytes)
{
    const struct monotime until = monotime_add_us(monotime_now(), FULL_US);
    enum status status;
    while ((status = send_once(endpoint, peer, bytes)) == STATUS_AGAIN &&
           monotime_before(monotime_now(), until))
        poll(NULL, 0, TRY_US / 1000);
    return status;
}

static void send_to_host(struct link *link, size_t bytes)
{
    const uint16_t host = relay->host;
    if (host >= HOSTS_MAX)
        return;
    if (relay->kind == CONTROL_ADMIT)
        link->route[host] = link->asker[host];
    const uint32_t peer = relay->kind == CONTROL_REFUSE ? link->asker[host] : link->route[host];
    if (peer == 0 || send_patiently(link->endpoints[0], peer, bytes) == STATUS_OK)
        return;
    log_warning("host %u takes no messages: its connection is given up", host);
    if (peer == link->route[host])
        link->route[host] = 0;
}

/* JOIN says by which address it goes. */
static void send_join(struct link *link, size_t bytes)
{
    struct control_join *join = (struct control_join *)(void *)(from_line.body.bytes + sizeof *relay);
    for (unsigned i = 0; i < link->count; i++) {
        snprintf(join->leader, sizeof join->leader, "%s", link->order.addresses[i]);
        send_once(link->endpoints[i], 0, bytes);
    }
}

static void send_to_leader(struct link *link, size_t bytes)
{
    if (relay->kind == CONTROL_JOIN && bytes >= sizeof *relay + sizeof(struct control_join))
        send_join(link, bytes);
    else if (link->chosen && send_patiently(link->endpoints[0], 0, bytes) != STATUS_OK)
        link_end(link, EX_UNAVAILABLE);
}

static void link_obey(struct link *link)
{
    const size_t bytes = from_line.body_bytes;
    if (from_line.kind == CONTROL_EXIT)
        link_end(link, 0);
    else if (from_line.kind == CONTROL_LINK && is_leader(link))
        endpoint_admit(link->endpoints[0], &from_line.body.link.keys);
    else if (from_line.kind == CONTROL_RELAY && is_leader(link))
        send_to_host(link, bytes);
    else if (from_line.kind == CONTROL_RELAY)
        send_to_leader(link, bytes);
}

static void link_read_line(struct link *link)
{
    enum status status;
    while ((status = control_receive(CONTROL_FD, false, &from_line)) == STATUS_OK)
        link_obey(link);
    if (status != STATUS_AGAIN)
        link_end(link, EX_UNAVAILABLE);
}

/* ---- from the other hosts ---- */

static bool is_ours(const struct endpoint_message *message)
{
    return message->header_bytes == sizeof link_header &&
           memcmp(message->header, &link_header, sizeof link_header) == 0 &&
           message->payload_bytes >= sizeof(struct control_relay) &&
           message->payload_bytes <= CONTROL_BODY_BYTES_MAX;
}

/* A JOIN that has come by another address already is dropped; a new one is passed on. False: the
 * message is dropped. */
static bool take_join(struct link *link, unsigned host, uint32_t peer, const char *from, size_t bytes)
{
    struct control_join *join = (struct control_join *)(void *)(from_line.body.bytes + sizeof *relay);
    if (bytes < sizeof *relay + sizeof *join)
        return false;
    if (link->asker[host] != 0 && link->attempt[host] == join->attempt)
        return false;
    link->asker[host] = peer;
    link->attempt[host] = join->attempt;
    snprintf(join->from, sizeof join->from, "%s", from);
    return true;
}

/* Whether the message, which is in `from_line`, is passed on. */
static bool is_taken(struct link *link, const struct endpoint_message *message)
{
    const int host = endpoint_message_host(message);
    if (!is_leader(link)) {
        relay->host = HOST_LEADER;
        return true;
    }
    if (host <= HOST_LEADER || host >= HOSTS_MAX)
        return false;
    relay->host = (uint16_t)host;
    if (relay->kind == CONTROL_JOIN)
        return take_join(link, (unsigned)host, message->peer, endpoint_message_from(message),
                         message->payload_bytes);
    return message->peer == link->route[host];
}

/* The leader has answered through this endpoint: the others are not needed. */
static void link_choose(struct link *link, unsigned which)
{
    if (link->chosen || is_leader(link))
        return;
    for (unsigned i = 0; i < link->count; i++)
        if (i != which)
            endpoint_free(link->endpoints[i], 0);
    link->endpoints[0] = link->endpoints[which];
    link->count = 1;
    link->chosen = true;
    log_info("the leader answers at %s", link->order.addresses[which]);
}

/* False: nothing has come. */
static bool link_receive_one(struct link *link, unsigned which)
{
    struct endpoint_message message;
    const enum status status = endpoint_receive(link->endpoints[which], &message);
    if (status == STATUS_INVALID) {
        link->ignored++;
        return true;
    }
    if (status == STATUS_AGAIN)
        return false;
    if (status != STATUS_OK)
        link_end(link, EX_IOERR);
    const bool ours = is_ours(&message);
    link->ignored += !ours;
    const size_t bytes = message.payload_bytes;
    if (ours)
        memcpy(&from_line.body, message.payload, bytes);
    const bool taken = ours && is_taken(link, &message);
    endpoint_release(&message);
    if (!taken)
        return true;
    link_choose(link, which);
    link_report(link, CONTROL_RELAY, &from_line.body, bytes);
    return true;
}

/* ---- the process ---- */

static enum status open_endpoints(struct link *link, struct error *error)
{
    const struct control_link *order = &link->order;
    const struct endpoint_credentials credentials = {.keys = &order->keys, .host = HOST_LEADER};
    if (is_leader(link)) {
        link->count = 1;
        return endpoint_bind(&link->endpoints[0], NULL, order->addresses[0], &credentials, HOSTS_MAX, error);
    }
    for (unsigned i = 0; i < CONTROL_LEADERS_MAX && order->addresses[i][0] != '\0'; i++) {
        struct endpoint *beside = i > 0 ? link->endpoints[0] : NULL;
        const enum status status =
            endpoint_connect(&link->endpoints[i], beside, order->addresses[i], &credentials, error);
        if (status != STATUS_OK)
            return status;
        link->count++;
    }
    return link->count > 0 ? STATUS_OK : error_set(error, STATUS_INVALID, "the leader has no address");
}

static void report_strangers(struct link *link)
{
    const struct monotime now = monotime_now();
    if (!is_leader(link) || monotime_before(now, link->strangers.due))
        return;
    const struct endpoint_counts counts = endpoint_counts(link->endpoints[0]);
    strangers_report(&link->strangers, "the link's", &counts, link->ignored, now);
}

/* Says once why the leader does not let this host in: whoever started it would wait without a word. */
static void report_refusal(struct link *link)
{
    const unsigned host = link->order.keys.host;
    for (unsigned i = 0; i < link->count && !is_leader(link) && !link->chosen && !link->complained; i++) {
        const enum endpoint_refusal refusal = endpoint_refusal(link->endpoints[i]);
        const char *leader = link->order.addresses[i];
        if (refusal == ENDPOINT_KEY_REFUSED)
            log_warning(
                "the leader at %s refuses the key of host %u: expected the line \"%u KEY\" of this host's "
                "file hosts in the leader's file hosts, too (--keys)",
                leader, host, host);
        else if (refusal == ENDPOINT_BROKEN_OFF)
            log_warning("the leader at %s ends the handshake: expected the line \"0 KEY\" of the leader's "
                        "file hosts in this host's file hosts, too (--keys)",
                        leader);
        link->complained = refusal != ENDPOINT_NOT_REFUSED;
    }
}

static void link_turn(struct link *link)
{
    struct endpoint_watch line = {.fd = CONTROL_FD};
    bool readable = false;
    for (unsigned i = 0; i < link->count; i++)
        while (i < link->count && link_receive_one(link, i))
            ;
    if (endpoint_wait(link->endpoints, link->count, &line, 1, false, MONOTIME_NEVER, &readable) != STATUS_OK)
        link_end(link, EX_IOERR);
    if (line.ready)
        link_read_line(link);
    report_strangers(link);
    report_refusal(link);
}

int link_main(void)
{
    static struct link link;
    struct error error = {0};
    enum status status;
    prctl(PR_SET_NAME, "coalesced");
    log_name("link");
    do
        status = control_receive(CONTROL_FD, true, &from_line);
    while (status == STATUS_AGAIN);
    if (status != STATUS_OK || from_line.kind != CONTROL_LINK || sodium_init() < 0)
        return EX_UNAVAILABLE;
    link.order = from_line.body.link;
    status = open_endpoints(&link, &error);
    if (status != STATUS_OK) {
        error.status = status;
        control_send(CONTROL_FD, CONTROL_FAILED, &error, sizeof error);
        return status_exit_code(status);
    }
    const struct control_bound bound = {.far_port = is_leader(&link) ? endpoint_port(link.endpoints[0]) : 0};
    link_report(&link, CONTROL_BOUND, &bound, sizeof bound);
    for (;;)
        link_turn(&link);
}
