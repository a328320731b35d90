/* Strangers at the socket for other hosts: whatever they say there, the sessions go on, another host's worker
 * can join, memory and descriptors stay bounded, and a counter says why. Each flood comes from a process of
 * its own, and runs while calls are made. */
#include "test/worker/net/flood.h"
#include "test/worker/net/net_far.h"
#include "test/worker/net/record.h"
#include "test/workplace.h"
#include "worker/net/proof.h"

#include <dirent.h>
#include <stddef.h>
#include <sys/mman.h>
#include <zmq.h>

enum {
    LATE_WORKER = 3,
    RECORDED_WORKER = 4,
    FLOOD_CALLS = 500,
    HELD = 1500,           /* connections that a flood holds at a time */
    DESCRIPTORS = 200,     /* the limit on open files while a flood runs */
    CURVE_HELLO = 2 + 200, /* bytes of a client's first command, with the head of its frame */
    CURVE_WELCOME = 2 + 168,
    KEYED = 20, /* sockets at a time that try a handshake */
};

/* A command of 1 MiB for each connection that waits, and some. The address sanitizer keeps 256 MiB of what
 * was freed. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { MEMORY_MIB = 500 };
#else
enum { MEMORY_MIB = 160 };
#endif

/* With the flood's process, which is forked before there are threads. */
static struct shared {
    struct record record;
    char place[64]; /* ADDRESS:PORT of the listener */
    atomic_bool begin;
} * shared;

/* ---- strangers without keys ---- */

/* The job's own pass for the socket of its host, which no other socket asks for. */
static void flood_with_pass(const char *place)
{
    static const uint8_t secret[WIRE_SECRET_BYTES] = NET_SECRET;
    struct wire_pass pass;
    char login[128];
    proof_make_pass(&pass, secret, 0);
    const int length = snprintf(login, sizeof login, "\5HELLO%c%s%c%s", (int)strlen(pass.user), pass.user,
                                (int)strlen(pass.password), pass.password);
    for (;;) {
        const int fd = flood_connect(place);
        if (flood_greet(fd, "PLAIN") && flood_frame(fd, ZMTP_COMMAND, login, (size_t)length))
            flood_read(fd, ZMTP_GREETING + 1);
        close(fd);
    }
}

/* A message behind the handshake of a socket that asks for nothing. */
static void flood_without_security(const char *place)
{
    static const uint8_t ready[] = "\5READY\13Socket-Type\0\0\0\6DEALER";
    for (;;) {
        const int fd = flood_connect(place);
        if (flood_greet(fd, "NULL") && flood_frame(fd, ZMTP_COMMAND, ready, sizeof ready - 1))
            flood_frame(fd, ZMTP_MORE, flood_bytes, 4096);
        close(fd);
    }
}

static void flood_silent(const char *place)
{
    for (unsigned i = 0; i < HELD; i++)
        flood_connect(place);
}

/* The largest command that is read before the handshake, without its last byte. */
static void flood_fat(const char *place)
{
    for (unsigned i = 0; i < HELD; i++) {
        const int fd = flood_connect(place);
        if (flood_greet(fd, "CURVE") && flood_head(fd, ZMTP_COMMAND, FLOOD_FRAME))
            flood_write(fd, flood_bytes, FLOOD_FRAME - 1);
    }
}

/* Commands of every length and of random bytes, which begin like a client's first or second one. */
static void flood_garbage(const char *place)
{
    uint64_t state = 88172645463325252u;
    for (unsigned round = 0;; round++) {
        uint8_t bytes[512];
        for (size_t i = 0; i < sizeof bytes; i++) {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            bytes[i] = (uint8_t)state;
        }
        memcpy(bytes, round % 3 == 0 ? "\5HELLO\1\0" : "\10INITIATE", 8);
        const int fd = flood_connect(place);
        const size_t count = round % 2 == 0 ? CURVE_HELLO - 2 : 8 + state % (sizeof bytes - 8);
        if (flood_greet(fd, "CURVE") && flood_frame(fd, ZMTP_COMMAND, bytes, count))
            flood_read(fd, ZMTP_GREETING + 1);
        close(fd);
    }
}

/* What a host has said once, in the order in which a listener wants it: the listener's own new key makes the
 * old cookie worthless. */
static void flood_replay(const char *place)
{
    const size_t first = ZMTP_GREETING + CURVE_HELLO;
    const struct record *record = &shared->record;
    for (;;) {
        const int fd = flood_connect(place);
        if (flood_write(fd, record->said, first)) {
            flood_read(fd, ZMTP_GREETING + CURVE_WELCOME);
            flood_write(fd, record->said + first, record->bytes - first);
            flood_read(fd, 1);
        }
        close(fd);
    }
}

/* ---- strangers with keys ---- */

static void try_handshakes(const char *place, const struct host_keys *keys, const uint8_t *server)
{
    char address[64];
    void *context = zmq_ctx_new(), *sockets[KEYED];
    snprintf(address, sizeof address, "tcp://127.0.0.9:0;%s", place);
    for (unsigned i = 0; i < KEYED; i++) {
        const int linger = 0;
        sockets[i] = zmq_socket(context, ZMQ_DEALER);
        zmq_setsockopt(sockets[i], ZMQ_LINGER, &linger, sizeof linger);
        zmq_setsockopt(sockets[i], ZMQ_CURVE_SERVERKEY, server, HOST_KEY_BYTES);
        zmq_setsockopt(sockets[i], ZMQ_CURVE_PUBLICKEY, keys->public_of_host[FAR_HOST], HOST_KEY_BYTES);
        zmq_setsockopt(sockets[i], ZMQ_CURVE_SECRETKEY, keys->secret, HOST_KEY_BYTES);
        if (zmq_connect(sockets[i], address) != 0)
            _exit(1);
    }
    poll(NULL, 0, 50);
    for (unsigned i = 0; i < KEYED; i++)
        zmq_close(sockets[i]);
    zmq_ctx_term(context);
}

static void flood_strangers_key(const char *place)
{
    struct host_keys keys = keys_of(FAR_HOST);
    host_keys_draw(keys.secret);
    host_keys_public(keys.public_of_host[FAR_HOST], keys.secret);
    for (;;)
        try_handshakes(place, &keys, keys.public_of_host[HOST_LEADER]);
}

/* A host of the job that takes the listener for another host. */
static void flood_wrong_server_key(const char *place)
{
    const struct host_keys keys = keys_of(FAR_HOST);
    for (;;)
        try_handshakes(place, &keys, keys.public_of_host[2]);
}

/* ---- the job beside them ---- */

static unsigned open_descriptors(void)
{
    unsigned count = 0;
    DIR *folder = opendir("/proc/self/fd");
    ck_assert_ptr_nonnull(folder);
    while (readdir(folder) != NULL)
        count++;
    closedir(folder);
    return count;
}

static void limit_descriptors(void)
{
    struct rlimit limit;
    ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &limit), 0);
    limit.rlim_cur = DESCRIPTORS;
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
}

static uint64_t counter_at(const struct rpc *rpc, size_t at)
{
    struct rpc_counters counters;
    uint64_t value;
    rpc_counters(rpc, &counters);
    memcpy(&value, (const char *)&counters + at, sizeof value);
    return value;
}

static const struct {
    void (*flood)(const char *place);
    size_t counter; /* in struct rpc_counters: which says why */
    uint64_t least; /* it becomes, while the calls go on */
} floods[] = {
    {flood_with_pass, offsetof(struct rpc_counters, unproven), 500},
    {flood_without_security, offsetof(struct rpc_counters, unproven), 500},
    {flood_silent, offsetof(struct rpc_counters, crowded), HELD / 2},
    {flood_fat, offsetof(struct rpc_counters, crowded), HELD / 2},
    {flood_garbage, offsetof(struct rpc_counters, unproven), 500},
    {flood_replay, offsetof(struct rpc_counters, unproven), 500},
    {flood_strangers_key, offsetof(struct rpc_counters, refused), 200},
    {flood_wrong_server_key, offsetof(struct rpc_counters, unproven), 200},
};
enum { FLOODS = sizeof floods / sizeof *floods };

/* A worker's handshake, HELLO and a call; then it leaves. */
static void record_a_host(struct far *far, const struct host_keys *keys)
{
    struct record *record = &shared->record;
    char direct[sizeof far->address];
    memcpy(direct, far->address, sizeof direct);
    record_start(record, rpc_far_port(far->net.server));
    snprintf(far->address, sizeof far->address, "tcp://127.0.0.1:%u", record->port);
    far_join(far, keys, RECORDED_WORKER, client_methods);
    expect_step(far, far->net.clients[0]);
    rpc_free(far->net.clients[0], "it was recorded", 100);
    UNTIL(far->service.left == 1u << RECORDED_WORKER, rpc_turn(far->net.server, net_in_ms(1)));
    record_stop(record);
    ck_assert_uint_gt(record->bytes, ZMTP_GREETING + CURVE_HELLO);
    memcpy(far->address, direct, sizeof direct);
    far->net.client_count = 0;
    far->service.left = 0;
}

static pid_t flood_fork(void (*flood)(const char *place))
{
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ck_assert_ptr_ne(shared, MAP_FAILED);
    const pid_t pid = fork();
    ck_assert_int_ge(pid, 0);
    if (pid > 0)
        return pid;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    setpriority(PRIO_PROCESS, 0, 19); /* other tests run meanwhile */
    while (!atomic_load(&shared->begin))
        poll(NULL, 0, 2);
    flood(shared->place);
    for (;;)
        pause();
}

START_TEST(test_flood)
{
    struct far far;
    const pid_t flood = flood_fork(floods[_i].flood);
    const struct host_keys keys = keys_of(FAR_HOST);
    limit_descriptors();
    far_start(&far, NULL);
    far.host_of_worker[LATE_WORKER] = far.host_of_worker[RECORDED_WORKER] = FAR_HOST;
    record_a_host(&far, &keys);
    far_join(&far, &keys, FAR_WORKER, client_methods);
    for (unsigned i = 0; i < FLOOD_CALLS; i++)
        expect_step(&far, far.net.clients[0]);
    const long before_mib = resident_mib();
    long most_mib = before_mib;
    snprintf(shared->place, sizeof shared->place, "%s", far.address + strlen("tcp://"));
    atomic_store(&shared->begin, true);
    for (unsigned i = 0; i < FLOOD_CALLS || counter_at(far.net.server, floods[_i].counter) < floods[_i].least;
         i++) {
        expect_step(&far, far.net.clients[0]);
        const long now_mib = i % 64 == 0 ? resident_mib() : 0;
        most_mib = now_mib > most_mib ? now_mib : most_mib;
        ck_assert_msg(most_mib - before_mib <= MEMORY_MIB, "%ld MiB became %ld", before_mib, most_mib);
    }
    ck_assert_uint_lt(open_descriptors(), DESCRIPTORS);
    far_join(&far, &keys, LATE_WORKER, client_methods); /* a worker gets in while the flood goes on */
    expect_step(&far, far.net.clients[1]);
    expect_step(&far, far.net.clients[0]);
    flood_stop(flood);
    ck_assert_uint_eq(far.service.left, 0);
    net_free(&far.net);
    munmap(shared, sizeof *shared);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("rpc_far_floods");
    TCase *tcase = tcase_create("floods");
    tcase_add_loop_test(tcase, test_flood, 0, FLOODS);
    tcase_set_timeout(tcase, 60);
    suite_add_tcase(suite, tcase);
    return suite_run(suite);
}
