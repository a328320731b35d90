/* The parameter server's rounds: its updates under each rule, transport and number of servers, and its
 * refusals. The servers are real processes; this test plays the trainers and the supervisor. */
#include "test/worker/data_parallel/pserver_trainers.h"
#include "test/workplace.h"

static const struct dataset_info no_data;

/* ---- arithmetic ---- */

static const char *const arrangements[][2] = {
    {"/transport=shared", "/server/count=1"},
    {"/transport=inline", "/server/count=1"},
    {"/transport=shared", "/server/count=2"},
    {"/transport=inline", "/server/count=2"},
};

/* However it travels and wherever it lies, a version is what plain arithmetic makes of it: so all of these
 * are equal, bit for bit. */
START_TEST(every_update_is_the_plain_one)
{
    uint64_t args[WIRE_ARGS] = {0};
    ps_set(arrangements[_i][0]);
    ps_set(arrangements[_i][1]);
    ps_set("/trainers/count=3");
    ps_start(&no_data);
    PS_OK(ps_get(0, 0, args));
    ck_assert_uint_eq(args[MODEL_STEP], 0);
    ck_assert_uint_eq(args[MODEL_FLAGS], 0);
    ps_expect_model(args);
    for (int i = 0; i < 4; i++)
        ps_round();
    PS_UNTIL(ps.finished);
    ck_assert_str_eq(ps.events, "U1 U2 U3 U4 F0 ");
    ps_end(0);
}
END_TEST

/* Gradients of half the bytes are widened as they come; the statistics come as float32. */
START_TEST(rounded_gradients_make_the_plain_update)
{
    ps_set("/transport/precision=bfloat16");
    ps_set(arrangements[_i][0]);
    ps_set(arrangements[_i][1]);
    ps.far[0] = true;
    ps_start(&no_data);
    ps_round();
    ps_round();
    ps_end(0);
}
END_TEST

/* The first trainer of two is on another host: its chunks hold the elements as the image has them. */
START_TEST(near_and_far_trainers_make_the_plain_update)
{
    uint64_t near[WIRE_ARGS] = {0}, far[WIRE_ARGS] = {0};
    ps.far[0] = true;
    ps_set(arrangements[_i][1]);
    ps_start(&no_data);
    for (int i = 0; i < 2; i++)
        ps_round();
    ps_push_all();
    PS_OK(ps_pull(0, far));
    PS_OK(ps_pull(1, near));
    ck_assert_uint_eq(far[MODEL_OFFSET], PARAMETER_SERVER_NOWHERE);
    ps_expect_model(near);
    float *image = calloc(ps.elements, sizeof *image);
    ck_assert_ptr_nonnull(image);
    for (uint32_t i = 0; i < ps.servers; i++) {
        const struct shard *shard = &ps.shards[i];
        const float *slot = ps.map[i] + near[MODEL_OFFSET] / sizeof *slot;
        ps_read_chunks(0, far[MODEL_VERSION], shard->first, shard->end, i, image);
        ck_assert_mem_eq(image + shard->first, slot + shard->first,
                         (shard->end - shard->first) * sizeof *image);
    }
    free(image);
    ps_end(0);
}
END_TEST

START_TEST(plain_descent_has_no_velocity)
{
    ps_set("/optimizer/momentum=0");
    ps_set("/optimizer/schedule=constant");
    ps_set("/trainers/count=1");
    ps_start(&no_data);
    ps_round();
    ps_round();
    ps_end(0);
}
END_TEST

START_TEST(a_record_tells_of_its_update)
{
    ps_start(&no_data);
    ps_round();
    ps_round();
    PS_UNTIL(ps.updates[2].update == 2);
    const struct control_update *record = &ps.updates[1];
    ck_assert_uint_eq(record->trainers, 2);
    ck_assert(record->losses[0] == ps_loss(0, 0) && record->losses[1] == ps_loss(1, 0));
    ck_assert(record->loss == (ps_loss(0, 0) + ps_loss(1, 0)) / 2);
    ck_assert(record->lr == schedule_lr(&ps.schedule, 1));
    ck_assert_uint_eq(record->samples, 4);
    ck_assert_uint_eq(record->late, 0);
    ck_assert_uint_eq(record->timing.bytes, 4 * ps.elements * sizeof(float)); /* 2 came, 2 were given */
    ck_assert_uint_eq(ps.updates[2].timing.bytes, record->timing.bytes);
    ck_assert(record->timing.round_s >= record->timing.update_s && record->timing.wait_s >= 0);
}
END_TEST

/* ---- who counts ---- */

START_TEST(a_replay_replaces_what_it_repeats)
{
    uint64_t args[WIRE_ARGS] = {0};
    struct future *first;
    ps_set(arrangements[_i][0]);
    ps_start(&no_data);
    if (ps_shared())
        ps_outbox(1)[5] = 1e6f;
    else
        ps_send_all_chunks(1, 0);
    ps_push_only(1, 0, 0, 77);
    ps_taken(1);
    first = ps.trainer[1].calls[0];
    ps_push(1, 0, 0);
    PS_UNTIL(future_done(first));
    ck_assert_int_eq(future_status(first), STATUS_INVALID);
    ck_assert_ptr_nonnull(strstr(future_text(first), "again"));
    future_release(first);
    ps_turns(5);
    ck_assert(!ps_answered(1)); /* it did not count twice */
    ps_push(0, 0, 0);
    PS_OK(ps_pull(0, args));
    PS_OK(ps_pull(1, args));
    ps_move_model((uint32_t[]){0, 1}, (uint64_t[]){0, 0}, 2);
    ps_expect_model(args);
    PS_UNTIL(ps.updates[1].update == 1);
    ck_assert(ps.updates[1].losses[1] == ps_loss(1, 0));
}
END_TEST

/* Chunks that come behind their own PUSH_PULL take the contribution back until it is whole again. */
START_TEST(chunks_of_a_replay_begin_it_anew)
{
    uint64_t args[WIRE_ARGS] = {0};
    float *image;
    ps_set("/transport=inline");
    ps_start(&no_data);
    ps_push(0, 0, 0);
    ps_taken(0);
    struct future *first = ps.trainer[0].calls[0];
    image = calloc(ps.elements, sizeof *image);
    ps_send_chunks(0, 0, 0, image, 0, 16, 16);
    free(image);
    PS_UNTIL(future_done(first));
    ck_assert_int_eq(future_status(first), STATUS_INVALID);
    future_release(first);
    ps_push(1, 0, 0);
    ps_turns(20);
    ck_assert(!ps_answered(1));
    ck_assert_str_eq(ps.events, "");
    ps_push(0, 0, 0);
    PS_OK(ps_pull(0, args));
    PS_OK(ps_pull(1, args));
    ps_move_model((uint32_t[]){0, 1}, (uint64_t[]){0, 0}, 2);
    ps_expect_model(args);
}
END_TEST

START_TEST(the_late_one_is_dropped_and_goes_on_from_the_newest)
{
    uint64_t args[WIRE_ARGS] = {0};
    ps_set(arrangements[_i][0]);
    ps_set("/server/round=first 2");
    ps_set("/trainers/count=3");
    ps_start(&no_data);
    ps_push(2, 0, 0);
    ps_push(0, 0, 0);
    PS_OK(ps_pull(2, args));
    PS_OK(ps_pull(0, args));
    ps_move_model((uint32_t[]){0, 2}, (uint64_t[]){0, 0}, 2);
    ps_expect_model(args);
    ps_push(1, 0, 0);
    PS_OK(ps_pull(1, args));
    ck_assert_uint_eq(args[MODEL_FLAGS], PULL_LATE);
    ck_assert_uint_eq(args[MODEL_VERSION], 1);
    ck_assert_uint_eq(args[MODEL_STEP], 1);
    ps_push(1, 1, 1);
    ps_push(2, 1, 1);
    PS_OK(ps_pull(1, args));
    PS_OK(ps_pull(2, args));
    ps_move_model((uint32_t[]){1, 2}, (uint64_t[]){1, 1}, 2);
    ps_expect_model(args);
    ps_push(1, 2, 2);
    ps_push(2, 2, 2);
    PS_OK(ps_pull(1, args));
    PS_OK(ps_pull(2, args));
    PS_UNTIL(ps.updates[3].update == 3);
    ck_assert_uint_eq(ps.updates[1].late, 0);
    ck_assert_uint_eq(ps.updates[2].late, 1); /* since the last record */
    ck_assert_uint_eq(ps.updates[3].late, 0);
    ck_assert_uint_eq(ps.updates[2].samples, 4);
    ck_assert(isnan(ps.updates[2].losses[0]) && isnan(ps.updates[1].losses[1]));
}
END_TEST

START_TEST(async_makes_a_version_of_each)
{
    uint64_t args[WIRE_ARGS] = {0};
    ps_set(arrangements[_i][0]);
    ps_set("/server/round=async 1");
    ps_start(&no_data);
    ps_push(0, 0, 0);
    PS_OK(ps_pull(0, args));
    ps_move_model((uint32_t[]){0}, (uint64_t[]){0}, 1);
    ps_expect_model(args);
    ps_push(1, 0, 0); /* one behind: still good */
    PS_OK(ps_pull(1, args));
    ck_assert_uint_eq(args[MODEL_FLAGS], 0);
    ps_move_model((uint32_t[]){1}, (uint64_t[]){0}, 1);
    ps_expect_model(args);
    ps_push(1, 1, 2);
    PS_OK(ps_pull(1, args));
    ps_move_model((uint32_t[]){1}, (uint64_t[]){1}, 1);
    ps_push(0, 1, 1); /* two behind */
    PS_OK(ps_pull(0, args));
    ck_assert_uint_eq(args[MODEL_FLAGS], PULL_LATE);
    ck_assert_uint_eq(args[MODEL_STEP], 2);
    ps_expect_model(args);
}
END_TEST

/* ---- deaths ---- */

START_TEST(a_dead_trainer_is_replaced_by_its_successor)
{
    uint64_t args[WIRE_ARGS] = {0};
    struct control_died died = {.worker = 2, .text = "trainer 2 was killed"};
    ps_set(arrangements[_i][0]);
    ps_start(&no_data);
    ps_push(1, 0, 0);
    ps_taken(1);
    died.incarnation = ps.trainer[1].incarnation;
    control_send(ps.control[0], CONTROL_DIED, &died, sizeof died);
    PS_UNTIL(!ps_has_session(1));
    ps_push(0, 0, 0);
    ps_turns(20);
    ck_assert_str_eq(ps.events, ""); /* what it had sent went with it */
    ps_join(1);
    PS_OK(ps_get(1, PARAMETER_SERVER_NEWEST, args));
    ck_assert_uint_eq(args[MODEL_VERSION], 0);
    ck_assert_uint_eq(args[MODEL_STEP], 0);
    if (!ps_shared()) { /* the pieces went, too */
        ps_push_only(1, 0, 0, 1);
        ck_assert_int_eq(ps_pull(1, args), STATUS_INVALID);
        ck_assert_ptr_nonnull(strstr(ps.error.text, "trainer 2, step 0: 0 of"));
        PS_UNTIL(!ps_has_session(1));
        ps_join(1);
        PS_OK(ps_get(1, PARAMETER_SERVER_NEWEST, args));
    }
    ps_push(1, 0, 0);
    PS_OK(ps_pull(1, args));
    PS_OK(ps_pull(0, args));
    ps_move_model((uint32_t[]){0, 1}, (uint64_t[]){0, 0}, 2);
    ps_expect_model(args);
}
END_TEST

/* ---- NaN ---- */

/* Where the bad number stands, as an element of the canonical image, and how it is named. */
static const struct {
    const char *transport, *entry;
    float value;
    bool push_first;
} bad_numbers[] = {
    {"/transport=shared", "conv1.weight", NAN, false},
    {"/transport=inline", "layer3.0.conv2.weight", INFINITY, true},
    {"/transport=shared", "fc.bias", -INFINITY, true},
    {"/transport=inline", "layer1.1.bn2.running_var", NAN, false},
};

static size_t element_of(const char *entry)
{
    const struct parameter *parameter = params_find(ps.params, entry);
    ck_assert_ptr_nonnull(parameter);
    return parameter->offset + (parameter->kind == PARAMETER_BUFFER ? ps.parameters : 0);
}

START_TEST(a_bad_number_is_found_named_and_changes_nothing)
{
    uint64_t args[WIRE_ARGS] = {0};
    char wanted[128];
    float *image;
    ps_set(bad_numbers[_i].transport);
    ps_start(&no_data);
    const size_t at = element_of(bad_numbers[_i].entry);
    ps_round();
    if (bad_numbers[_i].push_first)
        ps_push(0, 1, 1);
    if (ps_shared()) {
        ps_write_outbox(1, 1);
        ps_outbox(1)[at] = bad_numbers[_i].value; /* the first of its entry in any layout */
    } else {
        ps_send_all_chunks(1, 1);
        image = calloc(ps.elements, sizeof *image);
        image[at] = bad_numbers[_i].value;
        ps_send_chunks(1, 0, 1, image, at / 16 * 16, at / 16 * 16 + 16, 16);
        free(image);
    }
    ps_push_only(1, 1, 1, 1);
    if (!bad_numbers[_i].push_first)
        ps_push(0, 1, 1);
    ck_assert_int_eq(ps_pull(1, args), STATUS_INVALID);
    snprintf(wanted, sizeof wanted, "trainer 2, step 1: its %s of %s is not finite",
             at < ps.parameters ? "gradient" : "statistic", bad_numbers[_i].entry);
    ck_assert_msg(strstr(ps.error.text, wanted) != NULL, "%s is not in: %s", wanted, ps.error.text);
    ps_turns(10);
    ck_assert(!ps_answered(0));
    ck_assert_str_eq(ps.events, "U1 ");
    ps_join(1); /* its successor computes the step again */
    PS_OK(ps_get(1, PARAMETER_SERVER_NEWEST, args));
    ps_expect_model(args);
    ps_push(1, 1, 1);
    PS_OK(ps_pull(1, args));
    PS_OK(ps_pull(0, args));
    ps_move_model((uint32_t[]){0, 1}, (uint64_t[]){1, 1}, 2);
    ps_expect_model(args);
}
END_TEST

/* Each gradient is finite, their sum is not: nobody is to blame, and no such model is ever given out. */
START_TEST(a_model_that_overflows_ends_the_job)
{
    ps_start(&no_data);
    ps_round();
    for (uint32_t i = 0; i < 2; i++) {
        ps_write_outbox(i, 1);
        ps_outbox(i)[element_of("fc.bias")] = 3e38f;
        ps_push_only(i, 1, 1, 1);
    }
    PS_UNTIL(ps.failed);
    ck_assert_msg(strstr(ps.failure.text, "update 2: fc.bias is not finite") != NULL, "%s", ps.failure.text);
    ck_assert_int_eq(ps_wait(0), status_exit_code(STATUS_INTERNAL));
    ck_assert_str_eq(ps.events, "U1 X13 ");
}
END_TEST

/* ---- wrong numbers ---- */

struct wrong {
    enum wire_method method;
    uint64_t args[WIRE_ARGS];
    uint32_t count; /* elements of a chunk */
    const char *wanted;
};

enum { BYTES = -1, FINGERPRINT = -2, END = -3 }; /* stand for what is known only then */

static const struct wrong wrongs[2][12] = {
    {{METHOD_PUSH_PULL, {0, 0, 0, BYTES}, 0, "worker 2's segment"}, /* not sized yet */
     {METHOD_PUSH_PULL, {1, 0, 0, BYTES}, 0, "trainer 2 sent step 1: expected step 0"},
     {METHOD_PUSH_PULL, {0, 1, 0, BYTES}, 0, "computed from version 1: expected none above 0"},
     {METHOD_PUSH_PULL, {0, 0, 0, 64}, 0, "a contribution of 64 bytes: expected"},
     {METHOD_PUSH_PULL, {0, 0, 0x7ff8000000000000, BYTES}, 0, "trainer 2, step 0: its loss is nan"},
     {METHOD_GET_MODEL, {0, 0, 0, 4711}, 0, "trainer 2 computes another model"},
     {METHOD_PUSH_CHUNK, {0, 0}, 16, "sends a chunk: expected its contribution in shared memory"},
     {METHOD_SAVE_SHARD, {1}, 0, "not permitted"}},
    {{METHOD_PUSH_PULL, {0, 0, 0, BYTES}, 0, "trainer 2, step 0: 0 of"},
     {METHOD_GET_MODEL, {0, 0, 131073, FINGERPRINT}, 0, "asks for 131073 elements from 0"},
     {METHOD_GET_MODEL, {0, UINT64_MAX - 7, 8, FINGERPRINT}, 0, "asks for 8 elements from 1844674"},
     {METHOD_GET_MODEL, {0, END, 1, FINGERPRINT}, 0, "asks for 1 elements from"},
     {METHOD_PUSH_CHUNK, {1, 0}, 16, "trainer 2 sent step 1: expected step 0"},
     {METHOD_PUSH_CHUNK, {0, 8}, 16, "sends 16 elements from 8: expected multiples of 16"},
     {METHOD_PUSH_CHUNK, {0, 16}, 17, "sends 17 elements from 16"},
     {METHOD_PUSH_CHUNK, {0, END}, 16, "sends 16 elements from"}},
};

static uint64_t known(uint64_t value)
{
    if (value == (uint64_t)BYTES)
        return ps.elements * sizeof(float);
    if (value == (uint64_t)FINGERPRINT)
        return ps.fingerprint;
    return value == (uint64_t)END ? ps.elements : value;
}

static void send_wrong(const struct wrong *wrong)
{
    static const float zeros[32];
    uint64_t args[WIRE_ARGS] = {0};
    struct rpc_message message = {.data = {zeros}};
    for (int i = 0; i < WIRE_ARGS; i++)
        message.args[i] = known(wrong->args[i]);
    if (wrong->count > 0) {
        message.tensor_count = 1;
        message.tensors[0] = (struct wire_tensor){.dtype = WIRE_F32, .rank = 1, .dims = {wrong->count}};
    }
    enum status status = ps_call(1, 0, wrong->method, &message, args);
    ck_assert_msg(status == STATUS_INVALID || status == STATUS_PEER_DIED, "%s", status_name(status));
    ck_assert_msg(strstr(ps.error.text, wrong->wanted) != NULL, "\"%s\" is not in \"%s\"", wrong->wanted,
                  ps.error.text);
    PS_UNTIL(!ps_has_session(1));
    ps_join(1);
    PS_OK(ps_get(1, 0, args));
}

START_TEST(wrong_numbers_cost_their_sender_the_session)
{
    ps_set(arrangements[_i][0]);
    ps_start(&no_data);
    for (size_t i = 0; wrongs[_i][i].wanted != NULL; i++) {
        send_wrong(&wrongs[_i][i]);
        if (i == 0 && ps_shared())
            ps_outbox(1);
    }
    ps_round(); /* nobody else has lost anything */
}
END_TEST

/* ---- reading while a round fills ---- */

START_TEST(the_model_can_be_read_while_a_round_fills)
{
    uint64_t args[WIRE_ARGS] = {0};
    ps_set(arrangements[_i][0]);
    ps_set(arrangements[_i][1]);
    ps_start(&no_data);
    ps_round();
    ps_push(0, 1, 1);
    PS_OK(ps_call(0, 0, METHOD_ECHO, &(struct rpc_message){0}, args));
    PS_OK(ps_get(1, PARAMETER_SERVER_NEWEST, args));
    ck_assert_uint_eq(args[MODEL_VERSION], 1);
    ck_assert_uint_eq(args[MODEL_STEP], 1);
    ps_expect_model(args);
    PS_OK(ps_get(1, 0, args)); /* the version before still lies there */
    ck_assert_uint_eq(args[MODEL_VERSION], 0);
    ck_assert_int_eq(ps_get(1, 2, args), STATUS_NOT_FOUND);
    ck_assert_ptr_nonnull(strstr(ps.error.text, "version 2 is not here: the newest is 1"));
    PS_OK(ps_get(1, 1, args));
    ps_push(1, 1, 1);
    PS_OK(ps_pull(1, args));
    PS_OK(ps_pull(0, args));
    ps_move_model((uint32_t[]){0, 1}, (uint64_t[]){1, 1}, 2);
    ps_expect_model(args);
    ck_assert_int_eq(ps_get(1, 0, args), STATUS_NOT_FOUND);
}
END_TEST

/* A trainer of `async` that keeps a version keeps it whole, however far the others go. */
START_TEST(a_version_that_is_held_stays_what_it_is)
{
    uint64_t args[WIRE_ARGS] = {0}, held[WIRE_ARGS] = {0};
    float *before, *after;
    ps_set("/server/round=async 0");
    ps_start(&no_data);
    PS_OK(ps_get(1, 0, held));
    before = malloc(ps.elements * sizeof *before);
    after = malloc(ps.elements * sizeof *after);
    ps_read(held, before);
    ps_push(0, 0, 0);
    PS_OK(ps_pull(0, args));
    ps_push(0, 1, 1); /* two slots: this update has to wait */
    ps_turns(20);
    ck_assert(!ps_answered(0));
    ps_read(held, after);
    ck_assert_int_eq(memcmp(before, after, ps.elements * sizeof *after), 0);
    ps_push(1, 0, 0);
    PS_OK(ps_pull(1, args));
    ck_assert_uint_eq(args[MODEL_FLAGS], PULL_LATE);
    PS_OK(ps_pull(0, args));
    ck_assert_uint_eq(args[MODEL_VERSION], 2);
    free(before);
    free(after);
}
END_TEST

/* Records are not sent faster than the log takes them. */
START_TEST(a_log_that_does_not_follow_slows_the_rounds_down)
{
    uint64_t args[WIRE_ARGS] = {0};
    ps.hold_log = true;
    ps_start(&no_data);
    ps_round();
    ps_round();
    ps_push(0, 2, 2);
    ps_push(1, 2, 2);
    ps_turns(20);
    ck_assert(!ps_answered(0));
    ck_assert_str_eq(ps.events, "U1 U2 ");
    ps_acknowledge(2);
    PS_OK(ps_pull(0, args));
    PS_OK(ps_pull(1, args));
    ck_assert_uint_eq(args[MODEL_VERSION], 3);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("pserver");
    TCase *arithmetic = ps_case(suite, "arithmetic");
    tcase_add_loop_test(arithmetic, every_update_is_the_plain_one, 0, 4);
    tcase_add_loop_test(arithmetic, rounded_gradients_make_the_plain_update, 0, 4);
    tcase_add_loop_test(arithmetic, near_and_far_trainers_make_the_plain_update, 1, 3);
    tcase_add_test(arithmetic, plain_descent_has_no_velocity);
    tcase_add_test(arithmetic, a_record_tells_of_its_update);
    TCase *counting = ps_case(suite, "who counts");
    tcase_add_loop_test(counting, a_replay_replaces_what_it_repeats, 0, 2);
    tcase_add_test(counting, chunks_of_a_replay_begin_it_anew);
    tcase_add_loop_test(counting, the_late_one_is_dropped_and_goes_on_from_the_newest, 0, 2);
    tcase_add_loop_test(counting, async_makes_a_version_of_each, 0, 2);
    tcase_add_loop_test(counting, a_dead_trainer_is_replaced_by_its_successor, 0, 2);
    TCase *refusing = ps_case(suite, "refusing");
    tcase_add_loop_test(refusing, a_bad_number_is_found_named_and_changes_nothing, 0,
                        sizeof bad_numbers / sizeof bad_numbers[0]);
    tcase_add_test(refusing, a_model_that_overflows_ends_the_job);
    tcase_add_loop_test(refusing, wrong_numbers_cost_their_sender_the_session, 0, 2);
    TCase *reading = ps_case(suite, "reading");
    tcase_add_loop_test(reading, the_model_can_be_read_while_a_round_fills, 0, 4);
    tcase_add_test(reading, a_version_that_is_held_stays_what_it_is);
    tcase_add_test(reading, a_log_that_does_not_follow_slows_the_rounds_down);
    return suite_run(suite);
}
