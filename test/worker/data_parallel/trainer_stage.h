/* Parameter servers and a supervisor played by a test, for the real binary as a trainer: the second of two.
 *
 * A version's values are drawn, by its number, into the slots of a segment or of memory that messages are
 * read from. The trainer's gradients must have the bits of a tape in this process with the same version
 * and batch. Everything runs on the test's thread. */
#ifndef TEST_WORKER_DATA_PARALLEL_TRAINER_STAGE_H
#define TEST_WORKER_DATA_PARALLEL_TRAINER_STAGE_H

#include "kernels/params/gradients.h"
#include "test/worker/data/data_fixture.h"
#include "worker/control.h"
#include "worker/data_parallel/bfloat16.h"
#include "worker/data_parallel/evaluation.h"
#include "worker/data_parallel/shards.h"
#include "worker/net/rpc.h"
#include "worker/net/segment.h"
#include "worker/worker.h"

#include <check.h>
#include <limits.h>
#include <math.h>
#include <signal.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SERVERS_MAX = 2, TRAINERS = 2, NUMBER = 1, WORKERS_MAX = SERVERS_MAX + TRAINERS, BATCH = 3 };
enum { IMAGES = 24, HELD_OUT = 7, BASE = 4, STEP = 3, PATIENCE_US = 60000000 };

#define JOB                                                                                                  \
    "{\"kind\":\"parameter-server\",\"device\":\"%s\",\"transport\":%s,\"seed\":9,"                          \
    "\"model\":{\"name\":\"resnet18\",\"classes\":10,\"width\":8},"                                          \
    "\"trainers\":{\"count\":2,\"batch\":3,\"threads\":1},\"server\":{\"count\":%u,\"round\":\"%s\"},"       \
    "\"loss\":{\"name\":\"cross_entropy\"},\"data\":{\"kind\":\"idx\",\"path\":\"%s\",\"size\":16},"         \
    "\"evaluation\":{\"batch\":2},\"stop\":{\"updates\":9}}"

/* One server. Its image has two slots; the version v lies in slot v % 2. */
struct server {
    struct rpc *rpc;
    uint64_t version, step; /* what GET_MODEL tells */
    uint32_t gets;          /* that asked for no elements */
    uint64_t asked;         /* the version of the last one */
    struct rpc_request *push;
    uint64_t args[WIRE_ARGS]; /* of that */
    unsigned char *slots;     /* shared: a segment's, written in the server's own range */
};

/* A network in memory of the test's own. */
struct twin {
    struct params *params;
    struct gradients *gradients;
    struct classifier *classifier;
    struct tape *tape;
};

static struct stage {
    uint32_t servers;
    bool shared;
    bool far[SERVERS_MAX];     /* this server is on another host than the trainer */
    bool rounds;               /* gradients travel as bfloat16 */
    float *kept;               /* (elements) the errors that the trainer must have kept */
    bool travels[SERVERS_MAX]; /* elements travel between the trainer and this server */
    struct host_keys keys;     /* of the far servers' host */
    int16_t host_of_worker[WORKERS_MAX];
    char text[1024]; /* the job's */
    struct control_start start;
    int control; /* the supervisor's end */
    pid_t trainer;
    int segments[WORKERS_MAX];
    struct server server[SERVERS_MAX];
    struct shard shards[SERVERS_MAX];
    size_t parameters, elements, image_bytes;
    const float *outbox;      /* the trainer's segment; NULL: not there yet */
    float *inbox;             /* (elements) inline: the contribution in pieces */
    size_t pieces;            /* elements of it that came */
    size_t left[SERVERS_MAX]; /* parameters below this one have not come from the present step */
    uint64_t inbox_step;
    struct twin model; /* what servers write versions with: as the image lies */
    struct twin twin;  /* what computes here */
    struct backend *backend;
    struct loader *loader; /* gives the trainer's batches */
    struct control_message message;
} stage;

static struct error error;

static inline void ok(enum status status)
{
    ck_assert_msg(status == STATUS_OK, "%s: %s", status_name(status), error.text);
}

/* ---- the model ---- */

static inline void twin_open(struct twin *twin)
{
    ok(params_new(&twin->params, stage.backend, &error));
    ok(tape_new(&twin->tape, stage.backend, &error));
    ok(classifier_new(&twin->classifier, &data.job, twin->params, &error));
}

static inline void twin_close(struct twin *twin)
{
    tape_free(twin->tape);
    gradients_free(twin->gradients);
    classifier_free(twin->classifier);
    params_free(twin->params);
}

static inline void open_models(void)
{
    const struct backend_settings settings = {.threads = 1};
    ok(backend_load(&stage.backend, "onednn", &settings, &error));
    twin_open(&stage.twin);
    ok(classifier_build(stage.twin.classifier, stage.twin.tape, &error));
    ok(gradients_new(&stage.twin.gradients, stage.twin.params, &error));
    twin_open(&stage.model);
    ok(params_lay_out(stage.model.params, &error));
    if (image_reordered(&data.job))
        ok(classifier_reorder(stage.model.classifier, stage.model.tape, &error));
    stage.parameters = params_elements(stage.model.params);
    stage.elements = image_elements(stage.model.params);
    stage.image_bytes = image_bytes(stage.model.params);
    ok(shards_of(stage.shards, stage.model.params, stage.servers, &error));
    for (uint32_t i = 0; i < stage.servers; i++)
        stage.left[i] = stage.shards[i].end;
}

static inline float *slot_of(uint32_t server, uint64_t version)
{
    return (float *)(void *)(stage.server[server].slots + version % 2 * stage.image_bytes);
}

/* The version's values are drawn, by its number. */
static inline void write_version(uint64_t version)
{
    struct params *params = stage.model.params;
    for (uint32_t i = 0; i < stage.servers; i++)
        params_place(params, stage.shards[i].entry_first, stage.shards[i].entry_end, slot_of(i, version));
    params_place_buffers(params, slot_of(0, version) + stage.parameters);
    ok(params_begin(params, version, 0, params_count(params), &error));
}

/* ---- what the trainer calls ---- */

static inline struct server *server_of(void *context)
{
    return context;
}

static inline struct rpc_message model_message(uint32_t server, uint64_t version, uint64_t step,
                                               uint64_t flags)
{
    const bool travels = stage.travels[server];
    return (struct rpc_message){
        .args = {[MODEL_VERSION] = version,
                 [MODEL_OFFSET] = travels ? PARAMETER_SERVER_NOWHERE : version % 2 * stage.image_bytes,
                 [MODEL_STEP] = step,
                 [MODEL_FLAGS] = flags}};
}

static inline void get_model(void *context, struct rpc_request *request, const struct rpc_message *message)
{
    struct server *server = server_of(context);
    const uint32_t number = (uint32_t)(server - stage.server);
    const uint64_t first = message->args[GET_FIRST], count = message->args[GET_COUNT];
    uint64_t version = message->args[GET_VERSION];
    ck_assert_uint_eq(message->args[GET_FINGERPRINT], params_fingerprint(stage.model.params));
    if (count == 0) {
        server->gets++;
        server->asked = version;
    }
    version = version == PARAMETER_SERVER_NEWEST ? server->version : version;
    struct rpc_message value = model_message(number, version, server->step, 0);
    if (count > 0) {
        const struct shard *shard = &stage.shards[number];
        ck_assert(stage.travels[number]);
        ck_assert_uint_le(count, PARAMETER_SERVER_CHUNK_ELEMENTS_MAX);
        ck_assert((first >= shard->first && first + count <= shard->end) ||
                  (first >= shard->statistics_first && first + count <= shard->statistics_end));
        value.tensor_count = 1;
        value.tensors[0] = (struct wire_tensor){WIRE_F32, 1, .dims = {(uint32_t)count}};
        value.data[0] = slot_of(number, version) + first;
    }
    rpc_reply(request, &value);
}

/* Gradients come from the last element down, as a backward pass finishes them, and the statistics last. */
static inline void expect_downwards(uint32_t number, uint64_t first, uint64_t count)
{
    const struct shard *shard = &stage.shards[number];
    size_t *left = &stage.left[number];
    if (first >= shard->statistics_first) {
        ck_assert_uint_eq(*left, shard->first);
        return;
    }
    if (*left == shard->first)
        *left = shard->end;
    ck_assert_uint_eq(first + count, *left);
    *left = first;
}

static inline void push_chunk(void *context, struct rpc_request *request, const struct rpc_message *message)
{
    const uint32_t number = (uint32_t)(server_of(context) - stage.server);
    const struct shard *shard = &stage.shards[number];
    const uint64_t first = message->args[CHUNK_FIRST], count = message->tensors[0].dims[0];
    ck_assert(stage.travels[number] && stage.inbox != NULL);
    ck_assert((first >= shard->first && first + count <= shard->end) ||
              (first >= shard->statistics_first && first + count <= shard->statistics_end));
    expect_downwards(number, first, count);
    const bool is_rounded = stage.rounds && first < shard->statistics_first;
    ck_assert_uint_eq(message->tensors[0].dtype, is_rounded ? WIRE_BF16 : WIRE_F32);
    if (is_rounded)
        bfloat16_widen(stage.inbox + first, message->data[0], count);
    else
        memcpy(stage.inbox + first, message->data[0], count * sizeof *stage.inbox);
    stage.pieces += count;
    stage.inbox_step = message->args[CHUNK_STEP];
    rpc_reply(request, NULL);
}

static inline void push_pull(void *context, struct rpc_request *request, const struct rpc_message *message)
{
    struct server *server = server_of(context);
    ck_assert_ptr_null(server->push);
    server->push = request;
    memcpy(server->args, message->args, sizeof server->args);
}

static const struct rpc_method methods[] = {
    {.method = METHOD_GET_MODEL, .callers = WIRE_ROLE_TRAINER, .handler = get_model},
    {.method = METHOD_PUSH_CHUNK, .callers = WIRE_ROLE_TRAINER, .any_tensors = true, .handler = push_chunk},
    {.method = METHOD_PUSH_PULL, .callers = WIRE_ROLE_TRAINER, .handler = push_pull}};

/* ---- opening and closing ---- */

/* Descriptors far from those that the trainer wants its own at. */
static inline int high(int fd)
{
    int moved = fcntl(fd, F_DUPFD_CLOEXEC, 100);
    ck_assert_int_ge(moved, 100);
    close(fd);
    return moved;
}

/* The CPU's plug-in, and one that plays a device, where the trainer will look for its own. */
static inline void link_plugins(const char *program)
{
    char from[PATH_MAX + 64];
    const int folder = (int)(strrchr(program, '/') - program);
    snprintf(from, sizeof from, "%.*s/libcoalesced-onednn.so", folder, program);
    ck_assert_int_eq(symlink(from, data_path("libcoalesced-onednn.so")), 0);
    snprintf(from, sizeof from, "%.*s/test/preload/plugin_aloof.so", folder, program);
    ck_assert_msg(access(from, R_OK) == 0, "%s is not there", from);
    ck_assert_int_eq(symlink(from, data_path("libcoalesced-cuda.so")), 0);
}

/* The keys of host 0, that of the far servers, or of host 1, the trainer's. */
static inline struct host_keys keys_of(uint16_t host)
{
    static const uint8_t shared[HOST_KEY_BYTES] = "the hosts of a test share this";
    struct host_keys keys;
    ck_assert_int_ge(sodium_init(), 0);
    host_keys_derive(&keys, shared, host, 2);
    return keys;
}

static inline void start_trainer(const char *program)
{
    int line[2];
    if (data.job.device != JOB_DEVICE_CPU) {
        link_plugins(program);
        setenv("COALESCED_PLUGINS", data.folder, 1);
    }
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, line), 0);
    stage.control = high(line[0]);
    line[1] = high(line[1]);
    stage.trainer = fork();
    if (stage.trainer == 0) {
        dup2(line[1], CONTROL_FD);
        for (uint32_t i = 0; i < stage.servers + TRAINERS; i++)
            dup2(stage.segments[i], SEGMENT_FD_FIRST + (int)i);
        execl(program, "coalesced", "worker", "--role", "trainer", "--index", "1", (char *)NULL);
        _exit(120);
    }
    close(line[1]);
}

static inline void tell(enum control_kind kind, const void *body, size_t bytes)
{
    if (control_send(stage.control, kind, body, bytes) == STATUS_OK)
        return;
    while (control_receive(stage.control, false, &stage.message) == STATUS_OK)
        if (stage.message.kind == CONTROL_FAILED)
            ck_abort_msg("the trainer has ended: %.300s", stage.message.body.failed.text);
    ck_abort_msg("the trainer has ended");
}

static inline void tell_start(void)
{
    char body[sizeof stage.start + sizeof stage.text];
    stage.start = (struct control_start){.worker = (uint16_t)(stage.servers + NUMBER),
                                         .role = WIRE_ROLE_TRAINER,
                                         .incarnation = 1,
                                         .generation = 1,
                                         .keys = keys_of(1)};
    snprintf(stage.start.address, sizeof stage.start.address, "ipc://%s/sock", data.folder);
    memcpy(body, &stage.start, sizeof stage.start);
    memcpy(body + sizeof stage.start, stage.text, strlen(stage.text) + 1);
    tell(CONTROL_START, body, sizeof stage.start + strlen(stage.text));
}

static inline void serve(uint32_t number)
{
    static const uint8_t rosters[SERVERS_MAX][WORKERS_MAX] = {
        {WIRE_ROLE_PSERVER, WIRE_ROLE_TRAINER, WIRE_ROLE_TRAINER},
        {WIRE_ROLE_PSERVER, WIRE_ROLE_PSERVER, WIRE_ROLE_TRAINER, WIRE_ROLE_TRAINER}};
    char address[CONTROL_ADDRESS_BYTES + 4];
    snprintf(address, sizeof address, "%s.%u", stage.start.address, number);
    struct rpc_config config = {.worker = (uint16_t)number,
                                .role = WIRE_ROLE_PSERVER,
                                .incarnation = 1,
                                .generation = 1,
                                .roster = rosters[stage.servers - 1],
                                .workers = stage.servers + TRAINERS,
                                .pending_max = 4,
                                .incoming_max = 16,
                                .methods = methods,
                                .method_count = sizeof methods / sizeof methods[0],
                                .context = &stage.server[number],
                                .welcome = stage.text,
                                .welcome_bytes = strlen(stage.text)};
    if (stage.far[number]) {
        config.keys = &stage.keys;
        config.host_of_worker = stage.host_of_worker;
        config.far_address = "tcp://127.0.0.1:*";
    }
    ok(rpc_open(&stage.server[number].rpc, &config, address, &error));
}

static inline void open_slots(uint32_t number)
{
    struct server *server = &stage.server[number];
    const size_t bytes = 2 * stage.image_bytes;
    server->version = BASE;
    server->step = STEP;
    if (!stage.shared) {
        server->slots = number == 0 ? aligned_alloc(64, bytes) : stage.server[0].slots;
        ck_assert_ptr_nonnull(server->slots);
        memset(server->slots, 0, bytes);
        return;
    }
    ck_assert_int_eq(ftruncate(stage.segments[number], (off_t)bytes), 0);
    server->slots = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, stage.segments[number], 0);
    ck_assert_ptr_ne(server->slots, MAP_FAILED);
    ck_assert_int_eq(fcntl(stage.segments[number], F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW), 0);
}

/* The trainer has START, its servers can be joined; it was not told so yet. `transport`: one of the job's; or
 * "far shared", "far inline", "far rounded" (shared, gradients as bfloat16): with all servers on another
 * host; or "mixed": shared, with the last server on another host. */
static inline void open_stage(const char *transport, uint32_t servers, const char *round, const char *device)
{
    char *problems;
    const char *program = daemon_path();
    stage = (struct stage){.servers = servers, .keys = keys_of(0)};
    stage.shared = strcmp(transport, "inline") != 0 && strcmp(transport, "far inline") != 0;
    memset(stage.host_of_worker, -1, sizeof stage.host_of_worker);
    stage.host_of_worker[servers + NUMBER] = 1;
    for (uint32_t i = 0; i < servers; i++) {
        stage.far[i] = transport[0] == 'f' || (transport[0] == 'm' && i + 1 == servers);
        stage.travels[i] = stage.far[i] || !stage.shared;
    }
    data_open();
    idx_write(IMAGES, HELD_OUT);
    stage.rounds = strcmp(transport, "far rounded") == 0;
    transport = stage.rounds ? "{\"precision\":\"bfloat16\"}" : stage.shared ? "\"shared\"" : "\"inline\"";
    snprintf(stage.text, sizeof stage.text, JOB, device, transport, servers, round, data.folder);
    enum status status = job_parse(&data.job, stage.text, strlen(stage.text), "job", NULL, 0, &problems);
    ck_assert_msg(status == STATUS_OK, "%s", problems);
    for (uint32_t i = 0; i < servers + TRAINERS; i++)
        stage.segments[i] = high(memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    start_trainer(program);
    tell_start();
    open_models();
    for (uint32_t i = 0; i < servers; i++) {
        open_slots(i);
        serve(i);
    }
    stage.inbox = calloc(stage.elements, sizeof *stage.inbox);
    stage.kept = calloc(stage.elements, sizeof *stage.kept);
    ck_assert_ptr_nonnull(stage.inbox);
    ck_assert_ptr_nonnull(stage.kept);
    stage.loader = data_loader(DATASET_TRAIN, NUMBER, TRAINERS, STEP);
    write_version(BASE);
}

static inline void close_stage(void)
{
    for (uint32_t i = 0; i < stage.servers; i++) {
        rpc_free(stage.server[i].rpc, "the test is over", 0);
        if (stage.shared)
            munmap(stage.server[i].slots, 2 * stage.image_bytes);
    }
    if (!stage.shared)
        free(stage.server[0].slots);
    if (stage.outbox != NULL)
        munmap((void *)(uintptr_t)stage.outbox, stage.image_bytes);
    for (uint32_t i = 0; i < stage.servers + TRAINERS; i++)
        close(stage.segments[i]);
    close(stage.control);
    loader_free(stage.loader);
    twin_close(&stage.twin);
    twin_close(&stage.model);
    backend_close(stage.backend);
    free(stage.inbox);
    free(stage.kept);
    data_close();
}

/* ---- waiting ---- */

static inline void turn(void)
{
    for (uint32_t i = 0; i < stage.servers; i++)
        rpc_turn(stage.server[i].rpc, monotime_add_us(monotime_now(), 1000));
}

#define TURN_UNTIL(condition)                                                                                \
    do {                                                                                                     \
        const struct monotime until = monotime_add_us(monotime_now(), PATIENCE_US);                          \
        bool came;                                                                                           \
        while (!(came = (condition)) && monotime_before(monotime_now(), until))                              \
            turn();                                                                                          \
        ck_assert_msg(came, "never came: " #condition);                                                      \
    } while (0)

static inline bool all_pushed(void)
{
    for (uint32_t i = 0; i < stage.servers; i++)
        if (stage.server[i].push == NULL)
            return false;
    return true;
}

/* Whether a report of this kind has come; the beats are passed over. */
static inline bool has_reported(enum control_kind kind)
{
    while (control_receive(stage.control, false, &stage.message) == STATUS_OK) {
        if (stage.message.kind == kind)
            return true;
        ck_assert_msg(stage.message.kind == CONTROL_BEAT, "report %u, not %u: %.300s", stage.message.kind,
                      kind, stage.message.kind == CONTROL_FAILED ? stage.message.body.failed.text : "");
    }
    return false;
}

/* The trainer learns where to dial the servers of another host. */
static inline void tell_far_servers(void)
{
    struct control_far far[SERVERS_MAX];
    size_t count = 0;
    for (uint32_t i = 0; i < stage.servers; i++) {
        if (!stage.far[i])
            continue;
        far[count] = (struct control_far){.worker = (uint16_t)i, .host = 0};
        snprintf(far[count++].address, sizeof far[0].address, "tcp://127.0.0.1:%u",
                 rpc_far_port(stage.server[i].rpc));
    }
    if (count > 0)
        tell(CONTROL_FAR, far, count * sizeof far[0]);
}

static inline void begin(void)
{
    tell_far_servers();
    tell(CONTROL_CONNECT, NULL, 0);
    TURN_UNTIL(has_reported(CONTROL_READY));
}

static inline void expect_exit(int code)
{
    int status;
    const struct monotime until = monotime_add_us(monotime_now(), PATIENCE_US);
    pid_t ended;
    while ((ended = waitpid(stage.trainer, &status, WNOHANG)) == 0 && monotime_before(monotime_now(), until))
        turn();
    if (ended == 0)
        kill(stage.trainer, SIGKILL);
    ck_assert_int_eq(ended, stage.trainer);
    ck_assert(WIFEXITED(status));
    ck_assert_int_eq(WEXITSTATUS(status), code);
}

static inline void end(void)
{
    tell(CONTROL_EXIT, NULL, 0);
    expect_exit(0);
    close_stage();
}

/* ---- the contribution ---- */

static inline const float *outbox(void)
{
    if (stage.outbox == NULL)
        stage.outbox =
            mmap(NULL, stage.image_bytes, PROT_READ, MAP_SHARED, stage.segments[stage.servers + NUMBER], 0);
    ck_assert_ptr_ne(stage.outbox, MAP_FAILED);
    return stage.outbox;
}

/* What the tape makes of version `base` and the loader's next batch. Returns the loss. */
static inline double compute(uint64_t base, float *statistics)
{
    struct twin *twin = &stage.twin;
    const struct batch *batch = data_next(stage.loader);
    double loss = NAN;
    ok(params_begin(twin->params, base, 0, params_count(twin->params), &error));
    tape_begin(twin->tape, TAPE_TRAIN, twin->gradients);
    struct variable *variable = classifier_loss(twin->classifier, twin->tape, batch);
    tape_loss(twin->tape, variable, &loss);
    tape_backward(twin->tape, variable);
    ok(classifier_statistics(twin->classifier, twin->tape, statistics, &error));
    ok(tape_finish(twin->tape, &error));
    ok(gradients_complete(twin->gradients, &error));
    return loss;
}

/* Rounds the gradient as the trainer must have, with the errors of the steps before. */
static inline void round_gradient(float *slab)
{
    uint16_t *rounded = malloc(stage.parameters * sizeof *rounded);
    ck_assert_ptr_nonnull(rounded);
    bfloat16_round(rounded, slab, stage.kept, stage.parameters);
    bfloat16_widen(slab, rounded, stage.parameters);
    free(rounded);
}

/* The gradient as it should lie where the servers look: in the image's layouts. */
static inline void expect_gradient(const float *image)
{
    struct twin *twin = &stage.twin;
    if (image_reordered(&data.job)) {
        float *slab = gradients_slab(twin->gradients)->data;
        if (stage.rounds)
            round_gradient(slab);
        ck_assert_mem_eq(image, slab, stage.parameters * sizeof *image);
        return;
    }
    float *canonical = malloc(stage.parameters * sizeof *canonical);
    ck_assert_ptr_nonnull(canonical);
    for (uint32_t i = 0; i < params_count(twin->params); i++) {
        const struct parameter *entry = params_at(twin->params, i);
        const size_t count = shape_elements(&entry->tensor.shape);
        if (entry->kind != PARAMETER_TRAINED)
            continue;
        ok(gradients_read(twin->gradients, entry, DTYPE_F32, canonical, &error));
        ck_assert_msg(memcmp(canonical, image + entry->offset, count * sizeof *image) == 0, "%s",
                      entry->name);
    }
    free(canonical);
}

/* Copies to the inbox what did not travel, and expects that all the rest came. */
static inline void gather_inbox(uint64_t step)
{
    size_t expected = 0;
    for (uint32_t i = 0; i < stage.servers; i++) {
        const struct shard *shard = &stage.shards[i];
        const size_t own = shard->end - shard->first, more = shard->statistics_end - shard->statistics_first;
        if (stage.travels[i]) {
            expected += own + more;
            ck_assert_uint_eq(stage.inbox_step, step);
            continue;
        }
        memcpy(stage.inbox + shard->first, outbox() + shard->first, own * sizeof *stage.inbox);
        memcpy(stage.inbox + shard->statistics_first, outbox() + shard->statistics_first,
               more * sizeof *stage.inbox);
    }
    ck_assert_uint_eq(stage.pieces, expected);
}

/* Waits for the contribution of `step` from `base` at all servers and holds it to what it should be. */
static inline void expect_push(uint64_t step, uint64_t base)
{
    const size_t buffers = stage.elements - stage.parameters;
    float *statistics = calloc(buffers, sizeof *statistics);
    ck_assert_ptr_nonnull(statistics);
    TURN_UNTIL(all_pushed());
    const double loss = compute(base, statistics);
    for (uint32_t i = 0; i < stage.servers; i++) {
        const uint64_t *args = stage.server[i].args;
        ck_assert_uint_eq(args[PUSH_STEP], step);
        ck_assert_uint_eq(args[PUSH_BASE], base);
        ck_assert_mem_eq(&args[PUSH_LOSS], &loss, sizeof loss);
        ck_assert_uint_eq(args[PUSH_BYTES], stage.elements * sizeof(float));
    }
    gather_inbox(step);
    expect_gradient(stage.inbox);
    ck_assert_mem_eq(stage.inbox + stage.parameters, statistics, buffers * sizeof *stage.inbox);
    free(statistics);
    stage.pieces = 0;
}

static inline void answer(uint32_t server, uint64_t version, uint64_t step, uint64_t flags)
{
    const struct rpc_message value = model_message(server, version, step, flags);
    struct rpc_request *push = stage.server[server].push;
    stage.server[server].push = NULL;
    stage.server[server].version = version;
    stage.server[server].step = step;
    rpc_reply(push, &value);
}

static inline void answer_all(uint64_t version, uint64_t step, uint64_t flags)
{
    write_version(version);
    for (uint32_t i = 0; i < stage.servers; i++)
        answer(i, version, step, flags);
}

#endif
