/* The trainers of the pserver's tests, in the test's own process, and a plain model of the servers'
 * expected values.
 *
 * A trainer's gradients and statistics are functions of (trainer, step, element), of sizes at which no sum is
 * exact. Models and contributions are compared as canonical images: all parameters in the order of the slab,
 * then the statistics. */
#ifndef TEST_WORKER_DATA_PARALLEL_PSERVER_TRAINERS_H
#define TEST_WORKER_DATA_PARALLEL_PSERVER_TRAINERS_H

#include "kernels/params/gradients.h"
#include "test/worker/data_parallel/pserver_stage.h"
#include "test/worker/net/net_connect.h"
#include "worker/data_parallel/bfloat16.h"

/* ---- gradients out of numbers ---- */

/* A float in ±0.5 that depends on all of it. */
static inline float ps_number(uint32_t trainer, uint64_t step, size_t element)
{
    uint32_t x = (uint32_t)element * 2654435761u ^ (uint32_t)(step + 1) * 40503u ^ (trainer + 1) * 97u << 20;
    x ^= x >> 15;
    x *= 2246822519u;
    x ^= x >> 13;
    return (float)(int32_t)x * 0x1p-32f;
}

/* Rounds values to bfloat16; returns them as such, until the next call. */
static inline const uint16_t *ps_rounded(const float *values, size_t count)
{
    static uint16_t rounded[1 << 20];
    static float kept[1 << 20];
    ck_assert_uint_le(count, 1 << 20);
    memset(kept, 0, count * sizeof *kept);
    bfloat16_round(rounded, values, kept, count);
    return rounded;
}

/* The contribution as a canonical image; gaps are zero. With /transport/precision "bfloat16" gradients are
 * exact as such. */
static inline void ps_contribution(uint32_t trainer, uint64_t step, float *image)
{
    memset(image, 0, ps.elements * sizeof *image);
    for (uint32_t i = 0; i < params_count(ps.params); i++) {
        const struct parameter *parameter = params_at(ps.params, i);
        if (parameter->kind == PARAMETER_COUNTER)
            continue;
        size_t first = parameter->offset + (parameter->kind == PARAMETER_BUFFER ? ps.parameters : 0);
        for (size_t e = 0; e < shape_elements(&parameter->tensor.shape); e++)
            image[first + e] = ps_number(trainer, step, first + e);
    }
    if (ps.job.precision == JOB_PRECISION_BFLOAT16)
        bfloat16_widen(image, ps_rounded(image, ps.parameters), ps.parameters);
}

static inline float *ps_outbox(uint32_t trainer)
{
    uint32_t worker = ps.servers + trainer;
    if (ps.map[worker] == NULL)
        ps_map(worker, true);
    return ps.map[worker];
}

/* Writes the contribution in the servers' layouts to `out`, at a multiple of 64 bytes. */
static inline void ps_write_image(uint32_t trainer, uint64_t step, float *out)
{
    float *image = malloc(ps.elements * sizeof *image);
    ps_contribution(trainer, step, image);
    gradients_place(ps.gradients, out);
    for (uint32_t i = 0; i < params_count(ps.params); i++) {
        const struct parameter *parameter = params_at(ps.params, i);
        bool fresh;
        if (parameter->kind == PARAMETER_TRAINED)
            PS_OK(backend_upload(ps.backend, gradients_take(ps.gradients, parameter, &fresh), DTYPE_F32,
                                 image + parameter->offset, &ps.error));
    }
    memcpy(out + ps.parameters, image + ps.parameters, (ps.elements - ps.parameters) * sizeof *image);
    free(image);
}

/* Writes the contribution where the servers read it. */
static inline void ps_write_outbox(uint32_t trainer, uint64_t step)
{
    ps_write_image(trainer, step, ps_outbox(trainer));
}

/* ---- the plain model ---- */

static inline void ps_begin_model(void)
{
    struct params *own;
    struct classifier *classifier;
    PS_OK(params_new(&own, ps.backend, &ps.error));
    PS_OK(classifier_new(&classifier, &ps.job, own, &ps.error));
    PS_OK(params_build(own, ps.job.seed, &ps.error));
    memcpy(ps.model, params_slab(own)->data, ps.parameters * sizeof *ps.model);
    memcpy(ps.model + ps.parameters, params_find(own, "bn1.running_mean")->tensor.data, // the first buffer
           (ps.elements - ps.parameters) * sizeof *ps.model);
    classifier_free(classifier);
    params_free(own);
}

/* The update of these trainers' steps, term by term as the tutorial's program has it. */
static inline void ps_move_model(const uint32_t *trainers, const uint64_t *steps, uint32_t count)
{
    const float lr = (float)schedule_lr(&ps.schedule, ps.version + 1);
    const float momentum = (float)ps.job.optimizer.momentum;
    const size_t n = ps.elements;
    float *image = calloc(PS_TRAINERS_MAX, n * sizeof *image); /* (count, n) */
    ck_assert_ptr_nonnull(image);
    for (uint32_t k = 0; k < count; k++)
        ps_contribution(trainers[k], steps[k], image + k * n);
    for (size_t i = 0; i < ps.parameters; i++) {
        float sum = image[i];
        for (uint32_t k = 1; k < count; k++)
            sum += image[k * n + i];
        float gradient = count == 1 ? sum : sum / (float)count;
        float velocity = ps.version == 0 ? gradient : momentum * ps.velocity[i] + gradient;
        ps.velocity[i] = velocity;
        ps.model[i] = ps.model[i] - lr * velocity;
    }
    for (size_t i = ps.parameters; i < n; i++) {
        double sum = 0;
        for (uint32_t k = 0; k < count; k++)
            sum += (double)image[k * n + i];
        ps.model[i] = (float)((1 - 0.1) * (double)ps.model[i] + 0.1 * (sum / count));
    }
    free(image);
    ps.version++;
}

/* ---- trainers ---- */

static inline void ps_on_evaluate(void *context, struct rpc_request *request,
                                  const struct rpc_message *message)
{
    struct ps_trainer *trainer = context;
    ck_assert_ptr_null(trainer->evaluate);
    trainer->evaluate = request;
    memcpy(trainer->evaluate_args, message->args, sizeof trainer->evaluate_args);
    snprintf(trainer->evaluated, sizeof trainer->evaluated, "after %llu", (unsigned long long)trainer->given);
}

static inline void ps_join(uint32_t trainer)
{
    static const struct rpc_method methods[] = {
        {.method = METHOD_EVALUATE, .callers = WIRE_ROLE_PSERVER, .handler = ps_on_evaluate}};
    struct ps_trainer *t = &ps.trainer[trainer];
    const struct roster roster = roster_of(&ps.job);
    uint8_t roles[ROSTER_WORKERS_MAX];
    char addresses[PS_SERVERS_MAX][CONTROL_ADDRESS_BYTES];
    struct rpc_address servers[PS_SERVERS_MAX];
    roster_roles(&roster, roles);
    ps.far_keys = ps_keys(1);
    const bool far = ps.far[trainer];
    for (uint32_t i = 0; i < ps.servers; i++) {
        if (far)
            snprintf(addresses[i], sizeof addresses[i], "tcp://127.0.0.1:%u", ps.far_port[i]);
        else
            snprintf(addresses[i], sizeof addresses[i], "ipc://%s/s.%u", ps.folder, i);
        servers[i] = (struct rpc_address){.worker = (uint16_t)i, .address = addresses[i], .is_far = far};
    }
    const struct rpc_config config = {.worker = (uint16_t)(ps.servers + trainer),
                                      .role = WIRE_ROLE_TRAINER,
                                      .incarnation = ++t->incarnation,
                                      .generation = 1,
                                      .roster = roles,
                                      .workers = roster_workers(&roster),
                                      .pending_max = 32,
                                      .incoming_max = 4,
                                      .methods = methods,
                                      .method_count = 1,
                                      .context = t,
                                      .keys = far ? &ps.far_keys : NULL};
    rpc_free(t->rpc, "a successor comes", 0);
    t->rpc = NULL;
    PS_OK(net_connect(&t->rpc, &config, servers, ps.servers, monotime_add_us(monotime_now(), 60000000),
                      &ps.error));
}

/* Whether server 0 and this trainer have a session. */
static inline bool ps_has_session(uint32_t trainer)
{
    struct future *echo;
    enum status status = rpc_call_async(ps.trainer[trainer].rpc, 0, METHOD_ECHO, &(struct rpc_message){0},
                                        MONOTIME_NEVER, &echo, &ps.error);
    if (status == STATUS_OK)
        future_release(echo);
    return status == STATUS_OK;
}

/* One call, until it is done. Its args into `args`; the status, with the text in ps.error. */
static inline enum status ps_call(uint32_t trainer, uint32_t server, enum wire_method method,
                                  const struct rpc_message *message, uint64_t args[WIRE_ARGS])
{
    struct future *future;
    PS_OK(rpc_call_async(ps.trainer[trainer].rpc, (uint16_t)server, method, message, MONOTIME_NEVER, &future,
                         &ps.error));
    PS_UNTIL(future_done(future));
    enum status status = future_status(future);
    if (status == STATUS_OK && args != NULL)
        memcpy(args, future_value(future)->args, sizeof future_value(future)->args);
    error_set(&ps.error, status, "%s", future_text(future));
    future_release(future);
    return status;
}

/* Asks every server for `version`; it is held from then on. The answer of server 0. */
static inline enum status ps_get(uint32_t trainer, uint64_t version, uint64_t args[WIRE_ARGS])
{
    const struct rpc_message message = {
        .args = {[GET_VERSION] = version, [GET_FINGERPRINT] = ps.fingerprint}};
    for (uint32_t server = ps.servers; server-- > 0;) {
        enum status status = ps_call(trainer, server, METHOD_GET_MODEL, &message, args);
        if (status != STATUS_OK)
            return status;
    }
    ps.trainer[trainer].given = args[MODEL_VERSION];
    return STATUS_OK;
}

static inline void ps_join_all(void)
{
    uint64_t args[WIRE_ARGS] = {0};
    for (uint32_t i = 0; i < ps.trainers; i++) {
        ps_join(i);
        PS_OK(ps_get(i, PARAMETER_SERVER_NEWEST, args));
    }
}

/* Sends the pieces [first, end) of a contribution, `at_most` elements each, the last one first. */
static inline void ps_send_chunks(uint32_t trainer, uint32_t server, uint64_t step, const float *image,
                                  size_t first, size_t end, size_t at_most)
{
    while (end > first) {
        size_t count = end - first < at_most ? end - first : at_most;
        struct rpc_message chunk = {.args = {[CHUNK_STEP] = step, [CHUNK_FIRST] = end - count},
                                    .tensor_count = 1,
                                    .tensors = {{.dtype = WIRE_F32, .rank = 1, .dims = {(uint32_t)count}}},
                                    .data = {image + end - count}};
        if (ps.job.precision == JOB_PRECISION_BFLOAT16 && end <= ps.parameters) {
            chunk.tensors[0].dtype = WIRE_BF16;
            chunk.data[0] = ps_rounded(image + end - count, count);
        }
        PS_OK(ps_call(trainer, server, METHOD_PUSH_CHUNK, &chunk, NULL));
        end -= count;
    }
}

static inline void ps_send_all_chunks(uint32_t trainer, uint64_t step)
{
    float *image = aligned_alloc(64, ps.bytes);
    memset(image, 0, ps.bytes);
    ps_write_image(trainer, step, image);
    for (uint32_t i = 0; i < ps.servers; i++) {
        const struct shard *shard = &ps.shards[i];
        ps_send_chunks(trainer, i, step, image, shard->first, shard->end, 60000 / 16 * 16);
        ps_send_chunks(trainer, i, step, image, shard->statistics_first, shard->statistics_end, 1 << 17);
    }
    free(image);
}

/* PUSH_PULL to every server; ps_pull gets the answers. What it refers to is there already. */
static inline void ps_push_only(uint32_t trainer, uint64_t step, uint64_t base, double loss)
{
    struct rpc_message push = {
        .args = {[PUSH_STEP] = step, [PUSH_BASE] = base, [PUSH_BYTES] = ps.elements * sizeof(float)}};
    memcpy(&push.args[PUSH_LOSS], &loss, sizeof loss);
    for (uint32_t i = 0; i < ps.servers; i++)
        PS_OK(rpc_call_async(ps.trainer[trainer].rpc, (uint16_t)i, METHOD_PUSH_PULL, &push, MONOTIME_NEVER,
                             &ps.trainer[trainer].calls[i], &ps.error));
}

static inline double ps_loss(uint32_t trainer, uint64_t step)
{
    return 1 + (double)ps_number(trainer, step, 1);
}

static inline void ps_push(uint32_t trainer, uint64_t step, uint64_t base)
{
    if (!ps_travels(trainer))
        ps_write_outbox(trainer, step);
    else
        ps_send_all_chunks(trainer, step);
    ps_push_only(trainer, step, base, ps_loss(trainer, step));
}

static inline bool ps_answered(uint32_t trainer)
{
    for (uint32_t i = 0; i < ps.servers; i++)
        if (!future_done(ps.trainer[trainer].calls[i]))
            return false;
    return true;
}

/* Waits until every server has taken what `trainer` has sent it, in the order in which it was sent, and what
 * waits on its control line, at which it looks before it sleeps. */
static inline void ps_taken(uint32_t trainer)
{
    struct future *echo;
    for (uint32_t i = 0; i < 3 * ps.servers; i++) {
        PS_OK(rpc_call_async(ps.trainer[trainer].rpc, (uint16_t)(i % ps.servers), METHOD_ECHO, NULL,
                             MONOTIME_NEVER, &echo, &ps.error));
        PS_UNTIL(future_done(echo));
        ck_assert_int_eq(future_status(echo), STATUS_OK);
        future_release(echo);
    }
}

/* Waits for a push's answers, which must agree in version and step; those of server 0 into `args`. */
static inline enum status ps_pull(uint32_t trainer, uint64_t args[WIRE_ARGS])
{
    struct ps_trainer *t = &ps.trainer[trainer];
    PS_UNTIL(ps_answered(trainer));
    enum status status = STATUS_OK;
    for (uint32_t i = 0; i < ps.servers; i++) {
        const struct rpc_message *value = future_value(t->calls[i]);
        if (i == 0) {
            status = future_status(t->calls[i]);
            error_set(&ps.error, status, "%s", future_text(t->calls[i]));
            if (value != NULL)
                memcpy(args, value->args, sizeof value->args);
        } else if (value != NULL) {
            ck_assert_uint_eq(args[MODEL_VERSION], value->args[MODEL_VERSION]);
            ck_assert_uint_eq(args[MODEL_STEP], value->args[MODEL_STEP]);
            ck_assert_uint_eq(args[MODEL_OFFSET], value->args[MODEL_OFFSET]);
        }
        future_release(t->calls[i]);
        t->calls[i] = NULL;
    }
    if (status == STATUS_OK)
        t->given = args[MODEL_VERSION];
    return status;
}

/* ---- looking at a version ---- */

static inline void ps_read_chunks(uint32_t trainer, uint64_t version, size_t first, size_t end,
                                  uint32_t server, float *image)
{
    while (first < end) {
        size_t count = end - first < 50000 ? end - first : 50000;
        const struct rpc_message ask = {.args = {version, first, count, ps.fingerprint}};
        struct future *future;
        PS_OK(rpc_call_async(ps.trainer[trainer].rpc, (uint16_t)server, METHOD_GET_MODEL, &ask,
                             MONOTIME_NEVER, &future, &ps.error));
        PS_UNTIL(future_done(future));
        ck_assert_msg(future_status(future) == STATUS_OK, "%s", future_text(future));
        ck_assert_uint_eq(future_value(future)->args[MODEL_OFFSET], PARAMETER_SERVER_NOWHERE);
        memcpy(image + first, future_value(future)->data[0], count * sizeof *image);
        future_release(future);
        first += count;
    }
}

/* Reads the version that an answer told of, canonical. */
static inline void ps_read(const uint64_t args[WIRE_ARGS], float *image)
{
    memset(image, 0, ps.elements * sizeof *image);
    for (uint32_t i = 0; i < ps.servers; i++) {
        const struct shard *shard = &ps.shards[i];
        if (!ps_shared()) {
            ps_read_chunks(0, args[MODEL_VERSION], shard->first, shard->end, i, image);
            ps_read_chunks(0, args[MODEL_VERSION], shard->statistics_first, shard->statistics_end, i, image);
            continue;
        }
        ck_assert_uint_le(args[MODEL_OFFSET] + ps.bytes, ps.map_bytes[i]);
        const float *slot = ps.map[i] + args[MODEL_OFFSET] / sizeof *slot;
        params_place(ps.params, shard->entry_first, shard->entry_end, slot);
        if (i == 0)
            params_place_buffers(ps.params, slot + ps.parameters);
    }
    for (uint32_t i = 0; ps_shared() && i < params_count(ps.params); i++) {
        const struct parameter *parameter = params_at(ps.params, i);
        size_t first = parameter->offset + (parameter->kind == PARAMETER_BUFFER ? ps.parameters : 0);
        if (parameter->kind != PARAMETER_COUNTER)
            PS_OK(params_read(ps.params, parameter, DTYPE_F32, image + first, &ps.error));
    }
}

static inline uint32_t ps_bits(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* The version of the answer must be the plain model, bit for bit. */
static inline void ps_expect_model(const uint64_t args[WIRE_ARGS])
{
    float *image = malloc(ps.elements * sizeof *image);
    ck_assert_uint_eq(args[MODEL_VERSION], ps.version);
    ps_read(args, image);
    size_t i = 0; /* an assertion is a write to Check's pipe: one is enough */
    while (i < ps.elements && ps_bits(image[i]) == ps_bits(ps.model[i]))
        i++;
    ck_assert_msg(i == ps.elements, "version %d, element %zu of %zu: %.9g, expected %.9g", (int)ps.version, i,
                  ps.parameters, (double)image[i], (double)ps.model[i]);
    free(image);
}

/* ---- whole rounds ---- */

/* The contributions of all trainers to the next round under `all`, the last one's first; the plain model goes
 * along. */
static inline void ps_push_all(void)
{
    uint32_t all[PS_TRAINERS_MAX] = {0};
    uint64_t steps[PS_TRAINERS_MAX] = {0};
    for (uint32_t i = 0; i < ps.trainers; i++) {
        all[i] = i;
        steps[i] = ps.version;
    }
    for (uint32_t i = ps.trainers; i-- > 0;)
        ps_push(i, ps.version, ps.version);
    ps_move_model(all, steps, ps.trainers);
}

/* Their answers: the next step, these flags, and the plain model. */
static inline void ps_pull_all(uint64_t flags)
{
    uint64_t args[WIRE_ARGS] = {0};
    for (uint32_t i = 0; i < ps.trainers; i++) {
        PS_OK(ps_pull(i, args));
        ck_assert_uint_eq(args[MODEL_STEP], ps.version);
        ck_assert_uint_eq(args[MODEL_FLAGS], flags);
    }
    ps_expect_model(args);
}

static inline void ps_round(void)
{
    ps_push_all();
    ps_pull_all(ps.version == ps.schedule.updates ? PULL_LAST : 0);
}

/* ---- whole jobs ---- */

/* The servers, from a checkpoint or from the beginning (""), and all trainers with them. */
static inline void ps_play(const char *checkpoint)
{
    ps_clear_reports();
    ps_serve(checkpoint);
    ck_assert_msg(!ps.failed, "%s", ps.failure.text);
    ps_join_all();
}

/* What ps_set has made of the job begins. */
static inline void ps_start(const struct dataset_info *info)
{
    ps_open(info);
    ps_begin_model();
    ps_play("");
}

/* Ends everything and begins anew from the checkpoint of `update`. */
static inline void ps_resume(const char *update)
{
    char checkpoint[256];
    snprintf(checkpoint, sizeof checkpoint, "%s", ps_checkpoint(update));
    ps_end(0);
    ps_play(checkpoint);
}

#endif
