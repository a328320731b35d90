/* Workers of test/worker/net/net_cluster.h, three or more, with objects (test/worker/autograd/dist_knots.h)
 * that are called within contexts. All run on the test's thread: a turn of one worker turns the others at its
 * end, so that a root may block. For test programs, which each use what they need. */
#ifndef TEST_WORKER_AUTOGRAD_DIST_FIXTURE_H
#define TEST_WORKER_AUTOGRAD_DIST_FIXTURE_H

#include "test/worker/autograd/dist_knots.h"

#include <fcntl.h>

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
            rpc_peer_died(stage.cluster.members[i].rpc, (uint16_t)worker, UINT32_MAX, "it was killed");
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
    CK_DIST(dist_context_new(&context, stage.sides[worker].dist, TAPE_TRAIN, tape, &stage.error));
    return context;
}

#endif
