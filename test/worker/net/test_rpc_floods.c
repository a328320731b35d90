/* Floods: whatever connects to a listener's socket and whatever it sends there, the sessions go on, another
 * worker can join, memory stays bounded, and a counter says why. Each flood comes from a process of its own,
 * and runs while calls are made. */
#include "test/worker/net/flood.h"
#include "test/worker/net/raw_peer.h"
#include "test/workplace.h"

#include <dirent.h>
#include <fcntl.h>

enum {
    FLOOD_CALLS = 2000,
    HELD = 3000,       /* connections that a flood holds at a time */
    FRAMES = 600,      /* of FLOOD_FRAME bytes in one message */
    DESCRIPTORS = 200, /* the limit on open files while a flood runs */
};

/* What a flood may cost: a command of 1 MiB for each connection that waits, and some. The address sanitizer
 * keeps 256 MiB of what was freed. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { MEMORY_MIB = 500 };
#else
enum { MEMORY_MIB = 160 };
#endif

/* ---- what strangers do ---- */

/* A message of many frames, behind the handshake of a socket without a pass. */
static void flood_multipart(const char *path)
{
    static const uint8_t ready[] = "\5READY\13Socket-Type\0\0\0\6DEALER";
    for (;;) {
        const int fd = flood_connect(path);
        bool goes_on = flood_greet(fd, "NULL") && flood_frame(fd, ZMTP_COMMAND, ready, sizeof ready - 1);
        for (unsigned i = 0; i < FRAMES && goes_on; i++)
            goes_on = flood_frame(fd, ZMTP_MORE, flood_bytes, sizeof flood_bytes);
        close(fd);
    }
}

/* The same in place of the pass, and behind a wrong one without waiting for the answer. */
static void flood_multipart_plain(const char *path)
{
    static const uint8_t hello[] = "\5HELLO\1"
                                   "0"
                                   "\5wrong";
    for (unsigned round = 0;; round++) {
        const int fd = flood_connect(path);
        bool goes_on = flood_greet(fd, "PLAIN");
        if (round % 2 == 0)
            goes_on = goes_on && flood_frame(fd, ZMTP_COMMAND, hello, sizeof hello - 1);
        for (unsigned i = 0; i < FRAMES && goes_on; i++)
            goes_on = flood_frame(fd, ZMTP_MORE, flood_bytes, sizeof flood_bytes);
        close(fd);
    }
}

static void flood_wrong_pass(const char *path)
{
    static const uint8_t hello[] = "\5HELLO\1"
                                   "0"
                                   "\5wrong";
    for (;;) {
        const int fd = flood_connect(path);
        if (flood_greet(fd, "PLAIN") && flood_frame(fd, ZMTP_COMMAND, hello, sizeof hello - 1))
            flood_read(fd, ZMTP_GREETING + 1); /* the greeting, and the refusal */
        close(fd);
    }
}

static void flood_garbage(const char *path)
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
        const int fd = flood_connect(path);
        if (round % 3 == 0 || flood_greet(fd, round % 3 == 1 ? "PLAIN" : "NULL"))
            flood_write(fd, bytes, 1 + state % sizeof bytes);
        close(fd);
    }
}

/* Lengths that no frame may have, and frames that end early. */
static void flood_wrong_sizes(const char *path)
{
    static const uint64_t sizes[] = {UINT64_MAX, UINT64_C(1) << 63, UINT64_C(1) << 32, (1 << 20) + 4097, 0};
    for (unsigned round = 0;; round++) {
        const int fd = flood_connect(path);
        const uint8_t flags = round & 1 ? ZMTP_COMMAND : ZMTP_MORE;
        if (flood_greet(fd, "PLAIN") && flood_head(fd, flags, sizes[round / 2 % 5]))
            flood_write(fd, flood_bytes, round % 7);
        close(fd);
    }
}

/* Holds many connections that never say a word. */
static void flood_half_open(const char *path)
{
    for (unsigned i = 0; i < HELD; i++)
        flood_connect(path);
}

/* Holds many connections with the largest command that is read before the pass, without its last byte. */
static void flood_fat(const char *path)
{
    for (unsigned i = 0; i < HELD; i++) {
        const int fd = flood_connect(path);
        if (flood_greet(fd, "PLAIN") && flood_head(fd, ZMTP_COMMAND, FLOOD_FRAME))
            flood_write(fd, flood_bytes, FLOOD_FRAME - 1);
    }
}

/* ---- what a worker does that has gone wrong ---- */

static void send_message(int fd, const struct wire_header *header, const void *payload)
{
    uint8_t bytes[WIRE_HEADER_BYTES];
    wire_encode(header, bytes);
    if (!flood_frame(fd, ZMTP_MORE, bytes, sizeof bytes) ||
        !flood_frame(fd, 0, payload, header->payload_bytes))
        _exit(1);
}

/* ZMTP's handshake with the pass, and HELLO as worker 2: in bytes, without libzmq. */
static int join_as_worker(const char *path)
{
    static const uint8_t initiate[] = "\10INITIATE\13Socket-Type\0\0\0\6DEALER";
    struct wire_header header = hello(2, 1);
    struct wire_pass pass;
    struct raw raw = {.secret = NET_SECRET};
    char login[128];
    uint8_t payload[RAW_PAYLOAD_MAX];
    const int fd = flood_connect(path);
    proof_make_pass(&pass, raw.secret, 0);
    const int length = snprintf(login, sizeof login, "\5HELLO%c%s%c%s", (int)strlen(pass.user), pass.user,
                                (int)strlen(pass.password), pass.password);
    flood_greet(fd, "PLAIN");
    flood_frame(fd, ZMTP_COMMAND, login, (size_t)length);
    flood_read(fd, ZMTP_GREETING + 10); /* the greeting, and WELCOME */
    flood_frame(fd, ZMTP_COMMAND, initiate, sizeof initiate - 1);
    raw_fill(&raw, &header, "", payload);
    send_message(fd, &header, payload);
    return fd;
}

/* Replies that nobody has asked for. */
static void flood_replies(const char *path)
{
    const int fd = join_as_worker(path);
    struct wire_header reply = {
        .kind = WIRE_REPLY, .method = METHOD_ECHO, .source = 2, .incarnation = 1, .generation = 1};
    for (;;) {
        reply.request++;
        send_message(fd, &reply, NULL);
    }
}

/* Requests, of which no answer is read. */
static void flood_never_reads(const char *path)
{
    enum { BYTES = 1 << 16 };
    const int fd = join_as_worker(path);
    struct wire_header request = {.kind = WIRE_REQUEST,
                                  .method = METHOD_ECHO,
                                  .source = 2,
                                  .incarnation = 1,
                                  .generation = 1,
                                  .left_us = UINT64_MAX,
                                  .tensor_count = 1,
                                  .tensors = {{WIRE_U8, 1, .dims = {BYTES}}},
                                  .payload_bytes = BYTES};
    for (;;) {
        request.request++;
        send_message(fd, &request, flood_bytes);
    }
}

/* Frames of other numbers and lengths than a message has. */
static void flood_odd_frames(const char *path)
{
    const int fd = join_as_worker(path);
    for (unsigned round = 0;; round++) {
        for (unsigned i = 0; i < round % 5; i++)
            flood_frame(fd, ZMTP_MORE, flood_bytes, round * 37 % 400);
        if (!flood_frame(fd, 0, flood_bytes, round * 101 % 4000))
            _exit(1);
    }
}

/* ---- the job beside them ---- */

/* One call each way. */
static void call_both_ways(struct net *net)
{
    struct future *down = echo(net->server, 1), *up = echo(net->clients[0], 0);
    ck_assert_int_eq(net_await(net, down), STATUS_OK);
    ck_assert_int_eq(net_await(net, up), STATUS_OK);
    future_release(down);
    future_release(up);
}

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

static const struct {
    void (*flood)(const char *path);
    size_t counter; /* in struct rpc_counters: which says why */
    uint64_t least; /* it becomes, while the calls go on */
} floods[] = {
    {flood_multipart, offsetof(struct rpc_counters, unproven), 200},
    {flood_multipart_plain, offsetof(struct rpc_counters, refused), 100},
    {flood_wrong_pass, offsetof(struct rpc_counters, refused), 500},
    {flood_garbage, offsetof(struct rpc_counters, unproven), 2000},
    {flood_wrong_sizes, offsetof(struct rpc_counters, unproven), 2000},
    {flood_half_open, offsetof(struct rpc_counters, crowded), HELD - DESCRIPTORS},
    {flood_fat, offsetof(struct rpc_counters, crowded), HELD / 2},
    {flood_replies, offsetof(struct rpc_counters, stale), 20000},
    {flood_never_reads, offsetof(struct rpc_counters, strangers), 2000},
    {flood_odd_frames, offsetof(struct rpc_counters, strangers), 10000},
};
enum { FLOODS = sizeof floods / sizeof *floods, FLOODS_OF_STRANGERS = FLOODS - 3 };

static uint64_t counter_at(const struct rpc *rpc, size_t at)
{
    const struct rpc_counters counters = counters_of(rpc);
    uint64_t value;
    memcpy(&value, (const char *)&counters + at, sizeof value);
    return value;
}

START_TEST(test_flood)
{
    struct net net;
    struct service service;
    limit_descriptors();
    service_start(&net, &service, 1);
    for (unsigned i = 0; i < FLOOD_CALLS; i++)
        call_both_ways(&net);
    const long before_mib = resident_mib();
    const pid_t flood = flood_start(floods[_i].flood, net.address);
    long most_mib = before_mib;
    for (unsigned i = 0; i < FLOOD_CALLS || counter_at(net.server, floods[_i].counter) < floods[_i].least;
         i++) {
        call_both_ways(&net);
        const long now_mib = i % 64 == 0 ? resident_mib() : 0;
        most_mib = now_mib > most_mib ? now_mib : most_mib;
        ck_assert_msg(most_mib - before_mib <= MEMORY_MIB, "%ld MiB became %ld", before_mib, most_mib);
    }
    ck_assert_uint_lt(open_descriptors(), DESCRIPTORS);
    struct rpc_config config = net_client_config(3, NULL, 0, NULL);
    net_join(&net, &config); /* a worker gets in while the flood goes on */
    call_both_ways(&net);
    flood_stop(flood);
    ck_assert_uint_le(service.left_count, _i < FLOODS_OF_STRANGERS ? 0 : 1);
    ck_assert(service.left_count == 0 || service.left == 2);
    ck_assert_uint_eq(counters_of(net.server).bad, service.left_count);
    net_free(&net);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("rpc_floods");
    TCase *tcase = tcase_create("floods");
    tcase_add_loop_test(tcase, test_flood, 0, FLOODS);
    tcase_set_timeout(tcase, 60);
    suite_add_tcase(suite, tcase);
    return suite_run(suite);
}
