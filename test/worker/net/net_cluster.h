/* Three servers and two clients that all call each other, in one process, for the tests of several sessions
 * at a time: each member but the last binds, and dials all members of lower numbers that are up. Everything
 * runs on the test's thread; only while a join or a dial blocks, another thread turns the members that are
 * up. For test programs, which each use what they need. */
#ifndef TEST_WORKER_NET_NET_CLUSTER_H
#define TEST_WORKER_NET_NET_CLUSTER_H

#include "test/worker/net/net_fixture.h"

enum { SERVERS = 3, CLIENTS = 2, MEMBERS = SERVERS + CLIENTS };

enum { BYE_MS = 3000 }; /* a loaded machine takes long to shake hands, and BYE waits for that */

static const uint8_t cluster_roster[MEMBERS] = {WIRE_ROLE_PSERVER, WIRE_ROLE_PSERVER, WIRE_ROLE_PSERVER,
                                                WIRE_ROLE_TRAINER, WIRE_ROLE_TRAINER};

/* What a call's args[0] asks of whom it reaches. */
enum { DO_ANSWER = 0, DO_KEEP = 1 };

struct member {
    uint16_t worker;
    struct rpc *rpc;
    bool calls_back; /* a server: calls a client as soon as it has joined */
    struct future *call_back;
    unsigned calls, joined, left; /* the last two: bits by worker */
    uint16_t last_source;
    struct rpc_request *kept;
    enum status left_why;
    char left_text[MEMBERS][128]; /* what each gave as its reason */
};

struct cluster {
    char folder[64], addresses[MEMBERS][96];
    struct member members[MEMBERS];
    pthread_t thread;
    unsigned turned; /* by that thread: the members below this one */
    atomic_bool stop;
};

/* Every method of every member: answers who it is, and the second argument as it came. */
static inline void on_call(void *context, struct rpc_request *request, const struct rpc_message *message)
{
    struct member *member = context;
    member->calls++;
    member->last_source = rpc_request_source(request);
    if (message->args[0] == DO_KEEP)
        member->kept = request;
    else
        rpc_reply(request, &(struct rpc_message){.args = {member->worker, message->args[1]}});
}

static inline struct future *call_with(struct member *from, uint16_t to, enum wire_method method,
                                       uint64_t what, uint64_t number, struct monotime deadline)
{
    struct future *future = NULL;
    struct error error = {0};
    struct rpc_message message = {.args = {what, number}};
    enum status status = rpc_call_async(from->rpc, to, method, &message, deadline, &future, &error);
    ck_assert_msg(status == STATUS_OK, "%s", error.text);
    return future;
}

static inline struct future *call(struct member *from, uint16_t to, enum wire_method method, uint64_t number)
{
    return call_with(from, to, method, DO_ANSWER, number, MONOTIME_NEVER);
}

static inline void on_member_joined(void *context, uint16_t worker)
{
    struct member *member = context;
    member->joined |= 1u << worker;
    if (member->calls_back)
        member->call_back = call(member, worker, METHOD_EVALUATE, 77);
}

static inline void on_member_left(void *context, uint16_t worker, enum status why, const char *text)
{
    struct member *member = context;
    member->left |= 1u << worker;
    member->left_why = why;
    snprintf(member->left_text[worker], sizeof member->left_text[worker], "%s", text);
}

static const struct rpc_method cluster_server_methods[] = {
    {.method = METHOD_GET_MODEL, .callers = WIRE_ROLE_TRAINER, .handler = on_call},
    {.method = METHOD_SAVE_SHARD, .callers = WIRE_ROLE_PSERVER, .handler = on_call}};
static const struct rpc_method cluster_client_methods[] = {
    {.method = METHOD_EVALUATE, .callers = WIRE_ROLE_PSERVER, .handler = on_call}};

static inline struct rpc_config cluster_config(struct member *member)
{
    bool is_server = member->worker < SERVERS;
    return (struct rpc_config){
        .worker = member->worker,
        .role = cluster_roster[member->worker],
        .incarnation = 1,
        .generation = 1,
        .roster = cluster_roster,
        .workers = MEMBERS,
        .secret = NET_SECRET,
        .pending_max = 64,
        .incoming_max = 64,
        .methods = is_server ? cluster_server_methods : cluster_client_methods,
        .method_count = is_server ? 2 : 1,
        .context = member,
        .joined = on_member_joined,
        .left = on_member_left,
        .welcome = member->worker == 0 ? "{\"server\":0}" : "{\"server\":1}",
        .welcome_bytes = is_server ? strlen("{\"server\":0}") : 0,
    };
}

static inline struct rpc_address cluster_address(const struct cluster *cluster, uint16_t worker)
{
    return (struct rpc_address){.worker = worker, .address = cluster->addresses[worker]};
}

static inline void *cluster_turner(void *arg)
{
    struct cluster *cluster = arg;
    while (!atomic_load(&cluster->stop))
        for (unsigned i = 0; i < cluster->turned; i++)
            if (cluster->members[i].rpc != NULL)
                rpc_turn(cluster->members[i].rpc, net_in_ms(1));
    return NULL;
}

/* Turns the first `count` members on another thread. */
static inline void cluster_turner_start(struct cluster *cluster, unsigned count)
{
    cluster->turned = count;
    atomic_init(&cluster->stop, false);
    ck_assert_int_eq(pthread_create(&cluster->thread, NULL, cluster_turner, cluster), 0);
}

static inline void cluster_turner_stop(struct cluster *cluster)
{
    atomic_store(&cluster->stop, true);
    pthread_join(cluster->thread, NULL);
}

static inline void cluster_make_addresses(struct cluster *cluster)
{
    memset(cluster, 0, sizeof *cluster);
    snprintf(cluster->folder, sizeof cluster->folder, "/tmp/net-test-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(cluster->folder));
    for (unsigned i = 0; i < MEMBERS; i++)
        snprintf(cluster->addresses[i], sizeof cluster->addresses[i], "ipc://%s/%u", cluster->folder, i);
    for (unsigned i = 0; i < MEMBERS; i++)
        cluster->members[i].worker = (uint16_t)i;
}

static inline enum status cluster_try_join(struct cluster *cluster, const struct rpc_config *config,
                                           struct rpc **out, struct monotime deadline, struct error *error)
{
    struct rpc_address below[MEMBERS];
    size_t count = 0;
    const char *address = config->worker < MEMBERS - 1 ? cluster->addresses[config->worker] : NULL;
    for (uint16_t i = 0; i < config->worker; i++)
        if (i < SERVERS || cluster->members[i].rpc != NULL)
            below[count++] = cluster_address(cluster, i);
    struct rpc *rpc;
    enum status status = rpc_open(&rpc, config, address, error);
    if (status != STATUS_OK)
        return status;
    cluster_turner_start(cluster, config->worker);
    status = rpc_dial(rpc, below, count, deadline, error);
    cluster_turner_stop(cluster);
    if (status != STATUS_OK)
        rpc_free(rpc, "this worker could not join all of its peers", BYE_MS);
    else
        *out = rpc;
    return status;
}

static inline void cluster_serve(struct cluster *cluster, uint16_t worker, const struct rpc_config *config)
{
    struct error error = {0};
    struct rpc *rpc;
    enum status status = cluster_try_join(cluster, config, &rpc, net_in_ms(5000), &error);
    ck_assert_msg(status == STATUS_OK, "%s", error.text);
    cluster->members[worker].rpc = rpc;
}

static inline void cluster_join(struct cluster *cluster, uint16_t worker)
{
    struct rpc_config config = cluster_config(&cluster->members[worker]);
    cluster_serve(cluster, worker, &config);
}

static inline void cluster_start(struct cluster *cluster, unsigned clients)
{
    cluster_make_addresses(cluster);
    for (unsigned i = 0; i < SERVERS; i++) {
        struct rpc_config config = cluster_config(&cluster->members[i]);
        cluster_serve(cluster, i, &config);
    }
    for (unsigned i = 0; i < clients; i++)
        cluster_join(cluster, (uint16_t)(SERVERS + i));
}

static inline void cluster_turn(struct cluster *cluster)
{
    for (unsigned i = 0; i < MEMBERS; i++)
        if (cluster->members[i].rpc != NULL)
            rpc_turn(cluster->members[i].rpc, net_in_ms(1));
}

static inline enum status cluster_await(struct cluster *cluster, struct future *future)
{
    UNTIL(future_done(future), cluster_turn(cluster));
    return future_status(future);
}

/* The answer of member `from` to `number`; released. */
static inline void cluster_expect(struct cluster *cluster, struct future *future, uint16_t from,
                                  uint64_t number)
{
    ck_assert_int_eq(cluster_await(cluster, future), STATUS_OK);
    ck_assert_uint_eq(future_value(future)->args[0], from);
    ck_assert_uint_eq(future_value(future)->args[1], number);
    future_release(future);
}

static inline void cluster_expect_failure(struct cluster *cluster, struct future *future, enum status status,
                                          const char *text)
{
    ck_assert_int_eq(cluster_await(cluster, future), status);
    ck_assert_msg(strstr(future_text(future), text) != NULL, "\"%s\" is not in \"%s\"", text,
                  future_text(future));
    future_release(future);
}

/* Turns all until member `worker` has taken a call with DO_KEEP, and returns it. */
static inline struct rpc_request *cluster_await_kept(struct cluster *cluster, uint16_t worker)
{
    UNTIL(cluster->members[worker].kept != NULL, cluster_turn(cluster));
    return cluster->members[worker].kept;
}

/* Turns all until member `worker` has been left by those in `mask`. */
static inline void cluster_await_left(struct cluster *cluster, uint16_t worker, unsigned mask)
{
    UNTIL((cluster->members[worker].left & mask) == mask, cluster_turn(cluster));
    ck_assert_uint_eq(cluster->members[worker].left & mask, mask);
}

static inline void cluster_end(struct cluster *cluster, uint16_t worker, const char *why, int linger_ms)
{
    rpc_free(cluster->members[worker].rpc, why, linger_ms);
    cluster->members[worker].rpc = NULL;
}

static inline void cluster_free(struct cluster *cluster)
{
    for (unsigned i = MEMBERS; i-- > 0;)
        cluster_end(cluster, i, "the test is over", 0);
    rmdir(cluster->folder);
}

static inline struct rpc_counters counters_of_member(const struct member *member)
{
    struct rpc_counters counters;
    rpc_counters(member->rpc, &counters);
    return counters;
}

#endif
