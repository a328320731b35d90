/* The stage of the pserver's tests: pservers as real processes, and their supervisor in the test's own.
 * The trainers are in test/worker/data_parallel/pserver_trainers.h, which tests include.
 *
 * Everything runs on the test's thread; no time is asserted, only that every expected message comes at
 * last. */
#ifndef TEST_WORKER_DATA_PARALLEL_PSERVER_STAGE_H
#define TEST_WORKER_DATA_PARALLEL_PSERVER_STAGE_H

#include "kernels/params/gradients.h"
#include "test/process.h"
#include "worker/control.h"
#include "worker/data_parallel/schedule.h"
#include "worker/data_parallel/shards.h"
#include "worker/model/classifier.h"
#include "worker/net/rpc.h"
#include "worker/net/segment.h"
#include "worker/roster.h"

#include <check.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PS_TRAINERS_MAX = 4, PS_SERVERS_MAX = 2, PS_WORKERS_MAX = PS_TRAINERS_MAX + PS_SERVERS_MAX };
enum { PS_UPDATES_MAX = 32, PS_EVENTS_BYTES = 512, PS_OVERRIDES_MAX = 16, PS_INCARNATION = 9 };

#define PS_JOB                                                                                               \
    "{\"kind\":\"parameter-server\",\"name\":\"test\",\"seed\":7,\"device\":\"cpu\","                        \
    "\"model\":{\"name\":\"resnet18\",\"classes\":3,\"width\":8},"                                           \
    "\"trainers\":{\"count\":2,\"batch\":2,\"threads\":1},\"data\":{\"size\":32},"                           \
    "\"optimizer\":{\"lr\":0.1,\"momentum\":0.9,\"schedule\":\"linear\"},\"stop\":{\"updates\":4}}"

#define PS_OK(call)                                                                                          \
    do {                                                                                                     \
        enum status ps_status = (call);                                                                      \
        ck_assert_msg(ps_status == STATUS_OK, "%s: %s: %s", #call, status_name(ps_status), ps.error.text);   \
    } while (0)

struct ps_trainer {
    struct rpc *rpc;
    uint32_t incarnation;
    struct future *calls[PS_SERVERS_MAX]; /* of one push */
    struct rpc_request *evaluate;         /* kept, until the test answers it */
    uint64_t evaluate_args[WIRE_ARGS];
    char evaluated[64]; /* "after 3": it came when version 3 was the newest that this trainer was given */
    uint64_t given;
};

static struct {
    char folder[64], run_dir[96];
    const char *overrides[PS_OVERRIDES_MAX];
    size_t override_count;
    struct job job;
    char *job_text;
    size_t job_bytes;
    struct control_start start;
    uint32_t servers, trainers;
    int memory[PS_WORKERS_MAX]; /* the workers' memfds */
    float *map[PS_WORKERS_MAX]; /* where they lie in this process; NULL: not mapped */
    size_t map_bytes[PS_WORKERS_MAX];
    pid_t pid[PS_SERVERS_MAX];
    int control[PS_SERVERS_MAX];

    uint64_t logged;           /* records that are acknowledged */
    bool hold_log;             /* none is acknowledged from now on */
    bool elsewhere;            /* servers above 0 have another run directory, which is not there */
    bool far[PS_TRAINERS_MAX]; /* this trainer is on another host than the servers */
    uint16_t far_port[PS_SERVERS_MAX];
    struct host_keys far_keys; /* of their host */
    bool ready[PS_SERVERS_MAX];
    bool finished, failed;
    struct control_finished end;
    struct error failure;
    char events[PS_EVENTS_BYTES]; /* "U1 U2 E1 F0 ": updates, epochs, FINISHED and its end, FAILED: X */
    struct control_update updates[PS_UPDATES_MAX];
    struct control_epoch epoch; /* the last one */

    struct backend *backend;
    struct params *params; /* in the servers' layouts, placed where a test looks */
    struct gradients *gradients;
    size_t parameters, elements, bytes;
    uint64_t fingerprint;
    struct shard shards[PS_SERVERS_MAX];
    struct schedule schedule;
    struct ps_trainer trainer[PS_TRAINERS_MAX];

    /* The model as it must be, canonical. */
    float *model, *velocity;
    uint64_t version;
    struct error error;
} ps;

static inline bool ps_shared(void)
{
    return ps.job.transport == JOB_TRANSPORT_SHARED;
}

/* Whether this trainer's elements travel in messages. */
static inline bool ps_travels(uint32_t trainer)
{
    return !ps_shared() || ps.far[trainer];
}

/* ---- the supervisor ---- */

/* Puts "U3 " or the like behind what has been reported so far. */
static inline void ps_event(char kind, uint64_t number)
{
    size_t length = strlen(ps.events);
    snprintf(ps.events + length, sizeof ps.events - length, "%c%llu ", kind, (unsigned long long)number);
}

static inline void ps_order(enum control_kind kind)
{
    for (uint32_t i = 0; i < ps.servers; i++)
        if (kind != CONTROL_DRAIN || i == 0)
            control_send(ps.control[i], kind, NULL, 0);
}

/* So many records of server 0 are in the logs. */
static inline void ps_acknowledge(uint64_t records)
{
    const struct control_logged logged = {.records = records};
    ps.logged = records;
    control_send(ps.control[0], CONTROL_LOGGED, &logged, sizeof logged);
}

static inline void ps_take_report(uint32_t server, const struct control_message *message)
{
    switch (message->kind) {
    case CONTROL_BOUND:
        ps.far_port[server] = message->body.bound.far_port;
        break;
    case CONTROL_READY:
        ps.ready[server] = true;
        break;
    case CONTROL_UPDATE:
        ck_assert_uint_eq(server, 0);
        ck_assert_uint_lt(message->body.update.update, PS_UPDATES_MAX);
        ps.updates[message->body.update.update] = message->body.update;
        ps_event('U', message->body.update.update);
        if (!ps.hold_log)
            ps_acknowledge(ps.logged + 1);
        break;
    case CONTROL_EPOCH:
        ps.epoch = message->body.epoch;
        ps_event('E', ps.epoch.epoch);
        if (!ps.hold_log)
            ps_acknowledge(ps.logged + 1);
        break;
    case CONTROL_FINISHED:
        ps.finished = true;
        ps.end = message->body.finished;
        ps_event('F', ps.end.end);
        break;
    case CONTROL_FAILED:
        ps.failed = true;
        ps.failure = message->body.failed;
        ps_event('X', ps.failure.status);
        break;
    default:
        ck_assert_uint_eq(message->kind, CONTROL_BEAT);
    }
}

/* ---- turns ---- */

/* One turn of everyone in this process. */
static inline void ps_turn(void)
{
    static struct control_message message;
    for (uint32_t i = 0; i < ps.servers; i++)
        while (ps.control[i] >= 0 && control_receive(ps.control[i], false, &message) == STATUS_OK)
            ps_take_report(i, &message);
    for (uint32_t i = 0; i < ps.trainers; i++)
        if (ps.trainer[i].rpc != NULL)
            rpc_turn(ps.trainer[i].rpc, monotime_add_us(monotime_now(), 500));
}

/* Turns until `condition`; a minute without it fails the test. */
#define PS_UNTIL(condition)                                                                                  \
    do {                                                                                                     \
        struct monotime ps_limit = monotime_add_us(monotime_now(), 60000000);                                \
        while (!(condition)) {                                                                               \
            ck_assert_msg(monotime_before(monotime_now(), ps_limit), "never: %s (events: %s, failure: %s)",  \
                          #condition, ps.events, ps.failure.text);                                           \
            ps_turn();                                                                                       \
        }                                                                                                    \
    } while (0)

/* For "it does not come": some turns in which it could have. */
static inline void ps_turns(int count)
{
    for (int i = 0; i < count; i++)
        ps_turn();
}

/* ---- processes ---- */

/* A directory that is not there is one that was removed while it was open. */
static inline int ps_open_run_dir(void)
{
    const bool absent = mkdir(ps.start.run_dir, 0700) == 0;
    const int fd = open(ps.start.run_dir, O_RDONLY | O_DIRECTORY);
    if (absent)
        rmdir(ps.start.run_dir);
    return fd;
}

static inline void ps_exec(uint32_t server, int control, const char *program)
{
    char index[16];
    int high[PS_WORKERS_MAX];
    int line = fcntl(control, F_DUPFD, 200), run = fcntl(ps_open_run_dir(), F_DUPFD, 200);
    for (uint32_t i = 0; i < ps.servers + ps.trainers; i++)
        high[i] = ps_shared() ? fcntl(ps.memory[i], F_DUPFD, 201) : -1;
    dup2(line, CONTROL_FD);
    dup2(run, CONTROL_RUN_FD);
    for (uint32_t i = 0; i < ps.servers + ps.trainers; i++)
        if (high[i] >= 0)
            dup2(high[i], SEGMENT_FD_FIRST + (int)i);
    snprintf(index, sizeof index, "%u", server);
    setenv("OMP_WAIT_POLICY", "passive", 1); /* as the supervisor does */
    signal(SIGXFSZ, SIG_IGN);                /* a file too large is an error like a full disk's */
    execl(program, "coalesced", "worker", "--role", "pserver", "--index", index, (char *)NULL);
    _exit(120);
}

/* The keys of host 0, the servers', or of host 1, the far trainers'. */
static inline struct host_keys ps_keys(uint16_t host)
{
    static const uint8_t shared[HOST_KEY_BYTES] = "the hosts of a test share this";
    struct host_keys keys;
    ck_assert_int_ge(sodium_init(), 0);
    host_keys_derive(&keys, shared, host, 2);
    return keys;
}

/* The server learns where the far trainers are. */
static inline void ps_tell_places(uint32_t server)
{
    int16_t host_of_worker[PS_WORKERS_MAX];
    for (uint32_t i = 0; i < ps.servers + ps.trainers; i++)
        host_of_worker[i] = i >= ps.servers && ps.far[i - ps.servers] ? 1 : -1;
    ck_assert_int_eq(control_send(ps.control[server], CONTROL_PLACED, host_of_worker,
                                  (ps.servers + ps.trainers) * sizeof host_of_worker[0]),
                     STATUS_OK);
}

static inline void ps_start_one(uint32_t server)
{
    int line[2];
    const char *program = daemon_path();
    snprintf(ps.start.run_dir, sizeof ps.start.run_dir, "%s%s", ps.run_dir,
             ps.elsewhere && server > 0 ? "-elsewhere" : "");
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, line), 0);
    if (server == 0)
        ps.logged = 0;
    ps.pid[server] = fork();
    if (ps.pid[server] == 0)
        ps_exec(server, line[1], program);
    close(line[1]);
    ps.control[server] = line[0];
    char *body = malloc(sizeof ps.start + ps.job_bytes);
    ps.start.worker = (uint16_t)server;
    memcpy(body, &ps.start, sizeof ps.start);
    memcpy(body + sizeof ps.start, ps.job_text, ps.job_bytes);
    ck_assert_int_eq(control_send(line[0], CONTROL_START, body, sizeof ps.start + ps.job_bytes), STATUS_OK);
    free(body);
    ps_tell_places(server);
}

/* Maps a segment as its owner has sized it, or sizes it as its owner would. */
static inline void ps_map(uint32_t worker, bool own)
{
    struct stat info;
    if (own) {
        ck_assert_int_eq(ftruncate(ps.memory[worker], (off_t)ps.bytes), 0);
        ck_assert_int_eq(fcntl(ps.memory[worker], F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW), 0);
    }
    ck_assert_int_eq(fstat(ps.memory[worker], &info), 0);
    ps.map_bytes[worker] = (size_t)info.st_size;
    void *data = mmap(NULL, ps.map_bytes[worker], PROT_READ | (own ? PROT_WRITE : 0), MAP_SHARED,
                      ps.memory[worker], 0);
    ck_assert_ptr_ne(data, MAP_FAILED);
    ps.map[worker] = data;
}

static inline void ps_unmap(uint32_t worker)
{
    if (ps.map[worker] != NULL)
        munmap(ps.map[worker], ps.map_bytes[worker]);
    ps.map[worker] = NULL;
}

/* Starts the servers of the job, from a checkpoint if `resume` names one, and waits until all are ready. */
static inline void ps_serve(const char *resume)
{
    snprintf(ps.start.resume, sizeof ps.start.resume, "%s", resume);
    for (uint32_t i = 0; i < ps.servers; i++) {
        ps.ready[i] = false;
        ps_start_one(i);
    }
    PS_UNTIL(ps.ready[0] || ps.failed);
    for (uint32_t i = 1; i < ps.servers; i++) {
        ck_assert(!ps.ready[i]); /* it has to dial server 0 first */
        control_send(ps.control[i], CONTROL_CONNECT, NULL, 0);
        PS_UNTIL(ps.ready[i]);
    }
    for (uint32_t i = 0; i < ps.servers && ps_shared() && !ps.failed; i++)
        ps_map(i, false);
}

/* The exit code of server `server`, which must be about to end. */
static inline int ps_wait(uint32_t server)
{
    int status;
    struct monotime limit = monotime_add_us(monotime_now(), 60000000);
    while (waitpid(ps.pid[server], &status, WNOHANG) == 0) {
        ck_assert(monotime_before(monotime_now(), limit));
        ps_turn();
    }
    ps.pid[server] = 0;
    close(ps.control[server]);
    ps.control[server] = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/* All trainers leave and all servers end, as at the end of a job. */
static inline void ps_end(int code)
{
    for (uint32_t i = 0; i < ps.trainers; i++) {
        rpc_free(ps.trainer[i].rpc, "the test is over", 0);
        ps.trainer[i] = (struct ps_trainer){0};
    }
    ps_order(CONTROL_EXIT);
    for (uint32_t i = 0; i < ps.servers; i++)
        ck_assert_int_eq(ps_wait(i), i == 0 ? code : 0);
    for (uint32_t i = 0; i < ps.servers + ps.trainers; i++)
        ps_unmap(i);
}

/* Where a checkpoint of the run would lie; until the next call. */
static inline const char *ps_checkpoint(const char *name)
{
    static char path[256];
    snprintf(path, sizeof path, "%s/checkpoints/%s", ps.run_dir, name);
    return path;
}

static inline bool ps_has_checkpoint(const char *name)
{
    struct stat found;
    return stat(ps_checkpoint(name), &found) == 0;
}

/* ---- the job, and the model as the test sees it ---- */

static inline void ps_set(const char *override)
{
    ck_assert_uint_lt(ps.override_count, PS_OVERRIDES_MAX);
    ps.overrides[ps.override_count++] = override;
}

static inline void ps_open_model(void)
{
    const struct backend_settings settings = {.threads = 1};
    struct classifier *classifier;
    struct tape *tape;
    PS_OK(backend_load(&ps.backend, "onednn", &settings, &ps.error));
    PS_OK(params_new(&ps.params, ps.backend, &ps.error));
    PS_OK(classifier_new(&classifier, &ps.job, ps.params, &ps.error));
    PS_OK(params_lay_out(ps.params, &ps.error));
    PS_OK(tape_new(&tape, ps.backend, &ps.error));
    if (ps_shared())
        PS_OK(classifier_reorder(classifier, tape, &ps.error));
    tape_free(tape);
    classifier_free(classifier);
    PS_OK(gradients_new_unplaced(&ps.gradients, ps.params, &ps.error));
    ps.parameters = params_elements(ps.params);
    ps.elements = image_elements(ps.params);
    ps.bytes = image_bytes(ps.params);
    ps.fingerprint = params_fingerprint(ps.params);
    PS_OK(shards_of(ps.shards, ps.params, ps.servers, &ps.error));
    ps.model = calloc(ps.elements, sizeof *ps.model);
    ps.velocity = calloc(ps.parameters, sizeof *ps.velocity);
}

static inline void ps_close_model(void)
{
    gradients_free(ps.gradients);
    params_free(ps.params);
    backend_close(ps.backend);
    free(ps.model);
    free(ps.velocity);
    ps.model = ps.velocity = NULL;
    ps.gradients = NULL;
    ps.params = NULL;
    ps.backend = NULL;
    ps.version = 0;
}

/* A job of these overrides; what ps_set said before is part of it. */
static inline void ps_open(const struct dataset_info *info)
{
    char *problems = NULL;
    enum status status =
        job_parse(&ps.job, PS_JOB, strlen(PS_JOB), "test.json", ps.overrides, ps.override_count, &problems);
    ck_assert_msg(status == STATUS_OK, "%s", problems != NULL ? problems : "");
    free(problems);
    free(ps.job_text);
    ps.job_text = job_format(&ps.job, &ps.job_bytes);
    ps.servers = ps.job.server.count;
    ps.trainers = ps.job.trainers.count;
    ck_assert_uint_le(ps.trainers, PS_TRAINERS_MAX);
    ck_assert_uint_le(ps.servers, PS_SERVERS_MAX);
    PS_OK(schedule_of(&ps.schedule, &ps.job, info, &ps.error));
    for (uint32_t i = 0; i < ps.servers + ps.trainers; i++) {
        ps.memory[i] = memfd_create("test", MFD_ALLOW_SEALING | MFD_CLOEXEC);
        ck_assert_int_ge(ps.memory[i], 0);
    }
    for (uint32_t i = 0; i < PS_SERVERS_MAX; i++)
        ps.control[i] = -1;
    ps.start =
        (struct control_start){.role = WIRE_ROLE_PSERVER, .incarnation = PS_INCARNATION, .generation = 1};
    snprintf(ps.start.address, sizeof ps.start.address, "ipc://%s/s", ps.folder);
    snprintf(ps.start.far_address, sizeof ps.start.far_address, "tcp://127.0.0.1:*");
    ps.start.keys = ps_keys(0);
    ps_open_model();
}

static inline void ps_clear_reports(void)
{
    ps.events[0] = '\0';
    ps.finished = ps.failed = false;
}

static inline void ps_setup(void)
{
    memset(&ps, 0, sizeof ps);
    folder_make(ps.folder);
    snprintf(ps.run_dir, sizeof ps.run_dir, "%s/run", ps.folder);
    ck_assert_int_eq(mkdir(ps.run_dir, 0700), 0);
}

static inline void ps_close_memory(void)
{
    for (uint32_t i = 0; i < ps.servers + ps.trainers; i++) {
        ps_unmap(i);
        close(ps.memory[i]);
    }
}

static inline void ps_teardown(void)
{
    for (uint32_t i = 0; i < ps.servers; i++)
        if (ps.pid[i] > 0) {
            kill(ps.pid[i], SIGKILL);
            waitpid(ps.pid[i], NULL, 0);
        }
    for (uint32_t i = 0; i < ps.trainers; i++)
        rpc_free(ps.trainer[i].rpc, "the test is over", 0);
    ps_close_memory();
    ps_close_model();
    free(ps.job_text);
    folder_remove(ps.folder);
}

static inline TCase *ps_case(Suite *suite, const char *name)
{
    TCase *tcase = tcase_create(name);
    tcase_add_checked_fixture(tcase, ps_setup, ps_teardown);
    tcase_set_timeout(tcase, 120);
    suite_add_tcase(suite, tcase);
    return tcase;
}

#endif
