/* The time of one call within an autograd context, forward and backward, of an object that computes next to
 * nothing: on another worker (a thread of this process, over its socket), and on the caller itself. */
#include "test/worker/autograd/dist_fixture.h"
#include "test/workplace.h"

enum { OWNER = 0, CALLER = 1, WARM_UP = 500, STEPS = 5000 };

static void step(struct tape *tape, unsigned name)
{
    static const float values[WIDTH] = {1, 2, 3, 4};
    struct dist_context *context = dist_begin(CALLER, tape);
    struct variable *x = tape_input(tape, SHAPE2(1, WIDTH), DTYPE_F32, "x", values), *y;
    tape_want_gradient(x);
    CK_DIST(dist_call(context, stage.sides[CALLER].object[name], KNOT_MAP, NULL, 0, &x, 1, &y, 1));
    CK_DIST(dist_backward(context, tape_sum(tape, y, NULL, 1), &stage.error));
    dist_context_free(context);
}

static double step_us(struct tape *tape, unsigned name)
{
    for (unsigned i = 0; i < WARM_UP; i++)
        step(tape, name);
    const struct monotime begin = monotime_now();
    for (unsigned i = 0; i < STEPS; i++)
        step(tape, name);
    return (double)monotime_us_between(begin, monotime_now()) / STEPS;
}

START_TEST(measure)
{
    struct net_turner turner;
    dist_start(&ref_ops, false, 2);
    dist_object(OWNER, "knot", 0);
    dist_object(CALLER, "knot", 1);
    struct tape *tape = dist_tape(CALLER);
    stage.stalls[OWNER] = stage.stalls[CALLER] = true; // each thread turns its own worker
    net_turner_start(&turner, stage.cluster.members[OWNER].rpc);
    printf("context, call, backward, end: %.0f us on another worker", step_us(tape, 0));
    printf(", %.0f us on its own (1x%d linear, %d steps)\n", step_us(tape, 1), WIDTH, STEPS);
    net_turner_stop(&turner);
    stage.stalls[OWNER] = stage.stalls[CALLER] = false;
    stage.is_awake = true;
    tape_free(tape);
    dist_end();
}
END_TEST

/* A Check suite, because the fixture's checks need a running test. */
int main(void)
{
    dist_reserve_descriptors();
    Suite *suite = suite_create("bench_dist");
    TCase *bench = tcase_create("bench");
    tcase_set_timeout(bench, 120);
    tcase_add_test(bench, measure);
    suite_add_tcase(suite, bench);
    return suite_run(suite);
}
