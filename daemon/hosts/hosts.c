/* Keeps the state of each other host of a job, and turns messages and silence into events for the leader's
 * supervisor. Its only thread; no lock. */
#include "daemon/hosts/hosts.h"

#include "daemon/process/service.h"
#include "kernels/base/log.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CLEAR_US = 500000 }; /* a host that departs may only be one of many that got the same signal */

enum host_state {
    HOST_AWAITED,  /* it has not come yet */
    HOST_UP,       /* it has come, and beats */
    HOST_IS_LOST,  /* it was up, and has fallen silent; it may come back */
    HOST_DEPARTS,  /* it asks to be left out: nothing starts there any more */
    HOST_DEPARTED, /* it was told that it is out */
};

struct host {
    enum host_state state;
    char name[CONTROL_HOST_NAME_BYTES]; /* its own, for messages */
    char address[CONTROL_FAR_BYTES];    /* where other hosts reach its listeners */
    char leader[CONTROL_FAR_BYTES];     /* where it reaches the leader's: "tcp://ADDRESS:PORT" */
    struct monotime heard;
    struct monotime lost_at;
    uint32_t brings;          /* observers or trainers that the job has for this host (coalesced join) */
    bool unfit;               /* workers cannot run there */
    struct monotime clear_at; /* HOST_DEPARTS: when HOST_CLEARS is due; never: it has come */
};

static struct control_message received; /* too large for a stack; one thread */

static bool is_up(const struct host *host)
{
    return host->state == HOST_UP || host->state == HOST_DEPARTS;
}

/* ---- what is known of a host ---- */

uint16_t hosts_count(const struct hosts *hosts)
{
    return hosts->of != NULL ? hosts->rendezvous->link.keys.count : 1;
}

uint16_t hosts_at_start(const struct hosts *hosts)
{
    return hosts->of != NULL ? hosts->rendezvous->hosts : 1;
}

bool hosts_can_run(const struct hosts *hosts, uint16_t host)
{
    return host == HOST_LEADER || (hosts->of[host].state == HOST_UP && !hosts->of[host].unfit);
}

bool hosts_is_clearing(const struct hosts *hosts, uint16_t host)
{
    return hosts->of[host].state == HOST_DEPARTS && hosts->of[host].clear_at.ns == MONOTIME_NEVER.ns;
}

uint32_t hosts_brings(const struct hosts *hosts, uint16_t host)
{
    return hosts_can_run(hosts, host) ? hosts->of[host].brings : 0;
}

uint32_t hosts_all_bring(const struct hosts *hosts)
{
    uint32_t sum = 0;
    for (uint16_t i = 1; i < hosts_count(hosts); i++)
        sum += hosts_brings(hosts, i);
    return sum;
}

const char *hosts_name(const struct hosts *hosts, uint16_t host)
{
    return hosts->of[host].name;
}

const char *hosts_address(const struct hosts *hosts, uint16_t to, uint16_t from)
{
    return to == HOST_LEADER ? hosts->of[from].leader : hosts->of[to].address;
}

/* ---- what the leader decides ---- */

void hosts_admit(struct hosts *hosts, uint16_t index, const struct control_join *join)
{
    struct host *host = &hosts->of[index];
    const struct control_admit admit = {.patience_s = hosts->job->hosts.patience_s,
                                        .requeue = hosts->job->hosts.requeue ? 1 : 0};
    const bool is_back = host->state == HOST_IS_LOST;
    *host = (struct host){.state = HOST_UP, .heard = monotime_now(), .brings = join->brings};
    snprintf(host->name, sizeof host->name, "%.*s", (int)sizeof join->name - 1, join->name);
    snprintf(host->address, sizeof host->address, "%.*s", (int)sizeof join->from - 1, join->from);
    snprintf(host->leader, sizeof host->leader, "%.*s", (int)sizeof join->leader - 1, join->leader);
    log_info("host %u (%s) %s, from %s", index, host->name, is_back ? "is back" : "is here", host->address);
    relay_send(&hosts->relay, index, NULL, CONTROL_ADMIT, &admit, sizeof admit);
}

void hosts_refuse(struct hosts *hosts, uint16_t host, enum status status, const char *text)
{
    struct error error = {0};
    error_set(&error, status, "%s", text);
    log_warning("host %u is refused: %s", host, text);
    relay_send(&hosts->relay, host, NULL, CONTROL_REFUSE, &error, sizeof error);
}

bool hosts_lose(struct hosts *hosts, uint16_t index)
{
    struct host *host = &hosts->of[index];
    if (!is_up(host))
        return false;
    host->state = HOST_IS_LOST;
    host->lost_at = monotime_now();
    return true;
}

bool hosts_doubt(struct hosts *hosts, uint16_t index, const char *why)
{
    struct host *host = &hosts->of[index];
    if (!host->unfit)
        log_warning("host %u (%s) cannot run workers: %s; no more start there", index, host->name, why);
    host->unfit = true;
    return host->brings > 0;
}

uint32_t hosts_take_away(struct hosts *hosts, uint16_t host)
{
    const uint32_t brought = hosts->of[host].brings;
    hosts->of[host].brings = 0;
    return brought;
}

static void tell_over(struct hosts *hosts, uint16_t host, int exit_code, const char *text)
{
    struct control_over over = {.exit_code = exit_code};
    snprintf(over.text, sizeof over.text, "%.190s", text);
    relay_send(&hosts->relay, host, NULL, CONTROL_OVER, &over, sizeof over);
}

void hosts_release(struct hosts *hosts, uint16_t host, int exit_code, const char *text)
{
    tell_over(hosts, host, exit_code, text);
    hosts->of[host].state = HOST_DEPARTED;
}

/* ---- messages ---- */

static enum host_event_kind hear_join(struct hosts *hosts, uint16_t index, const struct control_join *join)
{
    const struct host *host = &hosts->of[index];
    char text[CONTROL_FAR_BYTES + 80];
    if (is_up(host)) {
        snprintf(text, sizeof text, "host %u is here already, at %s, and was heard of in the last 3 s", index,
                 host->address);
        hosts_refuse(hosts, index, STATUS_BUSY, text);
        return HOST_NOTHING;
    }
    if (join->build == hosts->relay.order.build)
        return HOST_ASKS;
    hosts_refuse(hosts, index, STATUS_INVALID, "it runs another build of coalesced than the leader");
    return HOST_NOTHING;
}

/* A JOIN is no sign of life of a host that is up: it may be another program with the host's key. */
static enum host_event_kind hear(struct hosts *hosts, const struct control_relay *head)
{
    if (head->host == HOST_LEADER || head->host >= hosts_count(hosts))
        return HOST_NOTHING;
    struct host *host = &hosts->of[head->host];
    if (head->worker == CONTROL_NO_WORKER && received.kind == CONTROL_JOIN)
        return hear_join(hosts, head->host, &received.body.join);
    if (!is_up(host))
        return HOST_NOTHING;
    host->heard = monotime_now();
    if (head->worker != CONTROL_NO_WORKER)
        return HOST_SPEAKS;
    if (received.kind == CONTROL_DEPART && host->state == HOST_UP) {
        host->state = HOST_DEPARTS;
        host->clear_at = monotime_add_us(monotime_now(), CLEAR_US);
    }
    return HOST_NOTHING;
}

bool hosts_read(struct hosts *hosts, struct host_event *event)
{
    *event = (struct host_event){.message = &received};
    if (hosts->of == NULL)
        return false;
    const enum status status = relay_receive(&hosts->relay, &event->head, &received);
    if (status == STATUS_AGAIN || status == STATUS_PEER_DIED)
        return false;
    event->host = event->head.host;
    event->kind = status == STATUS_OK ? hear(hosts, &event->head) : HOST_NOTHING;
    return true;
}

/* ---- deadlines ---- */

/* The link is dead or stuck: the hosts ask again, through a new one at the same port. */
static void replace_link(struct hosts *hosts, struct monotime now)
{
    struct error error = {0};
    if (monotime_before(now, hosts->relay.may_open))
        return;
    if (relay_reopen(&hosts->relay, &error) != STATUS_OK)
        log_error("no other host can be reached: %s", error.text);
}

/* When the last host that was up has fallen silent, the leader's own link may be what hangs. */
static bool check_silence(struct hosts *hosts, uint16_t index, struct monotime now, struct host_event *event)
{
    const bool is_cut_off = hosts->relay.broken;
    if (!is_cut_off && monotime_before(now, monotime_add_us(hosts->of[index].heard, RELAY_SILENCE_US)))
        return false;
    if (!hosts_lose(hosts, index))
        return false;
    unsigned up = 0;
    for (uint16_t i = 1; i < hosts_count(hosts); i++)
        up += is_up(&hosts->of[i]);
    hosts->relay.broken = is_cut_off || up == 0;
    *event = (struct host_event){.kind = HOST_LOST,
                                 .host = index,
                                 .why = is_cut_off ? "the leader's link to it has ended"
                                                   : "nothing was heard of it for 3 s"};
    return true;
}

static bool check_host(struct hosts *hosts, uint16_t index, struct monotime now, struct host_event *event)
{
    struct host *host = &hosts->of[index];
    if (host->state != HOST_DEPARTS || monotime_before(now, host->clear_at))
        return check_silence(hosts, index, now, event);
    host->clear_at = MONOTIME_NEVER;
    *event = (struct host_event){.kind = HOST_CLEARS, .host = index};
    return true;
}

/* Whether the hosts with which the job begins are here. Once they are not waited for any longer, names those
 * that are missing. */
static bool is_complete(const struct hosts *hosts, bool is_late)
{
    unsigned missing = 0;
    for (uint16_t i = 1; i < hosts_at_start(hosts); i++) {
        if (hosts->of[i].state != HOST_AWAITED)
            continue;
        missing++;
        if (is_late)
            log_warning(
                "host %u of %u has not come within %g s (/hosts/patience_s): the job begins without it", i,
                hosts_at_start(hosts), hosts->job->hosts.patience_s);
    }
    return missing == 0;
}

bool hosts_check(struct hosts *hosts, struct monotime now, struct host_event *event)
{
    if (hosts->of == NULL)
        return false;
    if (hosts->relay.broken) { /* all hosts are lost before anything starts on one */
        for (uint16_t i = 1; i < hosts_count(hosts); i++)
            if (check_silence(hosts, i, now, event))
                return true;
        replace_link(hosts, now);
    }
    for (uint16_t i = 1; i < hosts_count(hosts) && !monotime_before(now, hosts->beat_due); i++)
        if (is_up(&hosts->of[i]))
            relay_send(&hosts->relay, i, NULL, CONTROL_BEAT, NULL, 0);
    if (!monotime_before(now, hosts->beat_due))
        hosts->beat_due = monotime_add_us(now, RELAY_BEAT_US);
    const bool is_late = !monotime_before(now, hosts->due);
    if (hosts->awaited && (is_complete(hosts, is_late) || is_late)) {
        hosts->awaited = false;
        *event = (struct host_event){.kind = HOSTS_READY};
        return true;
    }
    for (uint16_t i = 1; i < hosts_count(hosts); i++)
        if (check_host(hosts, i, now, event))
            return true;
    return false;
}

struct monotime hosts_due(const struct hosts *hosts)
{
    if (hosts->of == NULL)
        return MONOTIME_NEVER;
    struct monotime next = hosts->beat_due;
    if (hosts->relay.broken)
        next = monotime_earliest(next, hosts->relay.may_open);
    if (hosts->awaited)
        next = monotime_earliest(next, hosts->due);
    for (uint16_t i = 1; i < hosts_count(hosts); i++) {
        const struct host *host = &hosts->of[i];
        if (is_up(host))
            next = monotime_earliest(next, monotime_add_us(host->heard, RELAY_SILENCE_US));
        if (host->state == HOST_DEPARTS)
            next = monotime_earliest(next, host->clear_at);
    }
    return next;
}

void hosts_excuse(struct hosts *hosts, struct monotime now)
{
    for (uint16_t i = 1; i < hosts_count(hosts); i++)
        hosts->of[i].heard = now;
}

/* ---- opening and closing ---- */

enum { RETURN_US = 5000000 };

static uint64_t patience_us(const struct job *job)
{
    return (uint64_t)(job->hosts.patience_s * 1e6);
}

/* Until `wait_us` from now the hosts may come. */
static enum status open_way(struct hosts *hosts, struct rendezvous *rendezvous, const struct job *job,
                            const char *run, uint64_t wait_us, struct error *error)
{
    uint16_t port;
    *hosts = (struct hosts){
        .rendezvous = rendezvous,
        .job = job,
        .of = calloc(rendezvous->link.keys.count, sizeof *hosts->of),
        .due = monotime_add_us(monotime_now(), wait_us),
    };
    if (hosts->of == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for %u hosts", rendezvous->link.keys.count);
    enum status status = relay_open(&hosts->relay, &rendezvous->link, &port, error);
    if (status != STATUS_OK)
        return status;
    char *colon = strrchr(hosts->relay.order.addresses[0], ':');
    snprintf(colon + 1, 8, "%u", port); /* a link that takes its place binds the same */
    status = rendezvous_publish(rendezvous, port, run, hosts->due, error);
    if (status != STATUS_OK)
        return status;
    relay_admit(&hosts->relay, &rendezvous->link.keys);
    hosts->awaited = true;
    return STATUS_OK;
}

enum status hosts_open(struct hosts *hosts, struct rendezvous *rendezvous, const struct job *job,
                       const char *run, struct error *error)
{
    if (rendezvous == NULL)
        return STATUS_OK;
    const enum status status = open_way(hosts, rendezvous, job, run, patience_us(job), error);
    if (status != STATUS_OK)
        return status;
    const char *port = strrchr(hosts->relay.order.addresses[0], ':') + 1;
    if (rendezvous->hosts > 1)
        log_info("waiting for %u other host%s, at port %s", rendezvous->hosts - 1u,
                 rendezvous->hosts == 2 ? "" : "s", port);
    else
        log_info("other hosts may join at port %s", port);
    service_notify("STATUS=waiting for other hosts");
    return STATUS_OK;
}

/* A host that was cut off a moment ago may ask to join again: it shall hear that the job is over, and not
 * take the leader for dead. So shall a host that looks for a leader whose job did not begin. */
static bool is_missed(const struct hosts *hosts, uint16_t index, struct monotime now, enum status outcome)
{
    const struct host *host = &hosts->of[index];
    if (host->state == HOST_IS_LOST)
        return monotime_before(now, monotime_add_us(host->lost_at, patience_us(hosts->job)));
    return outcome != STATUS_OK && hosts->awaited && host->state == HOST_AWAITED &&
           index < hosts_at_start(hosts);
}

static void await_missing(struct hosts *hosts, enum status outcome, const char *text)
{
    const struct monotime until = monotime_add_us(monotime_now(), RETURN_US);
    unsigned missing = 0;
    for (uint16_t i = 1; i < hosts_count(hosts); i++)
        missing += is_missed(hosts, i, until, outcome);
    for (struct monotime now = monotime_now(); missing > 0 && monotime_before(now, until);
         now = monotime_now()) {
        struct host_event event;
        if (hosts->relay.broken)
            replace_link(hosts, now);
        struct pollfd line = {.fd = relay_fd(&hosts->relay), .events = POLLIN};
        poll(&line, 1, (int)(monotime_us_between(now, until) / 1000) < 100 ? 10 : 100);
        if (!hosts_read(hosts, &event) || event.kind != HOST_ASKS ||
            !is_missed(hosts, event.host, until, outcome))
            continue;
        if (hosts->of[event.host].state == HOST_IS_LOST) {
            hosts_admit(hosts, event.host, &event.message->body.join);
            tell_over(hosts, event.host, status_exit_code(outcome), text);
        } else {
            hosts_refuse(hosts, event.host, outcome == STATUS_BUSY ? STATUS_UNAVAILABLE : outcome, text);
        } /* STATUS_BUSY would have the host ask again */
        hosts->of[event.host].state = HOST_DEPARTED;
        missing--;
    }
}

void hosts_close(struct hosts *hosts, enum status outcome, const char *text)
{
    if (hosts->of == NULL)
        return;
    for (uint16_t i = 1; i < hosts_count(hosts); i++)
        if (is_up(&hosts->of[i])) {
            tell_over(hosts, i, status_exit_code(outcome), text);
            hosts->of[i].state = HOST_DEPARTED;
        }
    await_missing(hosts, outcome, text);
    relay_close(&hosts->relay, false);
    rendezvous_close(hosts->rendezvous);
    free(hosts->of);
    *hosts = (struct hosts){0};
}

void hosts_decline(struct rendezvous *rendezvous, const struct job *job, const struct error *why)
{
    struct hosts hosts = {0};
    struct error error;
    if (rendezvous == NULL || rendezvous->source == RENDEZVOUS_FOLDER)
        return;
    log_info("this host cannot start: hosts that look for it within %d s are told", RETURN_US / 1000000);
    if (open_way(&hosts, rendezvous, job, NULL, RETURN_US, &error) != STATUS_OK)
        log_warning("the other hosts do not hear that this one cannot start: %s", error.text);
    hosts_close(&hosts, why->status, why->text);
}
