/* A model-parallel job's trainer without a model: the lead's pause of another trainer for a checkpoint, and
 * the plateau schedule: the losses that lower the rate, and the losses that do not.
 *
 * Both trainers run on the test's thread. While the lead waits, each of its turns ends with one of every
 * other worker; the other trainer's iteration ends after ITERATION_TURNS of them. */
#include "test/worker/net/net_cluster.h"
#include "test/workplace.h"
#include "worker/model_parallel/parallel_trainer.c" // NOLINT(bugprone-suspicious-include): half a trainer

enum { LEAD = SERVERS, OTHER, ITERATION_TURNS = 5, STATE = 2 };

static struct cluster cluster;
static struct parallel_trainer lead, other;
static struct job job;
static struct error error;
static float state[STATE];
static unsigned turns_left; /* of the other's iteration */

#define OK(call)                                                                                             \
    do {                                                                                                     \
        enum status made = (call);                                                                           \
        ck_assert_msg(made == STATUS_OK, "%s: %s: %s", #call, status_name(made), error.text);                \
    } while (0)

static void begin_iteration(void)
{
    ck_assert(!other.is_paused);
    other.in_iteration = true;
    turns_left = ITERATION_TURNS;
}

/* Its step has reached every owner. */
static void end_iteration(void)
{
    other.in_iteration = false;
    other.iteration++;
    state[0] += 1;
    peer_answer(&other);
}

static struct monotime turn_others(void *arg)
{
    (void)arg;
    for (unsigned i = 0; i < MEMBERS; i++)
        if (i != LEAD)
            rpc_turn(cluster.members[i].rpc, (struct monotime){1});
    if (turns_left > 0 && --turns_left == 0)
        end_iteration();
    return monotime_add_us(monotime_now(), 200);
}

static void taken(void *context, uint16_t from, uint64_t tag, struct rref *rref)
{
    (void)context, (void)from;
    lead.peers[tag] = rref;
}

static void open_trainer(struct parallel_trainer *trainer, uint16_t worker)
{
    static const struct rref_class *const classes[] = {&parallel_trainer_class};
    *trainer = (struct parallel_trainer){.job = &job,
                                         .number = worker - LEAD,
                                         .trainers = 2,
                                         .data.rnn = {.hidden = STATE, .layers = 1},
                                         .hidden = {.count = STATE, .h = state, .c = state}};
    trainer->base.rpc = cluster.members[worker].rpc;
    const struct rrefs_config config = {.rpc = trainer->base.rpc,
                                        .classes = classes,
                                        .class_count = 1,
                                        .objects_max = 2,
                                        .references_max = 2,
                                        .taken = taken};
    OK(rrefs_new(&trainer->base.rrefs, &config, &error));
}

static void introduce(void)
{
    struct rref *self;
    struct future *shared;
    OK(rref_own(other.base.rrefs, &parallel_trainer_class, &other, &self, &error));
    OK(rref_share(self, LEAD, other.number, &shared, &error));
    OK(cluster_await(&cluster, shared));
    future_release(shared);
    rref_release(self);
}

static void open_both(enum job_round rule)
{
    memset(&job, 0, sizeof job);
    memset(state, 0, sizeof state);
    job.trainers.batch = 1;
    job.server.round.name = rule;
    turns_left = 0;
    cluster_start(&cluster, CLIENTS);
    open_trainer(&lead, LEAD);
    open_trainer(&other, OTHER);
    introduce();
    rpc_on_turn(lead.base.rpc, turn_others, NULL);
}

static void close_both(void)
{
    rref_release(lead.peers[1]);
    rrefs_free(lead.base.rrefs);
    rrefs_free(other.base.rrefs);
    cluster_free(&cluster);
}

static void expect_state(uint64_t expected)
{
    float h[STATE], c[STATE];
    uint64_t iteration;
    OK(peer_state(&lead, 1, h, c, &iteration, &error));
    ck_assert_uint_eq(iteration, expected);
    ck_assert_float_eq(h[0], (float)expected);
}

/* A step on its way may have reached one owner of parameters and not the next: values fetched meanwhile would
 * be of two versions. */
START_TEST(with_async_a_trainer_ends_its_iteration_and_pauses_until_resumed)
{
    open_both(JOB_ROUND_ASYNC);
    begin_iteration();
    expect_state(1);
    ck_assert(!other.in_iteration);
    ck_assert(other.is_paused);
    OK(peer_resume(&lead, &error));
    ck_assert(!other.is_paused);
    close_both();
}
END_TEST

START_TEST(with_async_a_trainer_between_two_iterations_answers_and_pauses_at_once)
{
    open_both(JOB_ROUND_ASYNC);
    expect_state(0);
    ck_assert(other.is_paused);
    OK(peer_resume(&lead, &error));
    begin_iteration();
    expect_state(1);
    close_both();
}
END_TEST

/* No step is taken there unless the lead asks for it too. */
START_TEST(with_all_nobody_pauses)
{
    open_both(JOB_ROUND_ALL);
    lead.iteration = 1;
    begin_iteration();
    expect_state(1);
    ck_assert(!other.is_paused);
    OK(peer_resume(&lead, &error));
    close_both();
}
END_TEST

/* ---- the plateau schedule ---- */

START_TEST(the_rate_falls_when_the_loss_does_not)
{
    static const struct {
        double loss, lr, best;
    } seen[] = {{5, 20, 5}, {4, 20, 4}, {4, 5, 4}, {4.5, 1.25, 4}, {3, 1.25, 3}, {3.5, 0.3125, 3}};
    struct plateau plateau = {.lr = 20, .best_loss = INFINITY};
    for (unsigned i = 0; i < sizeof seen / sizeof *seen; i++) {
        plateau_see(&plateau, seen[i].loss, 0.25);
        ck_assert_double_eq(plateau.lr, seen[i].lr);
        ck_assert_double_eq(plateau.best_loss, seen[i].best);
    }
}
END_TEST

/* However long nothing gets better: an update with a rate of 0 would be refused, and end the job. */
START_TEST(the_rate_never_becomes_0)
{
    struct plateau plateau = {.lr = 20, .best_loss = 4};
    for (unsigned i = 0; i < 1200; i++) {
        const double before = plateau.lr;
        plateau_see(&plateau, 5, 0.25);
        ck_assert(plateau.lr > 0 && plateau.lr <= before);
    }
    const double last = plateau.lr;
    plateau_see(&plateau, 5, 0.25);
    ck_assert_double_eq(plateau.lr, last);
    ck_assert(last < 1e-300);
}
END_TEST

/* As in PyTorch, such a loss is no better than any other; the best one stays a number. */
START_TEST(a_loss_that_is_not_finite_is_no_better)
{
    static const double losses[] = {(double)NAN, (double)INFINITY, (double)-INFINITY};
    struct plateau plateau = {.lr = 20, .best_loss = 4};
    plateau_see(&plateau, losses[_i], 0.25);
    ck_assert_double_eq(plateau.lr, 5);
    ck_assert_double_eq(plateau.best_loss, 4);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("parallel_trainer");
    TCase *all = tcase_create("pause"), *schedule = tcase_create("schedule");
    tcase_add_test(all, with_async_a_trainer_ends_its_iteration_and_pauses_until_resumed);
    tcase_add_test(all, with_async_a_trainer_between_two_iterations_answers_and_pauses_at_once);
    tcase_add_test(all, with_all_nobody_pauses);
    suite_add_tcase(suite, all);
    tcase_add_test(schedule, the_rate_falls_when_the_loss_does_not);
    tcase_add_test(schedule, the_rate_never_becomes_0);
    tcase_add_loop_test(schedule, a_loss_that_is_not_finite_is_no_better, 0, 3);
    suite_add_tcase(suite, schedule);
    return suite_run(suite);
}
