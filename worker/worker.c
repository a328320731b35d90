/* The frame that every role runs in. One thread of the worker process (its first). */
#include "worker/worker.h"

#include "kernels/base/log.h"
#include "kernels/base/plugin_call.h"
#include "kernels/base/profile.h"
#include "worker/device.h"
#include "worker/job/job_table.h"
#include "worker/net/rpc.h"

#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sysexits.h>
#include <time.h>
#include <unistd.h>

_Static_assert((int)RPC_DIALED_MAX >= (int)ROSTER_LISTENERS_MAX, "a worker can dial all that listen");

/* ---- roles ---- */

static const struct role roles[] = {
    {"agent", WIRE_ROLE_AGENT, {[JOB_REINFORCE] = agent_run}},
    {"observer", WIRE_ROLE_OBSERVER, {[JOB_REINFORCE] = observer_run}},
    {"pserver",
     WIRE_ROLE_PSERVER,
     {[JOB_PARAMETER_SERVER] = pserver_run, [JOB_MODEL_PARALLEL] = parallel_server_run}},
    {"trainer",
     WIRE_ROLE_TRAINER,
     {[JOB_PARAMETER_SERVER] = trainer_run, [JOB_MODEL_PARALLEL] = parallel_trainer_run}},
};

const struct role *role_by_wire(uint8_t wire)
{
    for (size_t i = 0; i < sizeof roles / sizeof roles[0]; i++)
        if (roles[i].wire == wire)
            return &roles[i];
    return NULL;
}

const struct role *role_by_name(const char *name)
{
    for (size_t i = 0; i < sizeof roles / sizeof roles[0]; i++)
        if (strcmp(roles[i].name, name) == 0)
            return &roles[i];
    return NULL;
}

/* ---- reports and beats ---- */

static _Noreturn void worker_is_orphaned(void)
{
    _exit(EX_UNAVAILABLE);
}

/* A report must arrive, so this function waits for a busy supervisor. */
void worker_report(enum control_kind kind, const void *body, size_t body_bytes)
{
    enum status status;
    while ((status = control_send(CONTROL_FD, kind, body, body_bytes)) == STATUS_BUSY) {
        struct pollfd line = {.fd = CONTROL_FD, .events = POLLOUT};
        const enum profile_kind before = profile_enter(PROFILE_WAITING);
        poll(&line, 1, -1);
        profile_leave(before);
    }
    if (status != STATUS_OK)
        worker_is_orphaned();
}

static void worker_report_strangers(struct worker *worker, struct monotime now)
{
    struct rpc_counters counters;
    if (worker->rpc == NULL || monotime_before(now, worker->strangers.due))
        return;
    rpc_counters(worker->rpc, &counters);
    const struct endpoint_counts counts = {counters.unproven, counters.refused, counters.crowded};
    strangers_report(&worker->strangers, "this worker's", &counts, counters.strangers, now);
}

/* Pages of this process in memory; 0: not known. */
static uint64_t resident_pages(void)
{
    char text[64];
    uint64_t pages = 0;
    const int fd = open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
    const ssize_t length = fd >= 0 ? read(fd, text, sizeof text - 1) : -1;
    if (fd >= 0)
        close(fd);
    if (length > 0 && (text[length] = '\0', sscanf(text, "%*u %" SCNu64, &pages) != 1))
        pages = 0;
    return pages;
}

static void worker_take_stock(const struct worker *worker, struct control_beat *beat)
{
    struct rpc_counters counters = {0};
    struct timespec used;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
    if (worker->rpc != NULL)
        rpc_counters(worker->rpc, &counters);
    *beat = (struct control_beat){.cpu_us = (uint64_t)used.tv_sec * 1000000 + (uint64_t)used.tv_nsec / 1000,
                                  .resident_bytes = resident_pages() * (uint64_t)sysconf(_SC_PAGESIZE),
                                  .work = worker->work,
                                  .bad = counters.bad,
                                  .strangers = counters.strangers,
                                  .duplicates = counters.duplicates,
                                  .stale = counters.stale,
                                  .timeouts = counters.timeouts,
                                  .queue = worker->queue,
                                  .evaluation = worker->evaluation};
}

/* Ten beats a second while busy; an idle worker wakes only beat_us after its last beat. */
struct monotime worker_beat(struct worker *worker)
{
    enum { BEAT_US_MIN = 100000 };
    struct monotime now = monotime_now();
    if (!monotime_before(now, worker->beat_due)) {
        struct control_beat beat;
        worker_take_stock(worker, &beat);
        if (control_send(CONTROL_FD, CONTROL_BEAT, &beat, sizeof beat) == STATUS_PEER_DIED)
            worker_is_orphaned(); /* a full line needs no further beat */
        worker_report_strangers(worker, now);
        worker->beat_due = monotime_add_us(now, BEAT_US_MIN);
    }
    return monotime_add_us(worker->beat_due, worker->beat_us - BEAT_US_MIN);
}

void worker_progress(void *worker)
{
    worker_beat(worker);
}

static void worker_keep_far(struct worker *worker, const struct control_far *far, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (far[i].worker < ROSTER_LISTENERS_MAX)
            worker->far[far[i].worker] = far[i];
}

/* ---- records ---- */

void worker_record(struct worker *worker, enum control_kind kind, const void *body, size_t body_bytes)
{
    worker->records.reported++;
    worker_report(kind, body, body_bytes);
}

bool worker_logs_lag(const struct worker *worker, uint64_t most)
{
    return worker->records.reported > worker->records.logged + most;
}

static void worker_keep_logged(struct worker *worker, const struct control_logged *logged)
{
    worker->records.logged = logged->records;
    worker->records.place = logged->place;
    worker->records.has_place = true;
    if (logged->records == worker->records.kept) {
        worker->records.kept_place = logged->place;
        worker->records.has_kept = true;
    }
}

void worker_keep_place(struct worker *worker)
{
    worker->records.kept = worker->records.reported;
    worker->records.kept_place = worker->records.place;
    worker->records.has_kept = worker->records.has_place && !worker_logs_lag(worker, 0);
}

const struct run_place *worker_kept_place(const struct worker *worker)
{
    return worker->records.has_kept ? &worker->records.kept_place : NULL;
}

void worker_report_saved(const struct run_place *place)
{
    const struct control_saved saved = {.place = *place};
    worker_report(CONTROL_SAVED, &saved, sizeof saved);
}

/* ---- orders ---- */

static void worker_obey_order(struct worker *worker, const struct control_message *order)
{
    switch (order->kind) {
    case CONTROL_CONNECT:
        worker->connect = true;
        break;
    case CONTROL_DIED:
        if (worker->rpc != NULL)
            rpc_peer_died(worker->rpc, order->body.died.worker, order->body.died.incarnation,
                          order->body.died.text);
        break;
    case CONTROL_FAR:
        worker_keep_far(worker, order->body.far, order->body_bytes / sizeof order->body.far[0]);
        break;
    case CONTROL_PLACED:
        if (order->body_bytes <= sizeof worker->host_of_worker)
            memcpy(worker->host_of_worker, order->body.host_of_worker, order->body_bytes);
        break;
    case CONTROL_LOGGED:
        worker_keep_logged(worker, &order->body.logged);
        break;
    case CONTROL_SAVE:
        worker->save = true;
        break;
    case CONTROL_HURRY:
        worker->hurry = true;
        if (worker->rpc != NULL)
            rpc_cancel_all(worker->rpc, STATUS_SHUTDOWN, "the job is ending");
        break;
    case CONTROL_DRAIN:
        worker->drain = true;
        break;
    case CONTROL_EXIT:
        worker->leave = true;
        if (worker->rpc != NULL)
            rpc_cancel_all(worker->rpc, STATUS_SHUTDOWN, "the job is over");
        break;
    default:
        log_warning("ignored a control message of kind %u, which is not an order", order->kind);
    }
}

void worker_read_orders(struct worker *worker)
{
    static struct control_message order; /* 32 KiB: too much for a stack; one thread reads orders */
    for (;;) {
        switch (control_receive(CONTROL_FD, false, &order)) {
        case STATUS_OK:
            worker_obey_order(worker, &order);
            break;
        case STATUS_AGAIN:
            return;
        default:
            worker_is_orphaned();
        }
    }
}

static void worker_orders_ready(void *arg)
{
    worker_read_orders(arg);
}

void worker_wait_order(struct worker *worker)
{
    struct monotime next = worker_beat(worker);
    struct pollfd line = {.fd = CONTROL_FD, .events = POLLIN};
    const enum profile_kind before = profile_enter(PROFILE_WAITING);
    const int ready = poll(&line, 1, monotime_poll_ms(monotime_now(), next));
    profile_leave(before);
    if (ready > 0)
        worker_read_orders(worker);
}

static struct monotime worker_beat_each_turn(void *arg)
{
    return worker_beat(arg);
}

enum status worker_attach(struct worker *worker, struct rpc *rpc)
{
    worker->rpc = rpc;
    rpc_on_turn(rpc, worker_beat_each_turn, worker);
    return rpc_watch(rpc, CONTROL_FD, worker_orders_ready, worker);
}

struct path worker_run_dir(const struct worker *worker)
{
    return path_of_folder(CONTROL_RUN_FD, worker->self.run_dir);
}

bool worker_resumes(const struct worker *worker)
{
    return worker->self.resume[0] != '\0';
}

struct path worker_resume_path(const struct worker *worker)
{
    return path_below(worker_run_dir(worker), worker->self.resume);
}

bool worker_goes_on(const struct worker *worker)
{
    return worker->self.generation > 1 || worker_resumes(worker);
}

/* The supervisor has checked this text, so a failure here is no fault of the job file. */
static enum status worker_read_job(struct worker *worker, const char *text, size_t bytes, const char *origin,
                                   struct error *error)
{
    char *problems = NULL;
    enum status status = job_parse(&worker->job, text, bytes, origin, NULL, 0, &problems);
    if (status != STATUS_OK)
        status = error_set(error, status == STATUS_INVALID ? STATUS_INTERNAL : status, "%.300s",
                           problems != NULL ? problems : "no memory for the job");
    free(problems);
    worker->job.added = worker->self.added;
    return status;
}

/* ---- sessions ---- */

static void worker_address_of(const struct worker *worker, uint16_t number,
                              char address[CONTROL_ADDRESS_BYTES])
{
    snprintf(address, CONTROL_ADDRESS_BYTES, "%.*s.%u", CONTROL_ADDRESS_BYTES - 7, worker->self.address,
             number);
}

/* The job's text travels from worker 0 to all others. */
enum status worker_open_rpc(const struct worker *worker, const struct rpc_config *config, struct rpc **out,
                            struct error *error)
{
    const struct roster roster = roster_of(&worker->job);
    const bool listens = worker->self.worker < roster.listeners;
    uint8_t role_of_worker[ROSTER_WORKERS_MAX];
    char address[CONTROL_ADDRESS_BYTES];
    struct rpc_config whole = *config;
    roster_roles(&roster, role_of_worker);
    whole.worker = worker->self.worker;
    whole.role = worker->self.role;
    whole.incarnation = worker->self.incarnation;
    whole.generation = worker->self.generation;
    memcpy(whole.secret, worker->self.secret, sizeof whole.secret);
    whole.roster = role_of_worker;
    whole.workers = roster_workers(&roster);
    if (worker->self.worker == 0) {
        whole.welcome = worker->job_text;
        whole.welcome_bytes = worker->job_bytes;
    }
    if (worker->self.keys.count > 0) {
        whole.keys = &worker->self.keys;
        whole.host_of_worker = worker->host_of_worker;
        whole.far_address = listens ? worker->self.far_address : NULL;
    }
    worker_address_of(worker, worker->self.worker, address);
    return rpc_open(out, &whole, listens ? address : NULL, error);
}

static void worker_report_bound(const struct rpc *rpc)
{
    const struct control_bound bound = {.far_port = rpc_far_port(rpc)};
    worker_report(CONTROL_BOUND, &bound, sizeof bound);
}

/* Where to dial listener `number`; `text` is room for an address on this host. */
static struct rpc_address worker_dial_address(const struct worker *worker, uint16_t number,
                                              char text[CONTROL_ADDRESS_BYTES])
{
    const struct control_far *far = &worker->far[number];
    if (far->address[0] != '\0')
        return (struct rpc_address){
            .worker = number, .address = far->address, .is_far = true, .host = far->host};
    worker_address_of(worker, number, text);
    return (struct rpc_address){.worker = number, .address = text};
}

enum status worker_connect(struct worker *worker, struct rpc *rpc, struct error *error)
{
    const struct roster roster = roster_of(&worker->job);
    const uint32_t count = roster_dialed(&roster, worker->self.worker);
    char texts[RPC_DIALED_MAX][CONTROL_ADDRESS_BYTES];
    struct rpc_address addresses[RPC_DIALED_MAX];
    if (worker->self.worker < roster.listeners)
        worker_report_bound(rpc);
    while (count > 0 && !worker->connect && !worker->leave)
        worker_wait_order(worker);
    if (worker->leave)
        return STATUS_OK;
    for (uint16_t i = 0; i < count; i++)
        addresses[i] = worker_dial_address(worker, i, texts[i]);
    const uint64_t patience_us = (uint64_t)(worker->job.supervise.hang_s * 1e6);
    enum status status = rpc_dial(rpc, addresses, count, monotime_add_us(monotime_now(), patience_us), error);
    /* A peer that refuses HELLO or answers it wrongly is at odds with this worker: neither the job file nor a
     * file's permission is at fault. */
    if (status == STATUS_PERMISSION || status == STATUS_INVALID)
        status = error->status = STATUS_INTERNAL;
    return status;
}

enum status worker_read_welcome(struct worker *worker, const struct rpc *rpc, struct error *error)
{
    size_t bytes;
    const char *text = rpc_welcome(rpc, &bytes);
    return worker_read_job(worker, text, bytes, "WELCOME", error);
}

/* START is the first message: this worker's number and role, and the job. */
static enum status worker_read_start(struct worker *worker, const struct role *role, struct error *error)
{
    static struct control_message message;
    enum status status;
    do
        status = control_receive(CONTROL_FD, true, &message);
    while (status == STATUS_AGAIN);
    if (status != STATUS_OK || message.kind != CONTROL_START)
        return error_set(error, STATUS_INTERNAL, "expected START from the supervisor on descriptor %d",
                         CONTROL_FD);
    worker->self = message.body.start;
    memset(worker->host_of_worker, -1, sizeof worker->host_of_worker);
    if (worker->self.role != role->wire)
        return error_set(error, STATUS_INTERNAL, "started as %s, told to be role %u", role->name,
                         worker->self.role);
    worker->job_bytes = message.body_bytes - sizeof message.body.start;
    worker->job_text = message.body.bytes + sizeof message.body.start;
    return worker_read_job(worker, worker->job_text, worker->job_bytes, "job", error);
}

static enum status worker_run_role(const struct role *role, struct worker *worker, struct error *error)
{
    if (role->run[worker->job.kind] == NULL)
        return error_set(error, STATUS_INTERNAL, "a job of kind %s has no role %s",
                         job_kind_name(worker->job.kind), role->name);
    return role->run[worker->job.kind](worker, error);
}

/* Reports where the time of this thread went, if it was profiled. */
static void worker_report_profile(void)
{
    static struct control_profile part; /* 24 KiB: too much for a stack; one thread reports */
    const struct profile *profile = profile_end(monotime_now());
    if (profile == NULL)
        return;
    const uint64_t first = profile_first_span(profile), end = profile->span_count;
    part = (struct control_profile){
        .begin_ns = profile->begin.ns, .end_ns = monotime_now().ns, .span_count = profile->span_count};
    memcpy(part.ns, profile->ns, sizeof part.ns);
    struct timespec used;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
    part.cpu_ns = (uint64_t)used.tv_sec * 1000000000 + (uint64_t)used.tv_nsec;
    uint64_t at = first;
    do {
        part.first = (uint32_t)(at - first);
        part.count = end - at < CONTROL_SPANS_MAX ? (uint32_t)(end - at) : CONTROL_SPANS_MAX;
        for (uint32_t i = 0; i < part.count; i++)
            part.spans[i] = profile->spans[(at + i) % PROFILE_SPANS_MAX];
        worker_report(CONTROL_PROFILE, &part, control_profile_bytes(&part));
        at += part.count;
    } while (at < end);
}

/* The supervisor reads the note when this process has crashed, or no longer beats. */
static void worker_note_calls(void)
{
    struct plugin_call *note =
        mmap(NULL, sizeof *note, PROT_READ | PROT_WRITE, MAP_SHARED, CONTROL_CALL_FD, 0);
    if (note != MAP_FAILED)
        plugin_call_note_at(note);
}

int worker_main(const struct role *role)
{
    static struct worker worker;
    struct error error = {0};
    prctl(PR_SET_NAME, "coalesced"); /* not "exe", by which it was executed */
    log_name(role->name);
    worker_note_calls();
    enum status status = worker_read_start(&worker, role, &error);
    if (status == STATUS_OK) {
        char name[32];
        snprintf(name, sizeof name, "%s %u", role->name, worker.self.worker);
        log_name(name);
        device_number(worker.self.worker);
        uint64_t hang_us = (uint64_t)(worker.job.supervise.hang_s * 1e6);
        worker.beat_us = hang_us / 4 < 1000000 ? hang_us / 4 : 1000000;
        if (worker.job.log.profile)
            profile_begin(monotime_now());
        status = worker_run_role(role, &worker, &error);
        worker_report_profile();
    }
    if (status == STATUS_OK)
        return 0;
    error.status = status;
    control_send(CONTROL_FD, CONTROL_FAILED, &error, sizeof error);
    return status_exit_code(status);
}
