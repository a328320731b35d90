/* Workers of test/worker/net/net_cluster.h with parts of a model on them: references, distributed autograd,
 * optimizers. A part is a linear layer (4 -> 4) with its own params, initialized by the part's number. A
 * model is several parts in a row, on any workers.
 *
 * All run on the test's thread: while one worker waits at its top level, its turns end with a turn of each
 * other worker. For test programs, which each use what they need. */
#ifndef TEST_WORKER_AUTOGRAD_OPTIMIZER_STAGE_H
#define TEST_WORKER_AUTOGRAD_OPTIMIZER_STAGE_H

#include "kernels/params/gradients.h"
#include "test/worker/net/net_cluster.h"
#include "worker/autograd/dist_message.h"
#include "worker/autograd/dist_versions.h"

#include <math.h>

enum { WIDTH = 4, ROWS = 3, PART_VALUES = WIDTH * WIDTH + WIDTH, PARTS_MAX = 3, TAKEN_MAX = 16 };
enum { TRAINER = SERVERS, OTHER_TRAINER };

#define STAGE_OK(call)                                                                                       \
    do {                                                                                                     \
        enum status stage_status = (call);                                                                   \
        ck_assert_msg(stage_status == STATUS_OK, "%s: %s: %s", #call, status_name(stage_status),             \
                      stage.error.text);                                                                     \
    } while (0)

#define STAGE_FAILS(call, expected, words)                                                                   \
    do {                                                                                                     \
        enum status stage_status = (call);                                                                   \
        ck_assert_msg(stage_status == (expected), "%s: %s: %s", #call, status_name(stage_status),            \
                      stage.error.text);                                                                     \
        ck_assert_msg(strstr(stage.error.text, words) != NULL, "\"%s\" is not in \"%s\"", words,             \
                      stage.error.text);                                                                     \
    } while (0)

/* An object of class "part". */
struct part {
    struct side *side;
    struct params *params;
    struct dist_versions *versions;
    struct parameter *weight, *bias;
};

struct side {
    struct rrefs *rrefs;
    struct dist *dist;
    struct dist_owner *owner;
    struct tape *tape;
    struct dist_context *context;  /* of which it is the root */
    struct rref *taken[TAKEN_MAX]; /* what others have shared, in order */
    uint64_t tags[TAKEN_MAX];
    uint32_t taken_count;
};

static struct {
    struct cluster cluster;
    struct side sides[MEMBERS];
    struct backend *backend; /* of all parts and tapes */
    unsigned parts;          /* that live */
    bool is_turning;         /* the others, while one waits */
    unsigned stalled;        /* workers, as bits, that have no turn meanwhile */
    struct error error;
} stage;

/* ---- parts ---- */

static inline void part_destroy(void *object)
{
    struct part *part = object;
    dist_versions_free(part->versions);
    params_free(part->params);
    free(part);
    stage.parts--;
}

/* args: 1 the part's number, 2 how many versions it has (0: one), 3 rows of its weight (0: WIDTH). */
static inline enum status part_create(void *context, const struct rref_class *class,
                                      const struct rpc_message *arguments, void **object, struct error *error)
{
    struct part *part = calloc(1, sizeof *part);
    const unsigned number = (unsigned)arguments->args[1];
    const uint32_t slots = (uint32_t)arguments->args[2];
    const uint32_t rows = arguments->args[3] == 0 ? WIDTH : (uint32_t)arguments->args[3];
    const struct init init = {INIT_UNIFORM, 0.5};
    char name[32];
    (void)class;
    part->side = context;
    STAGE_OK(params_new(&part->params, stage.backend, error));
    snprintf(name, sizeof name, "part%u.weight", number);
    STAGE_OK(
        params_add(part->params, name, PARAMETER_TRAINED, SHAPE2(rows, WIDTH), init, &part->weight, error));
    snprintf(name, sizeof name, "part%u.bias", number);
    STAGE_OK(params_add(part->params, name, PARAMETER_TRAINED, SHAPE1(WIDTH), init, &part->bias, error));
    if (slots == 0) {
        STAGE_OK(params_build(part->params, number + 1, error));
    } else {
        STAGE_OK(params_lay_out(part->params, error));
        STAGE_OK(dist_versions_new(&part->versions, part->params, slots, error));
        STAGE_OK(params_begin(part->params, number + 1, 0, 2, error));
    }
    stage.parts++;
    *object = part;
    return STATUS_OK;
}

static inline struct backend *part_backend(void *object)
{
    (void)object;
    return stage.backend;
}

static inline struct params *part_params(void *object)
{
    return ((struct part *)object)->params;
}

static inline struct dist_versions *part_versions(void *object)
{
    return ((struct part *)object)->versions;
}

static inline void part_pass_on(void *arg, struct dist_piece *piece, enum status status,
                                struct variable *const out[], uint32_t out_count)
{
    (void)arg, (void)status; // what has failed sticks in the tape
    dist_return(piece, out, out_count);
}

/* PART_MAP: the layer's. PART_PASS: that of the first object that this worker was given. */
enum { PART_MAP, PART_PASS };

static inline void part_forward(void *object, struct dist_piece *piece)
{
    const struct part *part = object;
    struct tape *tape = dist_piece_tape(piece);
    if (dist_piece_given(piece)->function == PART_PASS) {
        struct variable *in[1] = {dist_piece_given(piece)->in[0]};
        dist_call_async(piece, part->side->taken[0], PART_MAP, NULL, 0, in, 1, part_pass_on, NULL);
        return;
    }
    struct variable *out = tape_linear(tape, dist_piece_given(piece)->in[0],
                                       tape_parameter(tape, part->weight), tape_parameter(tape, part->bias));
    dist_return(piece, &out, 1);
}

static const struct dist_class part_rules = {
    .backend = part_backend, .params = part_params, .versions = part_versions, .forward = part_forward};
static const struct rref_class part_class = {
    .name = "part", .create = part_create, .destroy = part_destroy, .extension = &part_rules};
static inline void hollow_destroy(void *object)
{
    (void)object;
}
/* An object that cannot be called, nor has it parameters. */
static inline enum status hollow_create(void *context, const struct rref_class *class,
                                        const struct rpc_message *arguments, void **object,
                                        struct error *error)
{
    (void)class, (void)arguments, (void)error;
    *object = context;
    return STATUS_OK;
}
static const struct rref_class hollow_class = {
    .name = "hollow", .create = hollow_create, .destroy = hollow_destroy};
static const struct rref_class *const stage_classes[] = {&part_class, &hollow_class, &dist_parameter_class,
                                                         &dist_optimizer_class};

/* ---- workers ---- */

static inline void stage_taken(void *context, uint16_t from, uint64_t tag, struct rref *rref)
{
    struct side *side = context;
    (void)from;
    ck_assert_uint_lt(side->taken_count, TAKEN_MAX);
    side->tags[side->taken_count] = tag;
    side->taken[side->taken_count++] = rref;
}

/* A turn of every other worker than `arg`'s, which is at the end of its own. */
static inline struct monotime stage_beat(void *arg)
{
    if (!stage.is_turning) {
        stage.is_turning = true;
        for (unsigned i = 0; i < MEMBERS; i++)
            if (&stage.sides[i] != arg && stage.cluster.members[i].rpc != NULL && !(stage.stalled >> i & 1))
                rpc_turn(stage.cluster.members[i].rpc, (struct monotime){1});
        stage.is_turning = false;
    }
    return monotime_add_us(monotime_now(), 200);
}

static inline void side_open(unsigned worker)
{
    struct side *side = &stage.sides[worker];
    struct rpc *rpc = stage.cluster.members[worker].rpc;
    const struct rrefs_config references = {.rpc = rpc,
                                            .classes = stage_classes,
                                            .class_count = sizeof stage_classes / sizeof stage_classes[0],
                                            .objects_max = 32,
                                            .references_max = 64,
                                            .context = side,
                                            .taken = stage_taken};
    STAGE_OK(rrefs_new(&side->rrefs, &references, &stage.error));
    const struct dist_config autograd = {
        .rpc = rpc, .rrefs = side->rrefs, .contexts_max = 8, .pieces_max = 64};
    STAGE_OK(dist_new(&side->dist, &autograd, &stage.error));
    STAGE_OK(dist_owner_new(&side->owner, side->dist, &stage.error));
    const struct arena_source source = dist_arena_source(side->dist);
    STAGE_OK(tape_new_in(&side->tape, stage.backend, &source, &stage.error));
}

/* Everything of one worker ends. */
static inline void side_close(unsigned worker)
{
    struct side *side = &stage.sides[worker];
    if (side->rrefs == NULL)
        return;
    if (side->context != NULL)
        dist_context_free(side->context);
    tape_free(side->tape); // whose memory is the dist's
    dist_free(side->dist);
    rrefs_free(side->rrefs);
    dist_owner_free(side->owner);
    cluster_end(&stage.cluster, (uint16_t)worker, "it ends", 0);
    *side = (struct side){0};
}

static inline void stage_open(void)
{
    memset(&stage, 0, sizeof stage);
    const struct backend_settings settings = {.threads = 1};
    STAGE_OK(backend_load(&stage.backend, "onednn", &settings, &stage.error));
    cluster_start(&stage.cluster, CLIENTS);
    for (unsigned i = 0; i < MEMBERS; i++)
        side_open(i);
    for (unsigned i = 0; i < MEMBERS; i++)
        rpc_on_turn(stage.cluster.members[i].rpc, stage_beat, &stage.sides[i]);
}

static inline void stage_turns(unsigned turns)
{
    for (unsigned i = 0; i < turns; i++)
        cluster_turn(&stage.cluster);
}

/* Turns until worker `owner` has handled everything that the workers have sent to it before. */
static inline void await_handled(unsigned owner)
{
    for (unsigned i = 0; i < MEMBERS; i++) {
        struct future *future;
        if (stage.cluster.members[i].rpc == NULL)
            continue;
        STAGE_OK(rpc_call_async(stage.cluster.members[i].rpc, (uint16_t)owner, METHOD_ECHO, NULL,
                                MONOTIME_NEVER, &future, &stage.error));
        STAGE_OK(cluster_await(&stage.cluster, future));
        future_release(future);
    }
}

/* Object `number` of worker `owner`, if worker `user` has a reference to it. Otherwise NULL. */
static inline void *object_of(unsigned owner, unsigned user, uint64_t number, const struct rref_class **class)
{
    struct rrefs *rrefs = stage.sides[owner].rrefs;
    void *object;
    if (rref_object_use(rrefs, (uint16_t)user, number, &object, class, NULL) != STATUS_OK)
        return NULL;
    rref_object_done(rrefs, number);
    return object;
}

static inline bool is_optimizer(unsigned owner, uint64_t number)
{
    const struct rref_class *class = NULL;
    for (unsigned user = 0; user < MEMBERS; user++)
        if (object_of(owner, user, number, &class) != NULL)
            return class == &dist_optimizer_class;
    return false;
}

/* The local optimizers of the owner who has most. */
static inline unsigned most_optimizers(void)
{
    enum { NUMBERS_MAX = 256 };
    unsigned most = 0;
    for (unsigned i = 0; i < MEMBERS; i++) {
        unsigned here = 0;
        for (uint64_t number = 1; stage.sides[i].rrefs != NULL && number < NUMBERS_MAX; number++)
            here += is_optimizer(i, number);
        most = here > most ? here : most;
    }
    return most;
}

/* Turns until no owner has more than `count` local optimizers: who gives one back does not wait for that. */
static inline void await_optimizers(unsigned count)
{
    UNTIL(most_optimizers() <= count, stage_turns(1));
}

/* Whatever was not released goes now, with its parts. */
static inline void stage_close(void)
{
    for (unsigned i = MEMBERS; i-- > 0;)
        side_close(i);
    ck_assert_uint_eq(stage.parts, 0);
    rmdir(stage.cluster.folder);
    backend_close(stage.backend);
}

/* Objects, references and users of all workers. */
static inline unsigned stage_left(void)
{
    struct rref_counts counts;
    unsigned left = 0;
    for (unsigned i = 0; i < MEMBERS; i++)
        if (stage.sides[i].rrefs != NULL) {
            rrefs_counts(stage.sides[i].rrefs, &counts);
            left += counts.objects + counts.references + counts.users;
        }
    return left;
}

/* Turns until no worker holds or has anything, then ends all. */
static inline void stage_close_empty(void)
{
    UNTIL(stage_left() == 0, stage_turns(1));
    stage_close();
}

/* Worker `worker` is gone, and the first `told` of the others are told. */
static inline void stage_kill(unsigned worker)
{
    side_close(worker);
    for (unsigned i = 0; i < MEMBERS; i++)
        if (stage.cluster.members[i].rpc != NULL)
            rpc_peer_died(stage.cluster.members[i].rpc, (uint16_t)worker, UINT32_MAX, "it was killed");
}

/* ---- models ---- */

/* A model as one worker sees it. */
struct model {
    unsigned worker;
    uint32_t count; /* parts */
    struct rref *parts[PARTS_MAX];
    uint32_t parameter_count;
    struct rref *parameters[DIST_PARAMETERS_MAX];
};

static inline struct dist *dist_of(const struct model *model)
{
    return stage.sides[model->worker].dist;
}

static inline void await_ready(struct rref *rref)
{
    UNTIL(rref_ready(rref, &stage.error) != STATUS_AGAIN, stage_turns(1));
    STAGE_OK(rref_ready(rref, &stage.error));
}

static inline void find_parameters(struct model *model)
{
    model->parameter_count = 0;
    for (uint32_t p = 0; p < model->count; p++) {
        uint32_t count = 0;
        struct rref *some[DIST_PARAMETERS_MAX];
        STAGE_OK(dist_parameters(dist_of(model), model->parts[p], some, &count, &stage.error));
        ck_assert_uint_eq(count, 2);
        for (uint32_t i = 0; i < count; i++)
            model->parameters[model->parameter_count++] = some[i];
    }
}

/* One part on each of `owners`, asked for by `worker`. */
static inline void model_make(struct model *model, unsigned worker, const unsigned *owners, uint32_t count,
                              uint32_t slots)
{
    *model = (struct model){.worker = worker, .count = count};
    for (uint32_t p = 0; p < count; p++) {
        const struct rpc_message arguments = {.args = {0, p, slots}};
        STAGE_OK(rpc_remote(stage.sides[worker].rrefs, (uint16_t)owners[p], "part", &arguments,
                            &model->parts[p], &stage.error));
        await_ready(model->parts[p]);
    }
    find_parameters(model);
}

/* The same parts for another worker. */
static inline void model_share(struct model *out, const struct model *model, unsigned worker)
{
    struct side *side = &stage.sides[worker];
    *out = (struct model){.worker = worker, .count = model->count};
    for (uint32_t p = 0; p < model->count; p++) {
        struct future *future;
        const uint32_t before = side->taken_count;
        STAGE_OK(rref_share(model->parts[p], (uint16_t)worker, 1, &future, &stage.error));
        ck_assert_int_eq(cluster_await(&stage.cluster, future), STATUS_OK);
        future_release(future);
        ck_assert_uint_eq(side->taken_count, before + 1);
        out->parts[p] = side->taken[before];
    }
    find_parameters(out);
}

static inline void model_release(struct model *model)
{
    for (uint32_t i = 0; i < model->parameter_count; i++)
        rref_release(model->parameters[i]);
    for (uint32_t p = 0; p < model->count; p++)
        rref_release(model->parts[p]);
    *model = (struct model){0};
}

/* All values, one parameter after the other. */
static inline uint32_t elements_of(uint32_t parameter)
{
    return parameter % 2 == 0 ? WIDTH * WIDTH : WIDTH;
}

static inline float *values_of(float *values, uint32_t parameter)
{
    return values + parameter / 2 * PART_VALUES + (parameter % 2 == 0 ? 0 : WIDTH * WIDTH);
}

static inline void model_read(const struct model *model, float *values)
{
    for (uint32_t i = 0; i < model->parameter_count; i++)
        STAGE_OK(dist_parameter_get(dist_of(model), model->parameters[i], DIST_VALUES, values_of(values, i),
                                    elements_of(i), &stage.error));
}

static inline void model_write(const struct model *model, float *values)
{
    for (uint32_t i = 0; i < model->parameter_count; i++)
        STAGE_OK(dist_parameter_set(model->parameters[i], DIST_VALUES, values_of(values, i), elements_of(i),
                                    &stage.error));
}

/* What the owners of the parts have of the context; zeros where it has no gradients. */
static inline void model_read_gradient(const struct model *model, const struct dist_context *context,
                                       float *values)
{
    memset(values, 0, model->count * PART_VALUES * sizeof *values);
    for (uint32_t i = 0; i < model->parameter_count; i++) {
        const struct rref_class *class;
        struct gradients *gradients = NULL;
        const unsigned owner = rref_owner(model->parts[i / 2]);
        struct part *part = object_of(owner, model->worker, rref_object(model->parts[i / 2]), &class);
        ck_assert_ptr_nonnull(part);
        const enum status status =
            dist_gradients(stage.sides[owner].dist, dist_context_id(context), part, &gradients, &stage.error);
        ck_assert(status == STATUS_OK || status == STATUS_NOT_FOUND);
        if (status == STATUS_OK && gradients != NULL)
            STAGE_OK(gradients_read(gradients, i % 2 == 0 ? part->weight : part->bias, DTYPE_F32,
                                    values_of(values, i), &stage.error));
    }
}

static inline uint32_t bits_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline void expect_equal(const float *got, const float *expected, uint32_t count, const char *what)
{
    for (uint32_t i = 0; i < count; i++)
        ck_assert_msg(bits_of(got[i]) == bits_of(expected[i]), "%s: value %u is %.9g, expected %.9g", what, i,
                      (double)got[i], (double)expected[i]);
}

/* ---- contexts ---- */

/* The forward through the first `depth` parts: the loss of input number `seed`. */
static inline struct variable *model_forward(const struct model *model, struct dist_context **context,
                                             unsigned seed, uint32_t depth)
{
    struct side *side = &stage.sides[model->worker];
    float x[ROWS * WIDTH], target[ROWS * WIDTH];
    for (unsigned i = 0; i < ROWS * WIDTH; i++) {
        x[i] = sinf((float)(seed * 31 + i));
        target[i] = cosf((float)(seed * 17 + i));
    }
    STAGE_OK(dist_context_new(context, side->dist, TAPE_TRAIN, side->tape, &stage.error));
    side->context = *context;
    struct variable *h = tape_input(side->tape, SHAPE2(ROWS, WIDTH), DTYPE_F32, "x", x);
    for (uint32_t p = 0; p < depth; p++) {
        struct variable *in[1] = {h};
        dist_call(*context, model->parts[p], 0, NULL, 0, in, 1, &h, 1);
    }
    struct variable *loss =
        tape_mse(side->tape, h, tape_input(side->tape, SHAPE2(ROWS, WIDTH), DTYPE_F32, "target", target));
    STAGE_OK(tape_status(side->tape, &stage.error));
    return loss;
}

static inline void end_context(struct dist_context *context)
{
    stage.sides[dist_context_id(context) >> 48].context = NULL;
    dist_context_free(context);
}

static inline struct dist_context *model_backward(const struct model *model, unsigned seed, uint32_t depth)
{
    struct dist_context *context;
    struct variable *loss = model_forward(model, &context, seed, depth);
    STAGE_OK(dist_backward(context, loss, &stage.error));
    return context;
}

#endif
