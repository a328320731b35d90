/* A worker with objects, parameters and optimizers, for the targets with a hostile peer: the smallest class
 * that can be called within a context. */
#ifndef TEST_FUZZ_FUZZ_KNOT_H
#define TEST_FUZZ_FUZZ_KNOT_H

#include "kernels/params/params.h"
#include "test/fuzz/fuzz_peer.h"
#include "test/oracle/ref.h"
#include "worker/autograd/dist_context.c" // NOLINT(bugprone-suspicious-include): an input ends with a death, which is undone
#include "worker/autograd/dist_message.h"
#include "worker/autograd/dist_versions.h"

enum { WIDTH = 3, OBJECTS_MAX = 24, CONTEXTS_MAX = 3, PIECES_MAX = 12, REFERENCES_MAX = 32 };

static struct backend *backend;
static struct rrefs *rrefs;
static struct dist *dist;
static struct dist_owner *owner;
static struct rref *own;    /* an object of this worker's, which it never lets go of */
static struct rref *called; /* what a knot calls */
static unsigned alive;

struct knot {
    struct params *params;
    struct parameter *weight, *bias;
    struct dist_versions *versions; /* NULL: one */
};

static void knot_destroy(void *object)
{
    struct knot *knot = object;
    dist_versions_free(knot->versions);
    params_free(knot->params);
    free(knot);
    require(alive-- > 0);
}

static enum status knot_create(void *context, const struct rref_class *class,
                               const struct rpc_message *arguments, void **object, struct error *error)
{
    const struct init init = {INIT_UNIFORM, 0.5};
    struct knot *knot = calloc(1, sizeof *knot);
    const bool has_versions = arguments->args[1] % 2 == 1;
    (void)context, (void)class;
    alive++;
    enum status status = params_new(&knot->params, backend, error);
    if (status == STATUS_OK)
        status = params_add(knot->params, "weight", PARAMETER_TRAINED, SHAPE2(WIDTH, WIDTH), init,
                            &knot->weight, error);
    if (status == STATUS_OK)
        status = params_add(knot->params, "bias", PARAMETER_TRAINED, SHAPE1(WIDTH), init, &knot->bias, error);
    if (status == STATUS_OK)
        status = has_versions ? params_lay_out(knot->params, error) : params_build(knot->params, 1, error);
    if (status == STATUS_OK && has_versions)
        status = dist_versions_new(&knot->versions, knot->params, 2, error);
    require(status == STATUS_OK);
    *object = knot;
    return STATUS_OK;
}

static struct backend *knot_backend(void *object)
{
    (void)object;
    return backend;
}

static struct params *knot_params(void *object)
{
    return ((struct knot *)object)->params;
}

static struct dist_versions *knot_versions(void *object)
{
    return ((struct knot *)object)->versions;
}

static struct variable *knot_map(const struct knot *knot, struct dist_piece *piece)
{
    struct tape *tape = dist_piece_tape(piece);
    struct variable *x = dist_piece_given(piece)->in[0];
    if (x == NULL || variable_tensor(x)->dtype == DTYPE_I32)
        return tape_fail(tape, STATUS_INVALID, "expected an input");
    return tape_linear(tape, x, tape_parameter(tape, knot->weight), tape_parameter(tape, knot->bias));
}

static void knot_then(void *arg, struct dist_piece *piece, enum status status, struct variable *const out[],
                      uint32_t out_count)
{
    (void)arg;
    dist_return(piece, out, status == STATUS_OK ? out_count : 0);
}

/* 0: the map; 1: the map of what `called` makes of it; 2: the input as it came; 3: never answers; 7:
 * what `called` makes of the input; else the numbers' sum. */
static void knot_forward(void *object, struct dist_piece *piece)
{
    struct variable *out = NULL;
    const uint64_t *numbers = dist_piece_given(piece)->numbers;
    const uint32_t count = dist_piece_given(piece)->number_count;
    const uint32_t function = dist_piece_given(piece)->function;
    float sum = 0;
    if (function == 3)
        return;
    for (uint32_t i = 0; i < count; i++)
        sum += (float)(numbers[i] % 16);
    if (function == 2 || function == 7)
        out = dist_piece_given(piece)->in[0];
    else if (function > 3)
        out = tape_input(dist_piece_tape(piece), SHAPE0(), DTYPE_F32, "sum", &sum);
    else
        out = knot_map(object, piece);
    if (function == 1 || function == 7)
        dist_call_async(piece, called, 0, NULL, 0, &out, 1, knot_then, NULL);
    else
        dist_return(piece, &out, 1);
}

static const struct dist_class knot_rules = {
    .backend = knot_backend, .params = knot_params, .versions = knot_versions, .forward = knot_forward};
static const struct rref_class knot_class = {
    .name = "k", .create = knot_create, .destroy = knot_destroy, .extension = &knot_rules};
static const struct rref_class *const classes[] = {&knot_class, &dist_parameter_class, &dist_optimizer_class};

/* Behind peer_open_rpc. `taken`: struct rrefs_config's. */
static inline void open_worker(struct segment *outbox,
                               void (*taken)(void *context, uint16_t from, uint64_t tag, struct rref *rref))
{
    struct error error = {0};
    const struct backend_settings settings = {.threads = 1};
    const struct rpc_message one = {0};
    void *knot;
    require(backend_open(&backend, &ref_ops, &settings, &error) == STATUS_OK);
    const struct rrefs_config references = {.rpc = rpc,
                                            .classes = classes,
                                            .class_count = 3,
                                            .objects_max = OBJECTS_MAX,
                                            .references_max = REFERENCES_MAX,
                                            .taken = taken};
    require(rrefs_new(&rrefs, &references, &error) == STATUS_OK);
    const struct dist_config config = {
        .rpc = rpc, .rrefs = rrefs, .outbox = outbox, .contexts_max = CONTEXTS_MAX, .pieces_max = PIECES_MAX};
    require(dist_new(&dist, &config, &error) == STATUS_OK);
    require(dist_owner_new(&owner, dist, &error) == STATUS_OK);
    require(knot_create(NULL, &knot_class, &one, &knot, &error) == STATUS_OK);
    require(rref_own(rrefs, &knot_class, knot, &own, &error) == STATUS_OK);
    called = own;
}

/* When no peer has a session any more, and nothing of this worker's is held: what there is is `own`. */
static inline void require_nothing_left(void)
{
    struct rref_counts references;
    struct dist_counts counts;
    dist_counts(dist, &counts);
    rrefs_counts(rrefs, &references);
    require(counts.contexts == 0 && counts.pieces == 0);
    require(alive == 1 && references.objects == 1 && references.references == 1 && references.users == 0);
}

#endif
