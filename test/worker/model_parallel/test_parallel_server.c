/* The role `pserver` of a model-parallel job, the real process, against trainers that this test plays: the
 * workers that may ask what it holds, and the answer. */
#include "test/worker/bare_worker.h"
#include "test/worker/net/net_connect.h"
#include "test/workplace.h"
#include "worker/model_parallel/parallel.h"
#include "worker/net/rpc.h"

enum { LEAD = 1, OTHER, WORKERS, EPOCH = 7, HELD = HOLDINGS_COUNTS + WORKERS };

#define TWO_TRAINERS                                                                                         \
    "{\"kind\":\"model-parallel\",\"name\":\"tiny\",\"device\":\"cpu\",\"transport\":\"inline\","            \
    "\"trainers\":{\"count\":2},\"placement\":{\"lstm\":\"server 0\"}}"

static struct bare_worker server;
static struct rpc *trainers[WORKERS];
static struct error error;

static void join(uint16_t number)
{
    static const uint8_t roster[WORKERS] = {WIRE_ROLE_PSERVER, WIRE_ROLE_TRAINER, WIRE_ROLE_TRAINER};
    char address[CONTROL_ADDRESS_BYTES + 8];
    const struct rpc_address to = {.worker = 0, .address = address};
    const struct rpc_config config = {
        .worker = number,
        .role = WIRE_ROLE_TRAINER,
        .incarnation = 1,
        .generation = 1,
        .roster = roster,
        .workers = WORKERS,
        .pending_max = 4,
        .incoming_max = 4,
    };
    bare_worker_address(&server, address);
    enum status status =
        net_connect(&trainers[number], &config, &to, 1, monotime_add_us(monotime_now(), 60000000), &error);
    ck_assert_msg(status == STATUS_OK, "%s", error.text);
}

static void open_server(void)
{
    workplace_open();
    server.start = (struct control_start){.role = WIRE_ROLE_PSERVER, .incarnation = WORKERS, .generation = 1};
    snprintf(server.start.address, sizeof server.start.address, "ipc://%s/s", workplace.folder);
    snprintf(server.start.run_dir, sizeof server.start.run_dir, "%s", workplace.run_dir);
    bare_worker_start(&server, "pserver", TWO_TRAINERS);
    bare_worker_expect(&server, CONTROL_BOUND);
    join(LEAD);
    join(OTHER);
    bare_worker_expect(&server, CONTROL_READY);
}

static void close_server(void)
{
    for (unsigned i = LEAD; i < WORKERS; i++)
        rpc_free(trainers[i], "the test is over", 0);
    bare_worker_kill(&server);
    workplace_close();
}

/* Asks; `held` is what the answer says. */
static enum status ask(uint16_t trainer, const struct rpc_message *more, uint32_t held[HELD])
{
    struct rpc_message message = more != NULL ? *more : (struct rpc_message){0};
    struct future *answer = NULL;
    message.args[HOLDINGS_EPOCH] = EPOCH;
    enum status status =
        rpc_call(trainers[trainer], 0, METHOD_HOLDINGS, &message, MONOTIME_NEVER, &answer, &error);
    if (status == STATUS_OK) {
        const struct rpc_message *value = future_value(answer);
        ck_assert_uint_eq(value->tensor_count, 1);
        ck_assert_uint_eq(value->tensors[0].dims[0], HELD);
        memcpy(held, value->data[0], HELD * sizeof *held);
    }
    future_release(answer);
    return status;
}

START_TEST(the_server_says_what_it_holds)
{
    static const uint32_t nothing[HELD];
    for (unsigned i = 0; i < 20; i++) {
        uint32_t held[HELD] = {1};
        ck_assert_int_eq(ask(LEAD, NULL, held), STATUS_OK);
        ck_assert_mem_eq(held, nothing, sizeof held);
    }
}
END_TEST

START_TEST(nobody_else_asks)
{
    uint32_t held[HELD];
    ck_assert_int_eq(ask(OTHER, NULL, NULL), STATUS_INVALID);
    ck_assert_str_eq(error.text, "worker 2 asks what is held here: expected worker 1 to");
    ck_assert_int_ne(ask(OTHER, NULL, NULL), STATUS_OK); /* it has no session any more */
    ck_assert_int_eq(ask(LEAD, NULL, held), STATUS_OK);
}
END_TEST

START_TEST(the_question_has_no_tensors)
{
    static const float number = 1;
    const struct rpc_message message = {
        .tensor_count = 1, .tensors = {{.dtype = WIRE_F32, .rank = 1, .dims = {1}}}, .data = {&number}};
    ck_assert_int_ne(ask(LEAD, &message, NULL), STATUS_OK);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("parallel_server");
    TCase *holdings = tcase_create("holdings");
    tcase_add_checked_fixture(holdings, open_server, close_server);
    tcase_set_timeout(holdings, 60);
    tcase_add_test(holdings, the_server_says_what_it_holds);
    tcase_add_test(holdings, nobody_else_asks);
    tcase_add_test(holdings, the_question_has_no_tensors);
    suite_add_tcase(suite, holdings);
    return suite_run(suite);
}
