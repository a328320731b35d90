/* The objects that the workers of test/worker/autograd/dist_fixture.h call within contexts, and the state
 * that all workers share.
 *
 * An object is a knot: a linear map of its own and nested calls of other knots, chosen by the call's numbers;
 * or a table of rows. Every worker has a reference to every object. */
#ifndef TEST_WORKER_AUTOGRAD_DIST_KNOTS_H
#define TEST_WORKER_AUTOGRAD_DIST_KNOTS_H

#include "kernels/params/params.h"
#include "test/oracle/ref.h"
#include "test/worker/net/net_cluster.h"
#include "worker/autograd/dist.h"
#include "worker/net/segment.h"

#include <sys/mman.h>

enum { KNOTS_MAX = 8, WIDTH = 4, TABLE_ROWS = 6, SEGMENT_BYTES = 64 << 20, CHILDREN_MAX = 3 };

struct dist_side {
    struct member *member;
    struct segment outbox;
    struct rrefs *rrefs;
    struct dist *dist;
    struct backend *backend;
    struct rref *object[KNOTS_MAX]; /* its references, by the objects' names */
    uint64_t asleep;                /* turns */
};

/* An object. */
struct knot {
    struct dist_side *side;
    uint64_t name; /* what it is told apart by, and drawn from */
    struct params *params;
    struct parameter *weight, *bias;
};

static struct stage {
    struct cluster cluster;
    struct dist_side sides[MEMBERS];
    const struct backend_ops *ops; /* NULL: the CPU's plug-in */
    bool shared, is_slow, is_awake, is_quiet, is_turning_others, stalls[MEMBERS];
    unsigned knots_alive, objects, tables, workers;
    uint64_t turns;
    unsigned kill_in, victim; /* turns of a root until that worker dies, and none stalls; 0: nobody */
    uint32_t pieces_max, contexts_max;
    void (*forward)(struct knot *knot, struct dist_piece *piece); /* KNOT_TEST */
    struct error error;
} stage;

#define CK_DIST(call)                                                                                        \
    ck_assert_msg((call) == STATUS_OK, "%s:%d: %s: %s", __FILE__, __LINE__, #call, stage.error.text)

static inline uint64_t mix(uint64_t a, uint64_t b)
{
    uint64_t x = a * 0x9e3779b97f4a7c15u + b + 0x632be59bd9b4e019u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

/* ---- making ---- */

static inline enum status knot_create(void *context, const struct rref_class *class,
                                      const struct rpc_message *arguments, void **object, struct error *error)
{
    struct dist_side *side = context;
    struct knot *knot = calloc(1, sizeof *knot);
    const struct init init = {INIT_UNIFORM, 0.5};
    (void)class;
    *knot = (struct knot){.side = side, .name = arguments->args[1]};
    const uint32_t rows = arguments->args[2] == 0 ? WIDTH : (uint32_t)arguments->args[2];
    enum status status = params_new(&knot->params, side->backend, error);
    if (status == STATUS_OK)
        status = params_add(knot->params, "weight", PARAMETER_TRAINED, SHAPE2(rows, WIDTH), init,
                            &knot->weight, error);
    if (status == STATUS_OK)
        status = params_add(knot->params, "bias", PARAMETER_TRAINED, SHAPE1(WIDTH), init, &knot->bias, error);
    if (status == STATUS_OK)
        status = params_build(knot->params, knot->name + 1, error);
    ck_assert_int_eq(status, STATUS_OK);
    stage.knots_alive++;
    *object = knot;
    return STATUS_OK;
}

static inline void knot_destroy(void *object)
{
    struct knot *knot = object;
    params_free(knot->params);
    free(knot);
    stage.knots_alive--;
}

static inline struct backend *knot_backend(void *object)
{
    return ((struct knot *)object)->side->backend;
}

static inline struct params *knot_params(void *object)
{
    return ((struct knot *)object)->params;
}

/* What a knot's functions do. */
enum {
    KNOT_MAP,    /* x -> the map of x */
    KNOT_GRAPH,  /* x, numbers (key, levels) -> the map, nested calls, their sums; two outputs */
    KNOT_PASS,   /* x -> x itself, and its own weight */
    KNOT_FAIL,   /* fails with a text */
    KNOT_KEEP,   /* never answers */
    KNOT_DOWN,   /* x, numbers (levels left, next, …): calls the next object so, and passes its answer on */
    KNOT_WRONG,  /* a matrix product whose shapes do not fit */
    KNOT_TWO,    /* two outputs: the map, and its double */
    KNOT_NESTED, /* x, numbers (object, function): calls that, and answers with its result's map */
    KNOT_UNDER,  /* x, numbers (object): that object's map of its own */
    KNOT_BOTH,   /* x, numbers (object, object): the second's map of the first's */
    KNOT_TABLE,  /* numbers (object): row 0 of that table */
    KNOT_NUMBER, /* no input: the sum of its numbers as a scalar, no parameter */
    KNOT_VAST,   /* more than a message can carry, in memory that nobody may look at */
    KNOT_TEST,   /* the test's own code: stage.forward */
};

static inline struct variable *knot_map(struct knot *knot, struct tape *tape, struct variable *x)
{
    return tape_linear(tape, x, tape_parameter(tape, knot->weight), tape_parameter(tape, knot->bias));
}

struct knot_work {
    struct knot *knot;
    struct dist_piece *piece;
    uint64_t key, levels;
    unsigned step, children;
    struct variable *h, *last;
};

static inline void knot_go_on(struct knot_work *work);

static inline void knot_then(void *arg, struct dist_piece *piece, enum status status,
                             struct variable *const out[], uint32_t out_count)
{
    struct knot_work *work = arg;
    struct tape *tape = dist_piece_tape(piece);
    ck_assert_ptr_eq(piece, work->piece);
    ck_assert_int_eq(status == STATUS_OK, out != NULL);
    if (status == STATUS_OK) {
        const uint64_t how = out_count == 1 ? 2 : mix(work->key, 100 + work->step) % 4;
        if (how != 0) /* else it has no part */
            work->h = tape_add(tape, work->h, out[how == 3], how == 2);
        if (how == 1)
            work->h = tape_add(tape, work->h, out[0], false);
        if (how != 3)
            work->last = out[out_count - 1];
    }
    work->step++;
    knot_go_on(work);
}

/* Rows of a table, as many as `x` has, drawn by `key`. */
static inline struct variable *table_rows(struct tape *tape, const struct variable *x, uint64_t key)
{
    const uint32_t rows = variable_tensor(x)->shape.size[0];
    int32_t *tokens = malloc(rows * sizeof *tokens);
    for (uint32_t i = 0; i < rows; i++)
        tokens[i] = (int32_t)(mix(key, i) % TABLE_ROWS);
    struct variable *indices = tape_input(tape, SHAPE1(rows), DTYPE_I32, "tokens", tokens);
    free(tokens);
    return indices;
}

static inline void knot_call_next(struct knot_work *work)
{
    struct rref **object = work->knot->side->object;
    const uint64_t draw = mix(work->key, work->step), numbers[2] = {draw, work->levels - 1};
    if (draw % 2 == 0 && stage.tables > 0) {
        struct variable *tokens = table_rows(dist_piece_tape(work->piece), work->h, draw);
        dist_call_async(work->piece, object[draw / 8 % stage.tables], 0, NULL, 0, &tokens, 1, knot_then,
                        work);
        return;
    }
    struct variable *in[2] = {draw % 3 == 0 ? work->last : work->h,
                              draw % 5 == 0 ? dist_piece_given(work->piece)->in[0] : NULL};
    const uint64_t name = stage.tables + draw / 7 % (stage.objects - stage.tables);
    dist_call_async(work->piece, object[name], KNOT_GRAPH, numbers, 2, in, 2, knot_then, work);
}

static inline void knot_go_on(struct knot_work *work)
{
    struct dist_piece *piece = work->piece;
    if (work->step < work->children && tape_status(dist_piece_tape(piece), NULL) == STATUS_OK) {
        knot_call_next(work);
        return;
    }
    struct variable *out[2] = {work->h, work->last};
    free(work);
    dist_return(piece, out, 2);
}

static inline void knot_graph(struct knot *knot, struct dist_piece *piece)
{
    struct tape *tape = dist_piece_tape(piece);
    const uint64_t *numbers = dist_piece_given(piece)->numbers;
    const uint32_t count = dist_piece_given(piece)->number_count;
    ck_assert_uint_eq(count, 2);
    struct knot_work *work = calloc(1, sizeof *work);
    *work = (struct knot_work){.knot = knot, .piece = piece, .key = numbers[0], .levels = numbers[1]};
    work->children = work->levels == 0 ? 0 : mix(work->key, 99) % (CHILDREN_MAX + 1);
    work->h = knot_map(knot, tape, dist_piece_given(piece)->in[0]);
    if (dist_piece_given(piece)->in[1] != NULL)
        work->h = tape_add(tape, work->h, dist_piece_given(piece)->in[1], true);
    work->last = tape_relu(tape, work->h);
    knot_go_on(work);
}

static inline void knot_pass_on(void *arg, struct dist_piece *piece, enum status status,
                                struct variable *const out[], uint32_t out_count)
{
    struct knot *knot = arg;
    if (status != STATUS_OK) {
        dist_return(piece, NULL, 0); /* fails with what has stuck */
        return;
    }
    ck_assert_uint_ge(out_count, 1);
    struct variable *y = dist_piece_given(piece)->function == KNOT_NESTED
                             ? knot_map(knot, dist_piece_tape(piece), out[0])
                             : out[0];
    dist_return(piece, &y, 1);
}

static inline void knot_call_second(void *arg, struct dist_piece *piece, enum status status,
                                    struct variable *const out[], uint32_t out_count)
{
    struct knot *knot = arg;
    if (status != STATUS_OK) {
        knot_pass_on(knot, piece, status, out, out_count);
        return;
    }
    struct rref *second = knot->side->object[dist_piece_given(piece)->numbers[1]];
    dist_call_async(piece, second, KNOT_MAP, NULL, 0, out, 1, knot_pass_on, knot);
}

static inline void knot_call_on(struct knot *knot, struct dist_piece *piece)
{
    const uint64_t *numbers = dist_piece_given(piece)->numbers;
    const uint32_t function = dist_piece_given(piece)->function;
    struct variable *x = dist_piece_given(piece)->in[0];
    if (function == KNOT_DOWN && numbers[0] > 0) {
        const uint64_t next[2] = {numbers[0] - 1, (numbers[1] + 1) % stage.objects};
        dist_call_async(piece, knot->side->object[next[1]], KNOT_DOWN, next, 2, &x, 1, knot_pass_on, knot);
        return;
    }
    if (function == KNOT_TABLE)
        x = tape_input(dist_piece_tape(piece), SHAPE1(1), DTYPE_I32, "tokens", (int32_t[]){0});
    else if (function == KNOT_UNDER || function == KNOT_DOWN)
        x = knot_map(knot, dist_piece_tape(piece), x);
    if (function == KNOT_DOWN)
        dist_return(piece, &x, 1);
    else
        dist_call_async(piece, knot->side->object[numbers[0]],
                        function == KNOT_NESTED ? (uint32_t)numbers[1] : KNOT_MAP, NULL, 0, &x, 1,
                        function == KNOT_BOTH ? knot_call_second : knot_pass_on, knot);
}

static inline void knot_number(struct dist_piece *piece)
{
    float sum = 0;
    const uint64_t *numbers = dist_piece_given(piece)->numbers;
    const uint32_t count = dist_piece_given(piece)->number_count;
    for (uint32_t i = 0; i < count; i++)
        sum += (float)numbers[i];
    struct variable *out = tape_input(dist_piece_tape(piece), SHAPE0(), DTYPE_F32, "sum", &sum);
    dist_return(piece, &out, 1);
}

static inline void knot_vast(struct dist_piece *piece)
{
    struct tensor tensor = {.shape = SHAPE3(13422, 1, 10000), .dtype = DTYPE_F32, .name = "vast"};
    tensor.bytes = shape_elements(&tensor.shape) * sizeof(float);
    tensor.data = mmap(NULL, tensor.bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    ck_assert_ptr_ne(tensor.data, MAP_FAILED);
    struct variable *out = tape_constant(dist_piece_tape(piece), &tensor);
    dist_return(piece, &out, 1);
    munmap(tensor.data, tensor.bytes);
}

static inline void knot_forward(void *object, struct dist_piece *piece)
{
    struct knot *knot = object;
    struct tape *tape = dist_piece_tape(piece);
    struct variable *x = dist_piece_given(piece)->in[0], *out[2];
    switch (dist_piece_given(piece)->function) {
    case KNOT_MAP:
        out[0] = knot_map(knot, tape, x);
        dist_return(piece, out, 1);
        break;
    case KNOT_GRAPH:
        knot_graph(knot, piece);
        break;
    case KNOT_PASS:
        out[0] = x;
        out[1] = tape_parameter(tape, knot->weight);
        dist_return(piece, out, 2);
        break;
    case KNOT_FAIL:
        tape_fail(tape, STATUS_INVALID, "knot %u has no such thing", (unsigned)knot->name);
        dist_return(piece, NULL, 0);
        break;
    case KNOT_KEEP:
        break;
    case KNOT_DOWN:
    case KNOT_TABLE:
    case KNOT_NESTED:
    case KNOT_UNDER:
    case KNOT_BOTH:
        knot_call_on(knot, piece);
        break;
    case KNOT_WRONG:
        out[0] = tape_linear(tape, x, tape_parameter(tape, knot->bias), NULL);
        dist_return(piece, out, 1);
        break;
    case KNOT_TWO:
        out[0] = knot_map(knot, tape, x);
        out[1] = tape_add(tape, out[0], out[0], false);
        dist_return(piece, out, 2);
        break;
    case KNOT_NUMBER:
        knot_number(piece);
        break;
    case KNOT_VAST:
        knot_vast(piece);
        break;
    case KNOT_TEST:
        stage.forward(knot, piece);
        break;
    default:
        tape_fail(tape, STATUS_NOT_FOUND, "no such function");
        dist_return(piece, NULL, 0);
    }
}

static inline void table_forward(void *object, struct dist_piece *piece)
{
    struct knot *knot = object;
    struct tape *tape = dist_piece_tape(piece);
    struct variable *out =
        tape_embedding(tape, dist_piece_given(piece)->in[0], tape_parameter(tape, knot->weight));
    dist_return(piece, &out, 1);
}

static const struct dist_class knot_rules = {
    .backend = knot_backend, .params = knot_params, .forward = knot_forward};
static const struct dist_class table_rules = {
    .backend = knot_backend, .params = knot_params, .forward = table_forward};
static const struct rref_class knot_class = {
    .name = "knot", .create = knot_create, .destroy = knot_destroy, .extension = &knot_rules};
static const struct rref_class table_class = {
    .name = "table", .create = knot_create, .destroy = knot_destroy, .extension = &table_rules};
static const struct rref_class stone_class = {
    .name = "stone", .create = knot_create, .destroy = knot_destroy};
static const struct rref_class *const dist_classes[] = {&knot_class, &table_class, &stone_class};

#endif
