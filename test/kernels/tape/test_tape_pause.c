/* Nodes of a higher layer on the tape: their gradients, walks that pause and resume, and that each node is
 * let go exactly once, however its step ends. */
#include "kernels/params/gradients.h"
#include "test/kernels/tape/tape_fixture.h"
#include "test/workplace.h"

#include <math.h>

/* How a link hands its input gradient on. */
enum style {
    DOUBLES,       /* y = 2 x: into memory of the arena, or where it is told to */
    PASSES_ON,     /* y = x: the output's gradient itself */
    IGNORES_PLACE, /* y = 2 x: always into memory of the arena */
    IS_CONSTANT,   /* no gradient */
    IS_MISSHAPEN,  /* a gradient of another shape */
    FAILS,
};

/* One node: a pretended remote call, that answers after `waits` askings. */
struct link {
    enum style style;
    int waits;
    int asked, begun, released;
    const struct tensor *dout, *din; /* of the first asking */
    double input;                    /* x[0], read again by the backward */
    struct variable *x;
};

static enum status link_gradient(const struct link *link, struct tape *tape, const struct tensor *dout,
                                 struct tensor *din, struct error *error)
{
    if (link->style == IS_CONSTANT || din == NULL)
        return STATUS_OK;
    if (link->style == PASSES_ON && din->data == NULL) {
        din->data = dout->data;
        din->bytes = dout->bytes;
        return STATUS_OK;
    }
    if (din->data == NULL || link->style == IGNORES_PLACE) {
        struct shape shape = link->style == IS_MISSHAPEN ? SHAPE1(7) : din->shape;
        enum status status = tensor_new(din, tape_arena(tape), shape, din->dtype, "din", error);
        if (status != STATUS_OK || link->style == IS_MISSHAPEN)
            return status;
    }
    for (size_t i = 0; i < shape_elements(&din->shape); i++)
        ((double *)din->data)[i] = (link->style == PASSES_ON ? 1 : 2) * ((const double *)dout->data)[i];
    return STATUS_OK;
}

static enum status link_backward(void *context, struct tape *tape, bool first,
                                 const struct tensor *const dout[], struct tensor *const din[],
                                 struct error *error)
{
    struct link *link = context;
    link->asked++;
    link->begun += first;
    if (first) {
        link->dout = dout[0];
        link->din = din[0];
    }
    ck_assert_ptr_eq(link->dout, dout[0]);
    ck_assert_ptr_eq(link->din, din[0]);
    ck_assert(*(const double *)variable_tensor(link->x)->data == link->input);
    if (link->asked <= link->waits)
        return STATUS_AGAIN;
    if (link->style == FAILS)
        return error_set(error, STATUS_PEER_DIED, "the far end is gone");
    return link_gradient(link, tape, dout[0], din[0], error);
}

static void link_release(void *context)
{
    struct link *link = context;
    link->released++;
}

/* Records the link's forward: y = x or 2 x. */
static struct variable *put(struct tape *tape, struct link *link, struct variable *x)
{
    struct variable *out[1] = {NULL};
    struct tape_node node = {.name = "link",
                             .context = link,
                             .backward = link_backward,
                             .release = link_release,
                             .inputs = 1,
                             .outputs = 1,
                             .in = {x}};
    if (x != NULL) {
        const struct tensor *from = variable_tensor(x);
        link->x = x;
        link->input = *(const double *)from->data;
        ck_assert_int_eq(tensor_new(&node.out[0], tape_arena(tape), from->shape, from->dtype, NULL, NULL),
                         STATUS_OK);
        for (size_t i = 0; i < shape_elements(&from->shape); i++)
            ((double *)node.out[0].data)[i] =
                (link->style == PASSES_ON ? 1 : 2) * ((const double *)from->data)[i];
    }
    tape_node(tape, &node, out);
    return out[0];
}

/* ---- two interleaved walks ---- */

enum { LINKS = 3, TAPES = 3 };

struct walker {
    struct tape *tape;
    struct gradients *gradients;
    struct link links[LINKS];
    struct variable *loss;
};

static struct parameter *weight[2];

static void walker_open(struct walker *walker)
{
    CK_OK(tape_new(&walker->tape, fixture.backend, &fixture.error));
    CK_OK(gradients_new(&walker->gradients, fixture.params, &fixture.error));
    arena_poison(tape_arena(walker->tape), true);
}

static void walker_close(struct walker *walker)
{
    tape_free(walker->tape);
    gradients_free(walker->gradients);
}

/* x -> linear -> link -> relu -> link -> linear, a link on the second weight, an addition around all but the
 * first: links hang between operations, on a parameter and beside a shared variable. */
static void record(struct walker *walker, const int waits[LINKS])
{
    static const enum style styles[LINKS] = {DOUBLES, PASSES_ON, IGNORES_PLACE};
    static const double rows[] = {0.5, -1, 2, 1.5, 0.25, 3}, targets[] = {1, 2, 3, 4, 5, 6};
    struct tape *tape = walker->tape;
    for (int i = 0; i < LINKS; i++)
        walker->links[i] = (struct link){.style = styles[i], .waits = waits[i]};
    tape_begin(tape, TAPE_TRAIN, walker->gradients);
    struct variable *x = tape_input(tape, SHAPE2(2, 3), DTYPE_F64, "x", rows);
    struct variable *target = tape_input(tape, SHAPE2(2, 3), DTYPE_F64, "target", targets);
    struct variable *second = put(tape, &walker->links[2], tape_parameter(tape, weight[1]));
    struct variable *h = tape_linear(tape, x, tape_parameter(tape, weight[0]), NULL);
    struct variable *r = tape_relu(tape, put(tape, &walker->links[0], h));
    struct variable *y = tape_linear(tape, put(tape, &walker->links[1], r), second, NULL);
    walker->loss = tape_mse(tape, tape_add(tape, tape_add(tape, y, h, false), r, true), target);
    ck_assert_ptr_nonnull(walker->loss);
}

static void expect_links(const struct walker *walker)
{
    for (int i = 0; i < LINKS; i++) {
        ck_assert_int_eq(walker->links[i].asked, walker->links[i].waits + 1);
        ck_assert_int_eq(walker->links[i].begun, 1);
        ck_assert_int_eq(walker->links[i].released, 1);
    }
}

static void expect_equal_gradients(const struct walker *a, const struct walker *b)
{
    for (int i = 0; i < 2; i++) {
        double left[9], right[9], zero[9] = {0};
        CK_OK(gradients_read(a->gradients, weight[i], DTYPE_F64, left, &fixture.error));
        CK_OK(gradients_read(b->gradients, weight[i], DTYPE_F64, right, &fixture.error));
        ck_assert_mem_eq(left, right, sizeof left);
        ck_assert_mem_ne(left, zero, sizeof left);
    }
}

static void open_weights(void)
{
    fixture_open();
    for (int i = 0; i < 2; i++)
        CK_OK(params_add(fixture.params, i == 0 ? "first" : "second", PARAMETER_TRAINED, SHAPE2(3, 3),
                         (struct init){INIT_UNIFORM, 1}, &weight[i], &fixture.error));
    fixture_build(3);
}

START_TEST(interleaved_walks_give_the_bits_of_unpaused_ones)
{
    static const int waits[TAPES][LINKS] = {{0, 0, 0}, {2, 0, 1}, {1, 3, 2}};
    struct walker walkers[TAPES];
    open_weights();
    for (int t = 0; t < TAPES; t++) {
        walker_open(&walkers[t]);
        record(&walkers[t], waits[t]);
    }
    ck_assert_int_eq(tape_backward(walkers[0].tape, walkers[0].loss), STATUS_OK);
    expect_links(&walkers[0]);
    enum status status[TAPES] = {STATUS_OK, tape_backward(walkers[1].tape, walkers[1].loss),
                                 tape_backward(walkers[2].tape, walkers[2].loss)};
    int turns[TAPES] = {0};
    while (status[1] == STATUS_AGAIN || status[2] == STATUS_AGAIN)
        for (int t = 1; t < TAPES; t++)
            if (status[t] == STATUS_AGAIN) {
                status[t] = tape_resume(walkers[t].tape);
                turns[t]++;
            }
    ck_assert_int_eq(turns[1], 3);
    ck_assert_int_eq(turns[2], 6);
    for (int t = 1; t < TAPES; t++) {
        ck_assert_int_eq(status[t], STATUS_OK);
        expect_links(&walkers[t]);
        expect_equal_gradients(&walkers[0], &walkers[t]);
    }
    ck_assert_int_eq(tape_resume(walkers[1].tape), STATUS_INVALID);
    for (int t = 0; t < TAPES; t++)
        walker_close(&walkers[t]);
    fixture_close();
}
END_TEST

/* The other tape records and walks anew while this one waits. */
START_TEST(a_paused_walk_outlives_its_neighbours_steps)
{
    static const int none[LINKS] = {0}, one[LINKS] = {1, 0, 0};
    struct walker paused, other;
    open_weights();
    walker_open(&paused);
    walker_open(&other);
    record(&paused, one);
    ck_assert_int_eq(tape_backward(paused.tape, paused.loss), STATUS_AGAIN);
    ck_assert_int_eq(tape_status(paused.tape, NULL), STATUS_OK); // waiting is no failure
    for (int step = 0; step < 3; step++) {
        record(&other, none);
        ck_assert_int_eq(tape_backward(other.tape, other.loss), STATUS_OK);
        expect_links(&other);
        ck_assert_int_eq(tape_finish(other.tape, NULL), STATUS_OK);
        expect_links(&other);
    }
    ck_assert_int_eq(tape_resume(paused.tape), STATUS_OK);
    expect_equal_gradients(&paused, &other);
    walker_close(&paused);
    walker_close(&other);
    fixture_close();
}
END_TEST

/* 0: by tape_finish, 1: by the next tape_begin, 2: by tape_free. */
START_TEST(a_paused_walk_that_is_ended_releases_once)
{
    static const int waits[LINKS] = {9, 0, 0};
    struct walker walker;
    open_weights();
    walker_open(&walker);
    record(&walker, waits);
    ck_assert_int_eq(tape_backward(walker.tape, walker.loss), STATUS_AGAIN);
    ck_assert_int_eq(tape_resume(walker.tape), STATUS_AGAIN);
    ck_assert_int_eq(walker.links[1].released, 1); // passed
    ck_assert_int_eq(walker.links[0].released, 0); // waits
    ck_assert_int_eq(walker.links[2].released, 0); // not reached
    if (_i == 0)
        ck_assert_int_eq(tape_finish(walker.tape, NULL), STATUS_OK);
    if (_i == 1)
        tape_begin(walker.tape, TAPE_TRAIN, walker.gradients);
    if (_i < 2) {
        ck_assert_uint_eq(arena_in_use(tape_arena(walker.tape)), 0);
        ck_assert_int_eq(tape_resume(walker.tape), STATUS_INVALID);
    }
    walker_close(&walker);
    for (int i = 0; i < LINKS; i++)
        ck_assert_int_eq(walker.links[i].released, 1);
    ck_assert_int_eq(walker.links[2].asked, 0);
    fixture_close();
}
END_TEST

/* ---- one node ---- */

/* p's gradient through one link, dyadic: 2 or 1 times (1, 10), with p used once more beside it or not. */
START_TEST(a_links_gradient_reaches_its_parameter)
{
    static const struct {
        enum style style;
        double factor;
    } cases[] = {{DOUBLES, 2}, {PASSES_ON, 1}, {IGNORES_PLACE, 2}, {IS_CONSTANT, 0}};
    const double factor = cases[_i].factor;
    fixture_open();
    struct parameter *p = fixture_add("p", SHAPE1(2));
    fixture_build(0);
    for (int beside = 0; beside < 4; beside++) {
        struct link link = {.style = cases[_i].style};
        struct tape *tape = fixture.tape;
        tape_begin(tape, TAPE_TRAIN, fixture.gradients);
        struct variable *v = tape_parameter(tape, p);
        struct variable *c = tape_input(tape, SHAPE1(2), DTYPE_F64, "c", (double[]){1, 10});
        struct variable *before = beside & 1 ? tape_sum(tape, v, NULL, 1) : NULL;
        struct variable *loss = tape_sum(tape, put(tape, &link, v), c, 1);
        struct variable *after = beside & 2 ? tape_sum(tape, v, NULL, 1) : NULL;
        loss = before != NULL ? tape_add(tape, loss, before, false) : loss;
        loss = after != NULL ? tape_add(tape, loss, after, false) : loss;
        CK_OK(tape_backward(tape, loss));
        CK_OK(tape_finish(tape, &fixture.error));
        const double more = (beside & 1) + (beside >> 1);
        fixture_expect_gradient(p, (double[]){factor + more, 10 * factor + more});
    }
    fixture_close();
}
END_TEST

/* A result that nobody used, and one that needs no gradient: never asked, released once. */
START_TEST(a_link_that_no_gradient_reaches_is_only_released)
{
    struct link unused = {.style = DOUBLES}, fixed = {.style = DOUBLES}, inferred = {.style = DOUBLES};
    fixture_open();
    struct tape *tape = fixture.tape;
    struct parameter *p = fixture_add("p", SHAPE1(1));
    fixture_build(0);
    tape_begin(tape, TAPE_TRAIN, fixture.gradients);
    put(tape, &unused, tape_parameter(tape, p));
    struct variable *x = tape_input(tape, SHAPE1(1), DTYPE_F64, "x", (double[]){3});
    struct variable *y = tape_add(tape, put(tape, &fixed, x), tape_parameter(tape, p), false);
    CK_OK(tape_backward(tape, tape_sum(tape, y, NULL, 1)));
    ck_assert_int_eq(unused.released, 1);
    ck_assert_int_eq(fixed.released, 1);
    CK_OK(tape_finish(tape, &fixture.error));
    fixture_expect_gradient(p, (double[]){1});
    tape_begin(tape, TAPE_INFER, NULL);
    y = put(tape, &inferred, tape_parameter(tape, p));
    fixture_expect_value(y, (double[]){0});
    ck_assert_int_eq(inferred.released, 0);
    CK_OK(tape_finish(tape, &fixture.error));
    ck_assert_int_eq(unused.asked + fixed.asked + inferred.asked, 0);
    ck_assert_int_eq(unused.released, 1);
    ck_assert_int_eq(fixed.released, 1);
    ck_assert_int_eq(inferred.released, 1);
    fixture_close();
}
END_TEST

static void expect_link_failure(enum style style, enum status status, const char *words)
{
    struct link link = {.style = style, .waits = 1};
    struct tape *tape = fixture.tape;
    tape_begin(tape, TAPE_TRAIN, NULL);
    struct variable *x = tape_input(tape, SHAPE1(1), DTYPE_F64, "x", (double[]){3});
    tape_want_gradient(x);
    struct variable *loss = tape_sum(tape, put(tape, &link, x), NULL, 1);
    ck_assert_int_eq(tape_backward(tape, loss), STATUS_AGAIN);
    ck_assert_int_eq(tape_resume(tape), status);
    fixture_expect_failure(status, words);
    ck_assert_int_eq(tape_resume(tape), status);
    ck_assert_int_eq(tape_finish(tape, NULL), status);
    ck_assert_int_eq(link.asked, 2);
    ck_assert_int_eq(link.released, 1);
}

START_TEST(a_link_that_fails_ends_the_walk)
{
    fixture_open();
    fixture_build(0);
    expect_link_failure(FAILS, STATUS_PEER_DIED, "the far end is gone");
    expect_link_failure(IS_MISSHAPEN, STATUS_INVALID,
                        "link: a gradient of float64 7 for input 0, expected float64 1");
    struct link refused = {.style = DOUBLES};
    tape_begin(fixture.tape, TAPE_TRAIN, NULL);
    tape_fail(fixture.tape, STATUS_IO, "broken");
    ck_assert_ptr_null(put(fixture.tape, &refused, NULL));
    ck_assert_int_eq(refused.released, 1);
    ck_assert_int_eq(tape_finish(fixture.tape, NULL), STATUS_IO);
    ck_assert_int_eq(refused.released, 1);
    fixture_close();
}
END_TEST

/* Two outputs of which one is used: the other's gradient is NULL. */
static enum status halves_backward(void *context, struct tape *tape, bool first,
                                   const struct tensor *const dout[], struct tensor *const din[],
                                   struct error *error)
{
    (void)tape;
    (void)first;
    (void)error;
    ck_assert_ptr_null(dout[0]);
    ck_assert_ptr_nonnull(dout[1]);
    ck_assert_ptr_null(din[1]); // needs none
    *din[0] = *dout[1];
    ++*(int *)context;
    return STATUS_OK;
}

START_TEST(an_unused_outputs_gradient_is_absent)
{
    int calls = 0;
    fixture_open();
    struct parameter *p = fixture_add("p", SHAPE1(2));
    fixture_build(0);
    struct tape *tape = fixture.tape;
    tape_begin(tape, TAPE_TRAIN, fixture.gradients);
    double values[2] = {5, 6};
    const struct tensor half = {
        .shape = SHAPE1(2), .dtype = DTYPE_F64, .data = values, .bytes = sizeof values};
    struct variable *out[2], *x = tape_constant(tape, &half);
    struct tape_node node = {.name = "halves",
                             .context = &calls,
                             .backward = halves_backward,
                             .inputs = 2,
                             .outputs = 2,
                             .in = {tape_parameter(tape, p), x},
                             .out = {half, half}};
    CK_OK(tape_node(tape, &node, out));
    CK_OK(tape_backward(tape, tape_sum(tape, out[1], x, 1)));
    ck_assert_int_eq(calls, 1);
    CK_OK(tape_finish(tape, &fixture.error));
    fixture_expect_gradient(p, values);
    fixture_expect(values, (double[]){5, 6}, 2, "constant");
    fixture_close();
}
END_TEST

/* ---- several tapes, one sum ---- */

/* While the first tape waits at a link on a parameter, the second adds to that parameter's gradient. */
START_TEST(tapes_that_add_have_one_sum)
{
    struct link waits = {.style = _i == 0 ? DOUBLES : IS_CONSTANT, .waits = 1};
    fixture_open();
    struct parameter *p = fixture_add("p", SHAPE1(2));
    struct parameter *idle = fixture_add("idle", SHAPE1(1));
    fixture_build(0);
    struct tape *first = fixture.tape, *second;
    CK_OK(tape_new(&second, fixture.backend, &fixture.error));
    for (int step = 0; step < 2; step++) {
        gradients_begin(fixture.gradients);
        tape_begin_adding(first, fixture.gradients);
        tape_begin_adding(second, fixture.gradients);
        struct variable *loss = tape_sum(first, put(first, &waits, tape_parameter(first, p)), NULL, 1);
        ck_assert_int_eq(tape_backward(first, loss), STATUS_AGAIN);
        CK_OK(tape_backward(second, tape_sum(second, tape_parameter(second, p), NULL, 5)));
        CK_OK(tape_resume(first));
        CK_OK(tape_finish(first, &fixture.error));
        tape_begin_adding(first, fixture.gradients);
        CK_OK(tape_backward(first, tape_sum(first, tape_parameter(first, p), NULL, 10)));
        const double sum = _i == 0 ? 17 : 15;
        fixture_expect_gradient(p, (double[]){sum, sum});
        fixture_expect_gradient(idle, (double[]){0});
        waits.asked = waits.begun = 0;
    }
    tape_free(second);
    fixture_close();
}
END_TEST

static enum status counts_backward(void *context, struct tape *tape, bool first,
                                   const struct tensor *const dout[], struct tensor *const din[],
                                   struct error *error)
{
    (void)tape;
    (void)first;
    (void)din;
    (void)error;
    ck_assert_ptr_nonnull(dout[0]);
    ++*(int *)context;
    return STATUS_OK;
}

/* A node without any input that needs a gradient is asked back when it reaches beyond the tape. */
START_TEST(a_node_that_reaches_beyond_is_asked_back)
{
    int calls = 0;
    double value = 4;
    fixture_open();
    fixture_build(0);
    for (int beyond = 0; beyond < 2; beyond++) {
        struct variable *out[1];
        struct tape_node node = {.name = "far",
                                 .context = &calls,
                                 .backward = counts_backward,
                                 .reaches_beyond = beyond,
                                 .outputs = 1,
                                 .out = {{.dtype = DTYPE_F64, .data = &value, .bytes = sizeof value}}};
        tape_begin(fixture.tape, TAPE_TRAIN, NULL);
        CK_OK(tape_node(fixture.tape, &node, out));
        ck_assert_int_eq(variable_needs_gradient(out[0]), beyond);
        CK_OK(tape_backward(fixture.tape, tape_sum(fixture.tape, out[0], NULL, 1)));
        ck_assert_int_eq(calls, beyond);
    }
    fixture_close();
}
END_TEST

/* Poison is on: what is given back is all NaN. */
START_TEST(a_kept_value_outlives_the_walk)
{
    fixture_open();
    struct parameter *p = fixture_add("p", SHAPE1(2));
    fixture_build(0);
    fixture_write(p, (double[]){3, 4});
    fixture_settle();
    fixture_begin();
    struct tape *tape = fixture.tape;
    struct variable *x = tape_relu(tape, tape_parameter(tape, p));
    struct variable *y = tape_add(tape, x, x, false);
    const double *kept = variable_tensor(x)->data, *lost = variable_tensor(y)->data;
    ck_assert(tape_keep(x));
    ck_assert(!tape_keep(tape_parameter(tape, p)));
    struct variable *loss = tape_sum(tape, tape_add(tape, y, x, false), NULL, 1);
    CK_OK(tape_backward(tape, loss));
    fixture_expect(kept, (double[]){3, 4}, 2, "kept");
    ck_assert(isnan(lost[0]));
    CK_OK(tape_finish(tape, &fixture.error));
    fixture_expect_gradient(p, (double[]){3, 3});
    fixture_close();
}
END_TEST

/* ---- an arena's source of one's own ---- */

struct counted {
    size_t taken, given;
};

static void *counted_take(void *context, size_t bytes)
{
    ((struct counted *)context)->taken += bytes;
    return arena_host.take(arena_host.context, bytes);
}

static void counted_give(void *context, void *chunk, size_t bytes)
{
    ((struct counted *)context)->given += bytes;
    arena_host.give(arena_host.context, chunk, bytes);
}

START_TEST(a_tapes_memory_comes_from_its_source)
{
    struct counted counted = {0};
    const struct arena_source source = {
        .context = &counted, .take = counted_take, .give = counted_give, .poison = arena_host.poison};
    struct tape *tape;
    fixture_open();
    fixture_build(0);
    CK_OK(tape_new_in(&tape, fixture.backend, &source, &fixture.error));
    tape_begin(tape, TAPE_INFER, NULL);
    ck_assert_uint_eq(counted.taken, 0);
    ck_assert_ptr_nonnull(tape_input(tape, SHAPE1(2), DTYPE_F64, "x", (double[]){1, 2}));
    ck_assert_uint_ge(counted.taken, 2 * sizeof(double));
    tape_free(tape);
    ck_assert_uint_eq(counted.taken, counted.given);
    fixture_close();
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("tape_pause");
    TCase *walks = tcase_create("walks");
    tcase_add_test(walks, interleaved_walks_give_the_bits_of_unpaused_ones);
    tcase_add_test(walks, a_paused_walk_outlives_its_neighbours_steps);
    tcase_add_loop_test(walks, a_paused_walk_that_is_ended_releases_once, 0, 3);
    suite_add_tcase(suite, walks);
    TCase *nodes = tcase_create("nodes");
    tcase_add_loop_test(nodes, a_links_gradient_reaches_its_parameter, 0, 4);
    tcase_add_test(nodes, a_link_that_no_gradient_reaches_is_only_released);
    tcase_add_test(nodes, a_link_that_fails_ends_the_walk);
    tcase_add_test(nodes, an_unused_outputs_gradient_is_absent);
    tcase_add_test(nodes, a_node_that_reaches_beyond_is_asked_back);
    suite_add_tcase(suite, nodes);
    TCase *sharing = tcase_create("sharing");
    tcase_add_loop_test(sharing, tapes_that_add_have_one_sum, 0, 2);
    tcase_add_test(sharing, a_kept_value_outlives_the_walk);
    tcase_add_test(sharing, a_tapes_memory_comes_from_its_source);
    suite_add_tcase(suite, sharing);
    return suite_run(suite);
}
