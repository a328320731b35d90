/* Three workers (and a fourth, a client) of test/net_cluster.h with objects that are called within contexts.
 * All of them on the test's thread: the turns of one worker turn the others at their end, so that a root may
 * block. For test programs, which each use what they need.
 *
 * An object is a knot: a linear map of its own, and nested calls of other knots, which the key that it is
 * given chooses; or a table of rows. Every worker has a reference to every object. */
#ifndef TEST_DIST_FIXTURE_H
#define TEST_DIST_FIXTURE_H

#include "kernels/params.h"
#include "kernels/ref/ref.h"
#include "test/net_cluster.h"
#include "worker/net/dist.h"
#include "worker/segment.h"

#include <fcntl.h>
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

/* ---- objects ---- */

static inline enum status knot_create(void *context, uint16_t creator, const struct rpc_message *arguments,
                                      void **object, struct error *error)
{
    struct dist_side *side = context;
    struct knot *knot = calloc(1, sizeof *knot);
    const struct init init = {INIT_UNIFORM, 0.5};
    (void)creator;
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
    return tape_linear(tape, x, tape_parameter(tape, knot->weight), tape_parameter(tape, knot->bias), false);
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
                              draw % 5 == 0 ? dist_piece_input(work->piece, 0) : NULL};
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
    uint32_t count;
    const uint64_t *numbers = dist_piece_numbers(piece, &count);
    ck_assert_uint_eq(count, 2);
    struct knot_work *work = calloc(1, sizeof *work);
    *work = (struct knot_work){.knot = knot, .piece = piece, .key = numbers[0], .levels = numbers[1]};
    work->children = work->levels == 0 ? 0 : mix(work->key, 99) % (CHILDREN_MAX + 1);
    work->h = knot_map(knot, tape, dist_piece_input(piece, 0));
    if (dist_piece_input(piece, 1) != NULL)
        work->h = tape_add(tape, work->h, dist_piece_input(piece, 1), true);
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
    struct variable *y =
        dist_piece_function(piece) == KNOT_NESTED ? knot_map(knot, dist_piece_tape(piece), out[0]) : out[0];
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
    struct rref *second = knot->side->object[dist_piece_numbers(piece, &out_count)[1]];
    dist_call_async(piece, second, KNOT_MAP, NULL, 0, out, 1, knot_pass_on, knot);
}

static inline void knot_call_on(struct knot *knot, struct dist_piece *piece)
{
    uint32_t count;
    const uint64_t *numbers = dist_piece_numbers(piece, &count);
    const uint32_t function = dist_piece_function(piece);
    struct variable *x = dist_piece_input(piece, 0);
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
    uint32_t count;
    float sum = 0;
    const uint64_t *numbers = dist_piece_numbers(piece, &count);
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
    struct variable *x = dist_piece_input(piece, 0), *out[2];
    switch (dist_piece_function(piece)) {
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
        dist_fail(piece, STATUS_INVALID, "knot %u has no such thing", (unsigned)knot->name);
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
        out[0] = tape_linear(tape, x, tape_parameter(tape, knot->bias), NULL, false);
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
        dist_fail(piece, STATUS_NOT_FOUND, "no such function");
    }
}

static inline void table_forward(void *object, struct dist_piece *piece)
{
    struct knot *knot = object;
    struct tape *tape = dist_piece_tape(piece);
    struct variable *out =
        tape_embedding(tape, dist_piece_input(piece, 0), tape_parameter(tape, knot->weight));
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

/* ---- workers ---- */

static inline void dist_on_taken(void *context, uint16_t from, uint64_t tag, struct rref *rref)
{
    struct dist_side *side = context;
    (void)from;
    ck_assert_uint_lt(tag, KNOTS_MAX);
    side->object[tag] = rref;
}

static inline void dist_side_free(unsigned worker)
{
    struct dist_side *side = &stage.sides[worker];
    dist_free(side->dist);
    rrefs_free(side->rrefs);
    side->dist = NULL;
}

/* Its death, and that all others are told of it. */
static inline void dist_kill(unsigned worker)
{
    dist_side_free(worker);
    cluster_end(&stage.cluster, (uint16_t)worker, "killed", 0);
    for (unsigned i = 0; i < MEMBERS; i++)
        if (stage.cluster.members[i].rpc != NULL)
            rpc_peer_died(stage.cluster.members[i].rpc, (uint16_t)worker, "it was killed");
}

/* Some workers sleep for some turns: so messages of one worker are read now before, now after those of
 * another, however they were sent. */
static inline bool dist_sleeps(unsigned worker)
{
    struct dist_side *side = &stage.sides[worker];
    const uint64_t draw = mix(stage.turns++, worker);
    if (side->asleep == 0 && draw % 8 == 0 && !stage.is_awake)
        side->asleep = draw / 8 % 64;
    return side->asleep > 0 && side->asleep-- > 0;
}

/* Turns the other workers once; the turns of those turn nobody. */
static inline struct monotime dist_turn_others(void *arg)
{
    const struct dist_side *self = arg;
    if (stage.is_quiet)
        return MONOTIME_NEVER;
    if (stage.kill_in > 0 && !stage.is_turning_others && --stage.kill_in == 0) {
        dist_kill(stage.victim);
        memset(stage.stalls, 0, sizeof stage.stalls);
    }
    for (unsigned i = 0; i < MEMBERS && !stage.is_turning_others; i++) {
        struct dist_side *side = &stage.sides[i];
        if (side == self || side->dist == NULL || stage.stalls[i] || dist_sleeps(i))
            continue;
        if (stage.is_slow)
            usleep(50);
        stage.is_turning_others = true;
        rpc_turn(side->member->rpc, (struct monotime){0});
        stage.is_turning_others = false;
    }
    return monotime_now();
}

static inline void dist_take_segment(unsigned worker)
{
    int fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    ck_assert_int_eq(dup2(fd, SEGMENT_FD_FIRST + (int)worker), SEGMENT_FD_FIRST + (int)worker);
    close(fd);
    CK_DIST(segment_create(&stage.sides[worker].outbox, (uint16_t)worker, SEGMENT_BYTES, &stage.error));
}

/* The descriptors at which segments are looked for, before anybody else has them. First thing in main. */
static inline void dist_reserve_descriptors(void)
{
    for (int i = 0; i < MEMBERS; i++)
        if (fcntl(SEGMENT_FD_FIRST + i, F_GETFD) < 0)
            dup2(STDIN_FILENO, SEGMENT_FD_FIRST + i);
}

static inline void dist_side_start(unsigned worker)
{
    struct dist_side *side = &stage.sides[worker];
    const struct backend_settings one = {.threads = 1};
    side->member = &stage.cluster.members[worker];
    CK_DIST(stage.ops != NULL ? backend_open(&side->backend, stage.ops, &one, &stage.error)
                              : backend_load(&side->backend, "onednn", &one, &stage.error));
    struct rrefs_config config = {.rpc = side->member->rpc,
                                  .classes = dist_classes,
                                  .class_count = 3,
                                  .objects_max = 2 * KNOTS_MAX,
                                  .references_max = 4 * KNOTS_MAX,
                                  .context = side,
                                  .taken = dist_on_taken};
    CK_DIST(rrefs_new(&side->rrefs, &config, &stage.error));
    struct dist_config dist = {.rpc = side->member->rpc,
                               .rrefs = side->rrefs,
                               .outbox = stage.shared ? &side->outbox : NULL,
                               .contexts_max = stage.contexts_max,
                               .pieces_max = stage.pieces_max};
    CK_DIST(dist_new(&side->dist, &dist, &stage.error));
    rpc_on_turn(side->member->rpc, dist_turn_others, side);
}

static inline struct rpc_config dist_rpc_config(unsigned worker)
{
    struct rpc_config config = cluster_config(&stage.cluster.members[worker]);
    config.pending_max = config.incoming_max = 256;
    if (stage.shared) {
        dist_take_segment(worker);
        config.outbox = &stage.sides[worker].outbox;
    }
    return config;
}

/* `workers` of them: the cluster's servers, then its clients. */
static inline void dist_start_with(const struct backend_ops *ops, bool shared, unsigned workers,
                                   uint32_t pieces_max)
{
    stage = (struct stage){
        .ops = ops, .shared = shared, .workers = workers, .pieces_max = pieces_max, .contexts_max = 16};
    cluster_make_addresses(&stage.cluster);
    for (unsigned i = 0; i < workers; i++) {
        struct rpc_config config = dist_rpc_config(i);
        if (i < SERVERS)
            cluster_serve(&stage.cluster, (uint16_t)i, &config);
        else
            CK_DIST(cluster_try_join(&stage.cluster, &config, &stage.cluster.members[i].rpc, net_in_ms(5000),
                                     &stage.error));
    }
    for (unsigned i = 0; i < workers; i++)
        dist_side_start(i);
}

static inline void dist_start(const struct backend_ops *ops, bool shared, unsigned workers)
{
    dist_start_with(ops, shared, workers, 4096);
}

/* A client that was killed is here again, without references. */
static inline void dist_client_again(unsigned worker, uint32_t incarnation)
{
    struct rpc_config config = dist_rpc_config(worker);
    config.incarnation = incarnation;
    backend_close(stage.sides[worker].backend);
    memset(stage.sides[worker].object, 0, sizeof stage.sides[worker].object);
    CK_DIST(cluster_try_join(&stage.cluster, &config, &stage.cluster.members[worker].rpc, net_in_ms(5000),
                             &stage.error));
    dist_side_start(worker);
}

static inline void dist_turns(unsigned turns)
{
    for (unsigned i = 0; i < turns; i++)
        for (unsigned w = 0; w < MEMBERS; w++)
            if (stage.sides[w].dist != NULL && !stage.stalls[w]) {
                stage.is_turning_others = true;
                rpc_turn(stage.cluster.members[w].rpc, (struct monotime){0});
                stage.is_turning_others = false;
            }
}

/* One turn of all, and a moment for what is on its way. */
static inline void dist_wait(void)
{
    dist_turns(1);
    usleep(50);
}

/* Makes object `name` of `class` on `owner`, for all. */
static inline void dist_object(unsigned owner, const char *class, unsigned name)
{
    struct rpc_message arguments = {.args = {0, name, class[0] == 't' ? TABLE_ROWS : 0}};
    struct rref **first = &stage.sides[0].object[name];
    CK_DIST(rpc_remote(stage.sides[0].rrefs, (uint16_t)owner, class, &arguments, first, &stage.error));
    UNTIL(rref_ready(*first, &stage.error) != STATUS_AGAIN, dist_wait());
    CK_DIST(rref_ready(*first, &stage.error));
    for (unsigned i = 1; i < stage.workers; i++) {
        struct future *future;
        CK_DIST(rref_share(*first, (uint16_t)i, name, &future, &stage.error));
        UNTIL(future_done(future), dist_wait());
        ck_assert_int_eq(future_status(future), STATUS_OK);
        future_release(future);
    }
    stage.objects = name >= stage.objects ? name + 1 : stage.objects;
    stage.tables += class[0] == 't';
}

static inline struct dist_counts dist_counts_of(unsigned worker)
{
    struct dist_counts counts;
    dist_counts(stage.sides[worker].dist, &counts);
    return counts;
}

/* Contexts and pieces of all workers. */
static inline unsigned dist_left(void)
{
    unsigned left = 0;
    for (unsigned w = 0; w < MEMBERS; w++)
        if (stage.sides[w].dist != NULL)
            left += dist_counts_of(w).contexts + dist_counts_of(w).pieces;
    return left;
}

static inline void dist_expect_nothing_left(void)
{
    UNTIL(dist_left() == 0, dist_wait());
}

/* Nothing may be left: no context, no piece, no object. */
static inline void dist_end(void)
{
    dist_expect_nothing_left();
    for (unsigned w = 0; w < MEMBERS; w++)
        for (unsigned i = 0; i < KNOTS_MAX; i++)
            if (stage.sides[w].dist != NULL)
                rref_release(stage.sides[w].object[i]);
    UNTIL(stage.knots_alive == 0, dist_wait());
    for (unsigned w = 0; w < MEMBERS; w++)
        if (stage.sides[w].dist != NULL)
            dist_side_free(w);
    cluster_free(&stage.cluster);
    for (unsigned w = 0; w < MEMBERS; w++) {
        backend_close(stage.sides[w].backend);
        segment_detach(&stage.sides[w].outbox);
    }
}

/* ---- roots ---- */

static inline struct tape *dist_tape(unsigned worker)
{
    struct dist_side *side = &stage.sides[worker];
    struct tape *tape;
    const struct arena_source source = dist_arena_source(side->dist);
    const bool host = side->backend->ops->host;
    CK_DIST(tape_new_in(&tape, side->backend, host ? &source : &side->backend->source, &stage.error));
    return tape;
}

static inline struct dist_context *dist_begin(unsigned worker, struct tape *tape)
{
    struct dist_context *context;
    CK_DIST(dist_context_new(&context, stage.sides[worker].dist, TAPE_TRAIN, tape, NULL, &stage.error));
    return context;
}

#endif
