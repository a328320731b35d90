/* Distributed autograd (worker/autograd/dist.h) without room: in queues for END_CONTEXT, in the
 * outbox. And that the backward of a piece that has called others is awaited. */
#include "kernels/params/gradients.h"
#include "test/worker/autograd/dist_fixture.h"
#include "test/workplace.h"
#include "worker/autograd/dist_message.h"

enum { ROOT = 0, OWNER = 1, PEER = 2, ROWS = 2, LARGE_ROWS = 4100, FULL_MAX = 1024 };

static struct tape *tape;
static struct dist_context *context;

static void begin(unsigned root)
{
    tape = dist_tape(root);
    context = dist_begin(root, tape);
}

static void end(void)
{
    dist_context_free(context);
    dist_expect_nothing_left();
    tape_free(tape);
}

static struct variable *rows(uint32_t count)
{
    float *values = malloc((size_t)count * WIDTH * sizeof *values);
    for (uint32_t i = 0; i < count * WIDTH; i++)
        values[i] = (float)(mix(7, i) % 1000) / 500 - 1;
    struct variable *x = tape_input(tape, SHAPE2(count, WIDTH), DTYPE_F32, "x", values);
    free(values);
    return x;
}

static struct variable *call_one(unsigned root, unsigned name, uint32_t function, uint64_t number,
                                 struct variable *x)
{
    struct variable *out;
    CK_DIST(dist_call(context, stage.sides[root].object[name], function, &number, 1, &x, 1, &out, 1));
    return out;
}

/* ---- the end of a context ---- */

/* Calls of `from` to `to` which is not turned, until there is no room for one more. */
static unsigned fill(unsigned from, unsigned to, struct future *futures[FULL_MAX])
{
    unsigned count = 0;
    enum status status = STATUS_OK;
    while (count < FULL_MAX && status == STATUS_OK) {
        status = rpc_call_async(stage.cluster.members[from].rpc, (uint16_t)to, METHOD_ECHO, NULL,
                                MONOTIME_NEVER, &futures[count], &stage.error);
        count += status == STATUS_OK;
    }
    ck_assert_int_eq(status, STATUS_BUSY);
    return count;
}

START_TEST(an_end_without_room_is_told_later)
{
    struct future *futures[FULL_MAX];
    dist_start(&ref_ops, false, 3);
    dist_object(OWNER, "knot", 0);
    begin(ROOT);
    call_one(ROOT, 0, KNOT_MAP, 0, rows(ROWS));
    stage.stalls[OWNER] = true;
    const unsigned count = fill(ROOT, OWNER, futures);
    dist_context_free(context);
    for (unsigned i = 0; i < count; i++)
        future_release(futures[i]);
    stage.stalls[OWNER] = false;
    dist_expect_nothing_left(); // though there is no other context
    tape_free(tape);
    dist_end();
}
END_TEST

/* As many calls are open at the owner as may be: one more is refused there, but the end of a context is not.
 */
START_TEST(an_end_is_taken_however_many_calls_are_open)
{
    struct future *futures[FULL_MAX];
    dist_start(&ref_ops, false, 3);
    dist_object(OWNER, "knot", 0);
    begin(ROOT);
    call_one(ROOT, 0, KNOT_MAP, 0, rows(ROWS));
    struct rpc_message keep = {.context = (uint64_t)PEER << 48 | 77,
                               .args = {rref_object(stage.sides[PEER].object[0]), KNOT_KEEP, 0, 1}};
    unsigned count = 0;
    for (; rpc_call_async(stage.cluster.members[PEER].rpc, OWNER, METHOD_FORWARD, &keep, MONOTIME_NEVER,
                          &futures[count], &stage.error) == STATUS_OK;
         count++)
        keep.args[2]++;
    UNTIL(dist_counts_of(OWNER).pieces >= 1 + count, dist_wait());
    ck_assert_uint_eq(dist_counts_of(OWNER).pieces, 1 + count);
    struct future *refused;
    CK_DIST(rpc_call_async(stage.cluster.members[ROOT].rpc, OWNER, METHOD_ECHO, NULL, MONOTIME_NEVER,
                           &refused, &stage.error));
    UNTIL(future_done(refused), dist_wait());
    ck_assert_int_eq(future_status(refused), STATUS_BUSY);
    future_release(refused);
    dist_context_free(context);
    UNTIL(dist_counts_of(OWNER).contexts <= 1, dist_wait());
    ck_assert_uint_eq(dist_counts_of(OWNER).contexts, 1);
    for (unsigned i = 0; i < count; i++)
        future_release(futures[i]);
    dist_kill(PEER);
    dist_expect_nothing_left();
    tape_free(tape);
    dist_end();
}
END_TEST

/* ---- ends that cannot be told ---- */

/* The nested call finds no room: whom nothing was asked, nothing need be told. */
START_TEST(an_end_is_not_told_whom_no_call_has_left_for)
{
    struct future *futures[FULL_MAX];
    dist_start(&ref_ops, false, 3);
    dist_object(OWNER, "knot", 0);
    dist_object(PEER, "knot", 1);
    stage.stalls[PEER] = true;
    const unsigned count = fill(OWNER, PEER, futures);
    begin(ROOT);
    const uint64_t numbers[2] = {1, KNOT_MAP};
    struct variable *x = rows(ROWS), *out;
    ck_assert_int_eq(dist_call(context, stage.sides[ROOT].object[0], KNOT_NESTED, numbers, 2, &x, 1, &out, 1),
                     STATUS_BUSY);
    end();
    for (unsigned i = 0; i < count; i++)
        future_release(futures[i]);
    stage.stalls[PEER] = false;
    dist_end();
}
END_TEST

/* Each context has called one who takes nothing any more. Their ends wait, and hold back no other context. */
START_TEST(ends_that_wait_hold_nothing_back)
{
    enum { CONTEXTS = 16 };
    struct future *futures[FULL_MAX];
    struct tape *tapes[CONTEXTS];
    struct dist_context *contexts[CONTEXTS];
    dist_start(&ref_ops, false, 3);
    ck_assert_uint_eq(stage.contexts_max, CONTEXTS);
    dist_object(OWNER, "knot", 0);
    dist_object(PEER, "knot", 1);
    for (unsigned i = 0; i < CONTEXTS; i++) {
        begin(ROOT);
        const uint64_t numbers[2] = {1, KNOT_MAP};
        struct variable *x = rows(ROWS), *out;
        CK_DIST(dist_call(context, stage.sides[ROOT].object[0], KNOT_NESTED, numbers, 2, &x, 1, &out, 1));
        tapes[i] = tape;
        contexts[i] = context;
    }
    stage.stalls[PEER] = true;
    const unsigned count = fill(OWNER, PEER, futures);
    for (unsigned i = 0; i < CONTEXTS; i++) {
        dist_context_free(contexts[i]);
        tape_free(tapes[i]);
    }
    UNTIL(dist_counts_of(OWNER).contexts == 0, dist_wait());
    ck_assert_uint_eq(dist_counts_of(OWNER).contexts, 0);
    begin(ROOT);
    call_one(ROOT, 0, KNOT_MAP, 0, rows(ROWS));
    dist_context_free(context);
    tape_free(tape);
    ck_assert_uint_eq(dist_counts_of(PEER).contexts, CONTEXTS);
    for (unsigned i = 0; i < count; i++)
        future_release(futures[i]);
    stage.stalls[PEER] = false;
    dist_expect_nothing_left();
    dist_end();
}
END_TEST

/* No future is left for an end, and later there is one, without a message that would end the wait. */
START_TEST(an_end_without_a_future_wakes_the_next_turn)
{
    static struct future *futures[FUTURES_MAX];
    dist_start(&ref_ops, false, 3);
    struct rpc *rpc = stage.cluster.members[ROOT].rpc;
    dist_object(OWNER, "knot", 0);
    begin(ROOT);
    call_one(ROOT, 0, KNOT_MAP, 0, rows(ROWS));
    dist_turns(20);
    stage.is_quiet = true;
    dist_turns(1);
    const unsigned count = futures_take(rpc, futures);
    dist_context_free(context);
    futures_give(futures, count);
    rpc_turn(rpc, MONOTIME_NEVER);
    stage.is_quiet = false;
    dist_expect_nothing_left();
    tape_free(tape);
    dist_end();
}
END_TEST

/* ---- the outbox ---- */

/* Takes what is left of a worker's outbox. */
static unsigned fill_outbox(unsigned worker, void *chunks[FULL_MAX], size_t bytes)
{
    const struct segment *outbox = &stage.sides[worker].outbox;
    const struct arena_source source = dist_arena_source(stage.sides[worker].dist);
    unsigned count = 0;
    bool is_inside = true;
    while (is_inside) {
        ck_assert_uint_lt(count, FULL_MAX);
        unsigned char *chunk = source.take(source.context, bytes);
        ck_assert_ptr_nonnull(chunk);
        is_inside = chunk >= outbox->data && chunk < outbox->data + outbox->bytes;
        chunks[count++] = chunk;
    }
    return count;
}

static void empty_outbox(unsigned worker, void *chunks[FULL_MAX], unsigned count, size_t bytes)
{
    const struct arena_source source = dist_arena_source(stage.sides[worker].dist);
    while (count-- > 0)
        source.give(source.context, chunks[count], bytes);
}

/* The gradient of the input of a call with large tensors, whose outboxes are full or not. */
static void large_gradient(bool is_full, float *gradient)
{
    static void *chunks[2][FULL_MAX];
    const size_t bytes = SEGMENT_BYTES / 512;
    unsigned counts[2] = {0};
    dist_start(&ref_ops, true, 2);
    dist_object(OWNER, "knot", 0);
    for (unsigned w = 0; w < 2 && is_full; w++)
        counts[w] = fill_outbox(w, chunks[w], bytes);
    begin(ROOT);
    struct variable *x = rows(LARGE_ROWS);
    tape_want_gradient(x);
    struct variable *y = call_one(ROOT, 0, KNOT_MAP, 0, x);
    CK_DIST(dist_backward(context, tape_mse(tape, y, rows(LARGE_ROWS)), &stage.error));
    CK_DIST(backend_download(tape_backend(tape), variable_gradient(x), DTYPE_F32, gradient, &stage.error));
    end();
    for (unsigned w = 0; w < 2; w++)
        empty_outbox(w, chunks[w], counts[w], bytes);
    dist_end();
}

START_TEST(a_full_outbox_changes_no_number)
{
    static float lent[LARGE_ROWS * WIDTH], copied[LARGE_ROWS * WIDTH];
    large_gradient(false, lent);
    large_gradient(true, copied);
    for (unsigned i = 0; i < LARGE_ROWS * WIDTH; i++)
        ck_assert(lent[i] == copied[i]);
    ck_assert(lent[0] != 0);
}
END_TEST

/* ---- clients ---- */

/* Workers 3 and 4 have connections to the servers alone: each calls the other, and the other calls back. */
START_TEST(clients_call_each_other_within_a_context)
{
    enum { FIRST = SERVERS, SECOND = SERVERS + 1 };
    struct variable *out;
    dist_start(&ref_ops, _i, MEMBERS);
    dist_object(FIRST, "knot", 0);
    dist_object(SECOND, "knot", 1);
    for (unsigned root = FIRST; root <= SECOND; root++) {
        const unsigned other = FIRST + SECOND - root;
        const uint64_t numbers[2] = {root - FIRST, KNOT_MAP};
        begin(root);
        struct variable *x = rows(_i == 0 ? ROWS : LARGE_ROWS);
        tape_want_gradient(x);
        CK_DIST(dist_call(context, stage.sides[root].object[other - FIRST], KNOT_NESTED, numbers, 2, &x, 1,
                          &out, 1));
        CK_DIST(dist_backward(context, tape_sum(tape, out, NULL, 1), &stage.error));
        ck_assert_ptr_nonnull(variable_gradient(x));
        for (unsigned w = FIRST; w <= SECOND; w++) {
            struct gradients *gradients;
            CK_DIST(dist_gradients(stage.sides[w].dist, dist_context_id(context),
                                   rref_local(stage.sides[w].object[w - FIRST]), &gradients, &stage.error));
            ck_assert_ptr_nonnull(gradients);
        }
        ck_assert_uint_eq(dist_counts_of(0).contexts, 0); // which only passes on
        end();
    }
    dist_end();
}
END_TEST

/* ---- who is awaited ---- */

enum { WEIGHTS = WIDTH * WIDTH };

/* The gradient of object 0's weight by the calls of a mask: 0 and 2 are its map alone, 1 goes on to object 1,
 * whose answer its own gradient waits for. No input gradient is asked for. */
static void weight_gradient(unsigned calls, double gradient[WEIGHTS])
{
    static const double scales[3] = {-1e17, 111, 1e17};
    struct variable *loss = NULL;
    struct gradients *gradients;
    begin(ROOT);
    struct variable *x = rows(1);
    for (unsigned i = 0; i < 3; i++) {
        if (!(calls >> i & 1))
            continue;
        struct variable *y = call_one(ROOT, 0, i == 1 ? KNOT_UNDER : KNOT_MAP, 1, x);
        struct variable *part = tape_sum(tape, y, NULL, scales[i]);
        loss = loss == NULL ? part : tape_add(tape, loss, part, false);
    }
    stage.sides[PEER].asleep = 40;
    CK_DIST(dist_backward(context, loss, &stage.error));
    struct knot *knot = rref_local(stage.sides[OWNER].object[0]);
    CK_DIST(
        dist_gradients(stage.sides[OWNER].dist, dist_context_id(context), knot, &gradients, &stage.error));
    CK_DIST(gradients_read(gradients, knot->weight, DTYPE_F64, gradient, &stage.error));
    end();
}

/* Were the second call not awaited, the first one's gradient, which cancels the third's, would be added
 * before its own, and none of its digits be lost. */
START_TEST(who_has_called_others_is_awaited)
{
    double each[3][WEIGHTS], sum[WEIGHTS];
    bool shows = false;
    dist_start(&ref_ops, false, 3);
    dist_object(OWNER, "knot", 0);
    dist_object(PEER, "knot", 1);
    for (unsigned i = 0; i < 3; i++)
        weight_gradient(1u << i, each[i]);
    weight_gradient(7, sum);
    for (unsigned i = 0; i < WEIGHTS; i++) {
        const double walked = (each[2][i] + each[1][i]) + each[0][i];
        ck_assert_msg(sum[i] == walked, "weight %u: %.17g, expected %.17g", i, sum[i], walked);
        shows = shows || (each[2][i] + each[0][i]) + each[1][i] != walked;
    }
    ck_assert(shows);
    dist_end();
}
END_TEST

int main(void)
{
    dist_reserve_descriptors();
    Suite *suite = suite_create("dist_room");
    TCase *room = tcase_create("room");
    tcase_set_timeout(room, 60);
    tcase_add_test(room, an_end_without_room_is_told_later);
    tcase_add_test(room, an_end_without_a_future_wakes_the_next_turn);
    tcase_add_test(room, an_end_is_taken_however_many_calls_are_open);
    tcase_add_test(room, an_end_is_not_told_whom_no_call_has_left_for);
    tcase_add_test(room, ends_that_wait_hold_nothing_back);
    tcase_add_test(room, a_full_outbox_changes_no_number);
    tcase_add_loop_test(room, clients_call_each_other_within_a_context, 0, 2);
    tcase_add_test(room, who_has_called_others_is_awaited);
    suite_add_tcase(suite, room);
    return suite_run(suite);
}
