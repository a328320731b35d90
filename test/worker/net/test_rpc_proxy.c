/* Exactly once, shown through a proxy that does to messages what a bad network does.
 *
 * Clients join a server through the proxy (a thread with a ROUTER in front and one DEALER per client behind),
 * which drops, repeats, delays and so reorders requests and replies; only greetings pass untouched. What
 * happens to a message is a function of the seed and of who sent it, to whom, and its request id, so that
 * it is the same in every run whatever the timing. 100,000 calls go in both directions. Each asks for one
 * effect under a number of its own; handlers answer at once, later and out of order, or with a failure. In
 * the end every future has completed once, every effect has counted at most once, and once where its future
 * has a value. */
#include "test/worker/net/net_door.h"
#include "test/worker/net/net_fixture.h"
#include "test/workplace.h"

#include <zmq.h>

enum {
    CLIENTS = 4,
    CALLS_DOWN = 12500, /* to each client */
    CALLS_UP = 12500,   /* of each client */
    CALLS = CLIENTS * (CALLS_DOWN + CALLS_UP),
    /* An end loses its session when it asks while more than REPLIES_HELD_MAX answers wait for it. Answers of
     * calls that have timed out may wait as well. */
    PENDING_MAX = REPLIES_HELD_MAX / 2,
    KEPT_MAX = 4096,
    DEADLINE_MS = 1500,
    WHEEL_SLOTS = 256, /* a delayed message lets up to so many others pass */
};

/* ---- the proxy ---- */

struct parcel {
    struct parcel *next;
    unsigned client;
    bool is_down;
    size_t bytes[2];
    uint8_t *frames[2];
};

struct proxy {
    char front_address[96], back_address[96];
    uint64_t seed;
    pthread_t thread;
    atomic_bool stop;
    void *context, *front, *backs[CLIENTS];
    struct endpoint_zap *door;
    uint8_t ids[CLIENTS][5];
    unsigned client_count;
    struct parcel *wheel[WHEEL_SLOTS];
    unsigned tick;
    unsigned passed, dropped, repeated, delayed;
};

static uint64_t mix(uint64_t x)
{
    x ^= x >> 31;
    x *= UINT64_C(0x7fb5d329728ea185);
    x ^= x >> 27;
    x *= UINT64_C(0x81dadef4bc2dd44d);
    return x ^ x >> 33;
}

static void *proxy_socket(struct proxy *proxy, int type)
{
    int none = 0;
    void *socket = zmq_socket(proxy->context, type);
    zmq_setsockopt(socket, ZMQ_LINGER, &none, sizeof none);
    zmq_setsockopt(socket, ZMQ_SNDHWM, &none, sizeof none);
    zmq_setsockopt(socket, ZMQ_RCVHWM, &none, sizeof none);
    return socket;
}

/* The client behind a front connection; a new one gets a connection of its own to the server. */
static unsigned client_of(struct proxy *proxy, const uint8_t id[5])
{
    unsigned i = 0;
    while (i < proxy->client_count && memcmp(proxy->ids[i], id, 5) != 0)
        i++;
    if (i == proxy->client_count) {
        ck_assert_uint_lt(i, CLIENTS);
        memcpy(proxy->ids[i], id, 5);
        proxy->backs[i] = proxy_socket(proxy, ZMQ_DEALER);
        door_show_pass(proxy->backs[i], (const uint8_t *)NET_SECRET, 0);
        ck_assert_int_eq(zmq_connect(proxy->backs[i], proxy->back_address), 0);
        proxy->client_count++;
    }
    return i;
}

static void deliver(struct proxy *proxy, const struct parcel *parcel)
{
    void *socket = parcel->is_down ? proxy->front : proxy->backs[parcel->client];
    if (parcel->is_down)
        zmq_send(socket, proxy->ids[parcel->client], 5, ZMQ_SNDMORE);
    zmq_send(socket, parcel->frames[0], parcel->bytes[0], ZMQ_SNDMORE);
    zmq_send(socket, parcel->frames[1], parcel->bytes[1], 0);
}

static void parcel_free(struct parcel *parcel)
{
    free(parcel->frames[0]);
    free(parcel->frames[1]);
    free(parcel);
}

/* The wheel turns by one for every message that comes, and when none comes. */
static void turn_wheel(struct proxy *proxy)
{
    proxy->tick = (proxy->tick + 1) % WHEEL_SLOTS;
    struct parcel *parcel = proxy->wheel[proxy->tick];
    proxy->wheel[proxy->tick] = NULL;
    while (parcel != NULL) {
        struct parcel *next = parcel->next;
        deliver(proxy, parcel);
        parcel_free(parcel);
        parcel = next;
    }
}

static void put_on_wheel(struct proxy *proxy, struct parcel *parcel, unsigned delay)
{
    struct parcel **slot = &proxy->wheel[(proxy->tick + delay) % WHEEL_SLOTS];
    parcel->next = *slot;
    *slot = parcel;
}

/* Of 100 messages 5 are dropped, 5 come twice (the second time late), 15 come late. */
static void handle(struct proxy *proxy, struct parcel *parcel)
{
    struct wire_header header;
    ck_assert_int_eq(wire_decode(&header, parcel->frames[0], parcel->bytes[0], parcel->bytes[1], NULL),
                     STATUS_OK);
    uint64_t fate = mix(proxy->seed ^ mix(header.request ^ (uint64_t)header.source << 60 ^
                                          (uint64_t)header.destination << 56 ^ (uint64_t)header.kind << 48));
    unsigned percent = (unsigned)(fate % 100), delay = 1 + (unsigned)(fate >> 32) % (WHEEL_SLOTS - 1);
    turn_wheel(proxy);
    if (header.kind != WIRE_REQUEST && header.kind != WIRE_REPLY)
        percent = 99;
    if (percent < 5) {
        proxy->dropped++;
        parcel_free(parcel);
    } else if (percent < 10) {
        proxy->repeated++;
        deliver(proxy, parcel);
        put_on_wheel(proxy, parcel, delay);
    } else if (percent < 25) {
        proxy->delayed++;
        put_on_wheel(proxy, parcel, percent < 15 ? delay : 1 + delay % 4);
    } else {
        proxy->passed++;
        deliver(proxy, parcel);
        parcel_free(parcel);
    }
}

static bool read_frame(void *socket, struct parcel *parcel, unsigned i)
{
    zmq_msg_t message;
    zmq_msg_init(&message);
    if (zmq_msg_recv(&message, socket, ZMQ_DONTWAIT) < 0)
        return false;
    parcel->bytes[i] = zmq_msg_size(&message);
    parcel->frames[i] = malloc(parcel->bytes[i] + 1);
    memcpy(parcel->frames[i], zmq_msg_data(&message), parcel->bytes[i]);
    zmq_msg_close(&message);
    return true;
}

/* Takes one message from a socket, if there is one. */
static bool take(struct proxy *proxy, void *socket, unsigned client)
{
    uint8_t id[5];
    bool is_down = socket != proxy->front;
    struct parcel *parcel = calloc(1, sizeof *parcel);
    if ((!is_down && zmq_recv(socket, id, sizeof id, ZMQ_DONTWAIT) != sizeof id) ||
        !read_frame(socket, parcel, 0)) {
        free(parcel);
        return false;
    }
    ck_assert(read_frame(socket, parcel, 1));
    parcel->is_down = is_down;
    parcel->client = is_down ? client : client_of(proxy, id);
    handle(proxy, parcel);
    return true;
}

static void *proxy_run(void *arg)
{
    struct proxy *proxy = arg;
    while (!atomic_load(&proxy->stop)) {
        bool any = false;
        for (unsigned i = 0; i < 64 && take(proxy, proxy->front, 0); i++)
            any = true;
        for (unsigned c = 0; c < proxy->client_count; c++)
            for (unsigned i = 0; i < 64 && take(proxy, proxy->backs[c], c); i++)
                any = true;
        if (!any) {
            turn_wheel(proxy);
            usleep(100);
        }
    }
    for (unsigned i = 0; i < WHEEL_SLOTS; i++)
        turn_wheel(proxy);
    for (unsigned i = 0; i < proxy->client_count; i++)
        zmq_close(proxy->backs[i]);
    zmq_close(proxy->front);
    zmq_ctx_term(proxy->context);
    endpoint_zap_free(proxy->door);
    return NULL;
}

static void proxy_start(struct proxy *proxy, const struct net *net, uint64_t seed)
{
    memset(proxy, 0, sizeof *proxy);
    proxy->seed = seed;
    snprintf(proxy->back_address, sizeof proxy->back_address, "%s", net->address);
    snprintf(proxy->front_address, sizeof proxy->front_address, "ipc://%s/proxy", net->folder);
    proxy->context = zmq_ctx_new();
    proxy->front = proxy_socket(proxy, ZMQ_ROUTER);
    proxy->door = door_serve(proxy->context, proxy->front, (const uint8_t *)NET_SECRET, 0);
    ck_assert_int_eq(zmq_bind(proxy->front, proxy->front_address), 0);
    atomic_init(&proxy->stop, false);
    ck_assert_int_eq(pthread_create(&proxy->thread, NULL, proxy_run, proxy), 0);
}

/* ---- the calls ---- */

/* One call: who asked, and what became of it. */
struct entry {
    unsigned effects, completions;
    bool has_value;
};

/* An end: what it asks of others, and what it was asked for and has not answered yet. */
struct end {
    struct rpc *rpc;
    unsigned issued, wanted;
    struct rpc_request *kept[KEPT_MAX];
    unsigned kept_count;
};

static struct entry entries[CALLS];
static struct end ends[1 + CLIENTS];
static unsigned completed;

/* The call's number stands in the args and in the tensor; the answer turns its bits. */
static void answer(struct rpc_request *request)
{
    const struct rpc_message *message = rpc_request_message(request);
    uint64_t number = message->args[0];
    if (number % 11 == 0) {
        rpc_fail(request, STATUS_CORRUPT, "call %llu", (unsigned long long)number);
        return;
    }
    uint32_t value = ~(uint32_t)number;
    rpc_reply(request, &(struct rpc_message){.args = {~number},
                                             .tensor_count = 1,
                                             .tensors = {{WIRE_U32, 1, .dims = {1}}},
                                             .data = {&value}});
}

static void on_call(void *context, struct rpc_request *request, const struct rpc_message *message)
{
    struct end *end = context;
    uint64_t number = message->args[0];
    uint32_t again;
    memcpy(&again, message->data[0], sizeof again);
    ck_assert_uint_lt(number, CALLS);
    ck_assert_uint_eq(again, number);
    entries[number].effects++;
    if (number % 7 != 0 || end->kept_count == KEPT_MAX)
        answer(request);
    else
        end->kept[end->kept_count++] = request;
}

/* Answers some of what was kept, from anywhere in the row. */
static void answer_kept(struct end *end, unsigned most)
{
    for (unsigned i = 0; i < most && end->kept_count > 0; i++) {
        unsigned at = (unsigned)(mix(end->kept_count * 31 + i) % end->kept_count);
        answer(end->kept[at]);
        end->kept[at] = end->kept[--end->kept_count];
    }
}

static void on_completed(struct future *future, void *arg)
{
    struct entry *entry = arg;
    uint64_t number = (uint64_t)(entry - entries);
    const struct rpc_message *value = future_value(future);
    enum status status = future_status(future);
    entry->completions++;
    completed++;
    if (status == STATUS_OK) {
        uint32_t got;
        memcpy(&got, value->data[0], sizeof got);
        ck_assert_uint_eq(value->args[0], ~number);
        ck_assert_uint_eq(got, ~(uint32_t)number);
        ck_assert_uint_ne(number % 11, 0);
        entry->has_value = true;
    } else if (status == STATUS_CORRUPT) {
        char text[32];
        snprintf(text, sizeof text, "call %llu", (unsigned long long)number);
        ck_assert_str_eq(future_text(future), text);
        ck_assert_uint_eq(entry->effects, 1);
    } else {
        ck_assert_msg(status == STATUS_TIMEOUT, "status %d: %s", status, future_text(future));
    }
}

/* Calls until the peer's queue is full, at most `most` times. Every call's number is its entry's place. */
static void issue(struct end *end, unsigned first_number, unsigned most)
{
    bool is_server = end == &ends[0];
    for (unsigned i = 0; i < most && end->issued < end->wanted; i++) {
        uint32_t number = first_number + end->issued;
        struct rpc_message message = {
            .args = {number}, .tensor_count = 1, .tensors = {{WIRE_U32, 1, .dims = {1}}}, .data = {&number}};
        struct error error = {0};
        uint16_t worker = is_server ? (uint16_t)(1 + end->issued % CLIENTS) : 0;
        enum status status =
            rpc_call_then(end->rpc, worker, is_server ? METHOD_RUN_EPISODE : METHOD_STEP, &message,
                          net_in_ms(DEADLINE_MS), on_completed, &entries[number], NULL, &error);
        if (status == STATUS_BUSY)
            return;
        ck_assert_msg(status == STATUS_OK, "%s", error.text);
        end->issued++;
    }
}

static const struct rpc_method server_methods[] = {{.method = METHOD_STEP,
                                                    .callers = WIRE_ROLE_OBSERVER,
                                                    .dtype = WIRE_U32,
                                                    .elements_max = 1,
                                                    .handler = on_call}};
static const struct rpc_method client_methods[] = {{.method = METHOD_RUN_EPISODE,
                                                    .callers = WIRE_ROLE_AGENT,
                                                    .dtype = WIRE_U32,
                                                    .elements_max = 1,
                                                    .handler = on_call}};

static void start(struct net *net, struct proxy *proxy, uint64_t seed)
{
    struct rpc_config config = net_server_config(server_methods, 1, &ends[0]);
    config.pending_max = PENDING_MAX;
    config.incoming_max = KEPT_MAX;
    net_serve(net, &config);
    proxy_start(proxy, net, seed);
    ends[0].rpc = net->server;
    ends[0].wanted = CLIENTS * CALLS_DOWN;
    char direct[sizeof net->address];
    memcpy(direct, net->address, sizeof direct);
    memcpy(net->address, proxy->front_address, sizeof net->address);
    for (unsigned i = 1; i <= CLIENTS; i++) {
        config = net_client_config((uint16_t)i, client_methods, 1, &ends[i]);
        config.pending_max = PENDING_MAX;
        config.incoming_max = KEPT_MAX;
        ends[i].rpc = net_join(net, &config);
        ends[i].wanted = CALLS_UP;
    }
    memcpy(net->address, direct, sizeof direct);
}

static void run_calls(void)
{
    while (completed < CALLS) {
        for (unsigned i = 0; i <= CLIENTS; i++) {
            unsigned first = i == 0 ? 0 : CLIENTS * CALLS_DOWN + (i - 1) * CALLS_UP;
            issue(&ends[i], first, i == 0 ? 64 : 16);
            ck_assert_int_eq(rpc_turn(ends[i].rpc, (struct monotime){1}), STATUS_OK);
            answer_kept(&ends[i], 1 + ends[i].kept_count / 2);
        }
    }
}

static void judge(const struct net *net, const struct proxy *proxy)
{
    unsigned values = 0, effects = 0;
    for (unsigned i = 0; i < CALLS; i++) {
        const struct entry *entry = &entries[i];
        ck_assert_msg(entry->completions == 1, "call %u completed %u times", i, entry->completions);
        ck_assert_msg(entry->effects <= 1, "call %u took effect %u times", i, entry->effects);
        ck_assert_msg(!entry->has_value || entry->effects == 1, "call %u has a value and no effect", i);
        values += entry->has_value;
        effects += entry->effects;
    }
    struct rpc_counters sum = {0}, one;
    for (unsigned i = 0; i <= CLIENTS; i++) {
        rpc_counters(i == 0 ? net->server : net->clients[i - 1], &one);
        sum.bad += one.bad;
        sum.duplicates += one.duplicates;
        sum.stale += one.stale;
        sum.timeouts += one.timeouts;
    }
    printf("%d calls: %u values, %u effects, %llu timeouts; %u messages dropped, %u repeated (%llu requests "
           "recognized), %u delayed; %llu replies to nobody\n",
           CALLS, values, effects, (unsigned long long)sum.timeouts, proxy->dropped, proxy->repeated,
           (unsigned long long)sum.duplicates, proxy->delayed, (unsigned long long)sum.stale);
    ck_assert_uint_eq(sum.bad, 0);
    ck_assert_uint_gt(values, 0);
    ck_assert_uint_gt(effects, values);
    ck_assert_uint_gt(proxy->dropped, CALLS / 40);
    ck_assert_uint_gt(proxy->repeated, CALLS / 40);
    ck_assert_uint_gt(proxy->delayed, CALLS / 10);
    ck_assert_uint_ge(sum.timeouts, CALLS / 40);
    ck_assert_uint_gt(sum.duplicates, 0);
    ck_assert_uint_gt(sum.stale, 0);
}

START_TEST(test_exactly_once)
{
    static struct net net;
    static struct proxy proxy;
    start(&net, &proxy, 20231);
    run_calls();
    atomic_store(&proxy.stop, true);
    pthread_join(proxy.thread, NULL);
    judge(&net, &proxy);
    net_free(&net);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("rpc_proxy");
    TCase *tcase = tcase_create("proxy");
    tcase_add_test(tcase, test_exactly_once);
    tcase_set_timeout(tcase, 150);
    suite_add_tcase(suite, tcase);
    return suite_run(suite);
}
