/* A worker that cannot agree with its supervisor or a peer (worker/worker.h): it blames neither the job file
 * (78) nor a permission (77). */
#include "test/worker/bare_worker.h"
#include "test/workplace.h"

static struct bare_worker agent, observer;

static const char job[] = "{\"kind\":\"reinforce\",\"device\":\"cpu\",\"observers\":{\"count\":1}}";

static void setup(void)
{
    workplace_open();
    agent.start = (struct control_start){.role = WIRE_ROLE_AGENT, .incarnation = 1, .generation = 1};
    snprintf(agent.start.address, sizeof agent.start.address, "ipc://%s/socket", workplace.folder);
    snprintf(agent.start.run_dir, sizeof agent.start.run_dir, "%s", workplace.folder);
    observer.start = agent.start;
    observer.start.role = WIRE_ROLE_OBSERVER;
    observer.start.worker = 1;
}

static void teardown(void)
{
    bare_worker_kill(&observer);
    bare_worker_kill(&agent);
    workplace_close();
}

static void expect_internal(struct bare_worker *worker, const char *wanted)
{
    bare_worker_expect(worker, CONTROL_FAILED);
    const struct error *failed = &worker->message.body.failed;
    ck_assert_int_eq(failed->status, STATUS_INTERNAL);
    ck_assert_msg(strstr(failed->text, wanted) != NULL, "expected \"%s\" in: %s", wanted, failed->text);
    ck_assert_int_eq(bare_worker_wait(worker), 70);
}

START_TEST(another_role_than_it_was_started_as)
{
    bare_worker_start(&agent, "observer", job);
    expect_internal(&agent, "started as observer, told to be role ");
}
END_TEST

START_TEST(a_job_that_it_cannot_read)
{
    bare_worker_start(&agent, "agent", "{\"kind\":\"reinforce\",\"observers\":{\"count\":0}}");
    expect_internal(&agent, "/observers/count: expected an integer in 1..1024, got 0");
}
END_TEST

START_TEST(a_job_in_which_nobody_has_its_role)
{
    bare_worker_start(&agent, "agent", "{\"kind\":\"model-parallel\"}");
    expect_internal(&agent, "a job of kind model-parallel has no role agent");
}
END_TEST

START_TEST(a_peer_that_refuses_it)
{
    agent.start.generation = 2;
    bare_worker_start(&agent, "agent", job);
    bare_worker_expect(&agent, CONTROL_BOUND);
    bare_worker_start(&observer, "observer", job);
    bare_worker_order(&observer, CONTROL_CONNECT);
    expect_internal(&observer, "the job has another generation");
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("worker");
    TCase *odds = tcase_create("at odds");
    tcase_add_checked_fixture(odds, setup, teardown);
    tcase_add_test(odds, another_role_than_it_was_started_as);
    tcase_add_test(odds, a_job_that_it_cannot_read);
    tcase_add_test(odds, a_job_in_which_nobody_has_its_role);
    tcase_add_test(odds, a_peer_that_refuses_it);
    suite_add_tcase(suite, odds);
    return suite_run(suite);
}
