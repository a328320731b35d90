/* The line between supervisor and worker: a sent message arrives whole, and a malformed message is
 * refused. */
#include "test/workplace.h"
#include "worker/control.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static int ends[2];
static struct control_message message;

static void setup(void)
{
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends), 0);
}

static void teardown(void)
{
    close(ends[0]);
    close(ends[1]);
}

START_TEST(messages_arrive_whole_and_in_order)
{
    struct control_logged logged = {.records = 7};
    struct control_episode episode = {.episode = 8,
                                      .reward = 1.5,
                                      .timing = {.batch_max = 3},
                                      .metrics = {2, {{"is_success", 0.5}, {"steps", 9}}}};
    ck_assert_int_eq(control_receive(ends[1], false, &message), STATUS_AGAIN);
    ck_assert_int_eq(control_send(ends[0], CONTROL_LOGGED, &logged, sizeof logged), STATUS_OK);
    ck_assert_int_eq(control_send(ends[0], CONTROL_BEAT, NULL, 0), STATUS_OK);
    ck_assert_int_eq(control_send(ends[0], CONTROL_EPISODE, &episode, control_episode_bytes(&episode)),
                     STATUS_OK);
    ck_assert_int_eq(control_receive(ends[1], false, &message), STATUS_OK);
    ck_assert_uint_eq(message.kind, CONTROL_LOGGED);
    ck_assert_uint_eq(message.body.logged.records, 7);
    ck_assert_int_eq(control_receive(ends[1], false, &message), STATUS_OK);
    ck_assert_uint_eq(message.kind, CONTROL_BEAT);
    ck_assert_uint_eq(message.body_bytes, 0);
    ck_assert_int_eq(control_receive(ends[1], true, &message), STATUS_OK);
    ck_assert_uint_eq(message.body.episode.episode, 8);
    ck_assert_double_eq(message.body.episode.reward, 1.5);
    ck_assert_uint_eq(message.body.episode.timing.batch_max, 3);
    ck_assert_uint_eq(message.body.episode.metrics.count, 2);
    ck_assert_str_eq(message.body.episode.metrics.of[1].name, "steps");
    ck_assert_double_eq(message.body.episode.metrics.of[1].mean, 9);
    ck_assert_int_eq(control_receive(ends[1], false, &message), STATUS_AGAIN);
}
END_TEST

/* More metrics than it says, fewer, more than there can be, and a name without an end. */
START_TEST(an_episode_has_the_metrics_that_it_counts)
{
    struct control_episode episode = {.metrics = {1, {{"steps", 9}}}};
    const size_t bytes = control_episode_bytes(&episode);
    ck_assert_int_eq(control_send(ends[0], CONTROL_EPISODE, &episode, bytes + 1), STATUS_OK);
    ck_assert_int_eq(control_send(ends[0], CONTROL_EPISODE, &episode, bytes - 1), STATUS_OK);
    episode.metrics.count = CONTROL_METRICS_MAX + 1;
    ck_assert_int_eq(control_send(ends[0], CONTROL_EPISODE, &episode, sizeof episode), STATUS_OK);
    episode.metrics.count = 1;
    memset(episode.metrics.of[0].name, 'x', sizeof episode.metrics.of[0].name);
    ck_assert_int_eq(control_send(ends[0], CONTROL_EPISODE, &episode, bytes), STATUS_OK);
    for (int i = 0; i < 4; i++)
        ck_assert_int_eq(control_receive(ends[1], false, &message), STATUS_INVALID);
}
END_TEST

/* With a loss for each of as many trainers as there can be. */
START_TEST(updates_and_epochs_arrive_whole)
{
    struct control_update update = {.update = 9, .trainers = JOB_TRAINERS_MAX, .timing = {.bytes = 11}};
    struct control_epoch epoch = {.epoch = 3, .correct = 7, .timing = {.evaluation_s = 0.5}};
    update.losses[JOB_TRAINERS_MAX - 1] = 2.5;
    ck_assert_int_eq(control_send(ends[0], CONTROL_UPDATE, &update, sizeof update), STATUS_OK);
    ck_assert_int_eq(control_send(ends[0], CONTROL_EPOCH, &epoch, sizeof epoch), STATUS_OK);
    ck_assert_int_eq(control_send(ends[0], CONTROL_UPDATE, &update, sizeof update - 1), STATUS_OK);
    ck_assert_int_eq(control_send(ends[0], CONTROL_EPOCH, &epoch, sizeof epoch - 1), STATUS_OK);
    ck_assert_int_eq(control_receive(ends[1], false, &message), STATUS_OK);
    ck_assert_uint_eq(message.kind, CONTROL_UPDATE);
    ck_assert_double_eq(message.body.update.losses[JOB_TRAINERS_MAX - 1], 2.5);
    ck_assert_uint_eq(message.body.update.timing.bytes, 11);
    ck_assert_int_eq(control_receive(ends[1], false, &message), STATUS_OK);
    ck_assert_uint_eq(message.kind, CONTROL_EPOCH);
    ck_assert_uint_eq(message.body.epoch.correct, 7);
    ck_assert_double_eq(message.body.epoch.timing.evaluation_s, 0.5);
    for (int i = 0; i < 2; i++)
        ck_assert_int_eq(control_receive(ends[1], false, &message), STATUS_INVALID);
}
END_TEST

START_TEST(holdings_arrive_whole)
{
    const struct control_status status = {0, 1, 2, 3, 4, 5, {6, UINT32_MAX}};
    ck_assert_int_eq(control_send(ends[0], CONTROL_STATUS, &status, sizeof status), STATUS_OK);
    ck_assert_int_eq(control_send(ends[0], CONTROL_STATUS, &status, sizeof status - 1), STATUS_OK);
    ck_assert_int_eq(control_receive(ends[1], false, &message), STATUS_OK);
    ck_assert_uint_eq(message.kind, CONTROL_STATUS);
    ck_assert_mem_eq(&message.body.status, &status, sizeof status);
    ck_assert_int_eq(control_receive(ends[1], false, &message), STATUS_INVALID);
}
END_TEST

START_TEST(a_profile_has_the_spans_that_it_counts)
{
    static struct control_profile profile = {.span_count = 9, .count = 2};
    profile.spans[1] = (struct profile_span){.begin_ns = 7, .ns = 8, .kind = PROFILE_KINDS - 1};
    const size_t bytes = control_profile_bytes(&profile);
    ck_assert_int_eq(control_send(ends[0], CONTROL_PROFILE, &profile, bytes), STATUS_OK);
    ck_assert_int_eq(control_receive(ends[1], false, &message), STATUS_OK);
    ck_assert_uint_eq(message.body.profile.spans[1].ns, 8);
    ck_assert_int_eq(control_send(ends[0], CONTROL_PROFILE, &profile, bytes - 1), STATUS_OK);
    ck_assert_int_eq(control_send(ends[0], CONTROL_PROFILE, &profile, bytes + 1), STATUS_OK);
    profile.first = PROFILE_SPANS_MAX - 1; /* two spans end behind the last that is kept */
    ck_assert_int_eq(control_send(ends[0], CONTROL_PROFILE, &profile, bytes), STATUS_OK);
    profile.first = 0;
    profile.spans[1].kind = PROFILE_KINDS;
    ck_assert_int_eq(control_send(ends[0], CONTROL_PROFILE, &profile, bytes), STATUS_OK);
    profile.count = CONTROL_SPANS_MAX + 1;
    ck_assert_int_eq(control_send(ends[0], CONTROL_PROFILE, &profile, sizeof profile), STATUS_OK);
    for (int i = 0; i < 5; i++)
        ck_assert_int_eq(control_receive(ends[1], false, &message), STATUS_INVALID);
}
END_TEST

START_TEST(start_carries_the_job_behind_its_struct)
{
    char body[sizeof(struct control_start) + 4];
    memset(body, 0, sizeof body);
    memcpy(body + sizeof(struct control_start), "{  }", 4);
    ck_assert_int_eq(control_send(ends[0], CONTROL_START, body, sizeof body), STATUS_OK);
    ck_assert_int_eq(control_receive(ends[1], false, &message), STATUS_OK);
    ck_assert_uint_eq(message.body_bytes, sizeof body);
    ck_assert_int_eq(memcmp(message.body.bytes + sizeof(struct control_start), "{  }", 4), 0);
}
END_TEST

START_TEST(unknown_short_and_long_messages_are_refused)
{
    static char huge[CONTROL_BODY_BYTES_MAX + 64];
    const uint32_t kinds[] = {0, CONTROL_KINDS, UINT32_MAX};
    for (size_t i = 0; i < 3; i++) {
        ck_assert_int_eq(send(ends[0], &kinds[i], sizeof kinds[i], 0), sizeof kinds[i]);
        ck_assert_int_eq(control_receive(ends[1], false, &message), STATUS_INVALID);
    }
    for (size_t bytes = 1; bytes < sizeof message.kind; bytes++) {
        message.kind = UINT32_MAX; /* nothing of an earlier message may be left */
        ck_assert_int_eq(send(ends[0], "abc", bytes, 0), (ssize_t)bytes);
        ck_assert_int_eq(control_receive(ends[1], false, &message), STATUS_INVALID);
        ck_assert_uint_eq(message.kind, 0);
    }
    ck_assert_int_eq(control_send(ends[0], CONTROL_EPISODE, huge, 8), STATUS_OK);
    ck_assert_int_eq(control_receive(ends[1], false, &message), STATUS_INVALID);
    ck_assert_int_eq(control_send(ends[0], CONTROL_START, huge, sizeof huge), STATUS_OK);
    ck_assert_int_eq(control_receive(ends[1], false, &message), STATUS_INVALID);
}
END_TEST

START_TEST(a_full_line_does_not_block_and_a_closed_one_is_told)
{
    static char body[CONTROL_BODY_BYTES_MAX];
    enum status status = STATUS_OK;
    for (int i = 0; i < 10000 && status == STATUS_OK; i++)
        status = control_send(ends[0], CONTROL_START, body, sizeof body);
    ck_assert_int_eq(status, STATUS_BUSY);
    close(ends[0]);
    do
        status = control_receive(ends[1], false, &message);
    while (status == STATUS_OK);
    ck_assert_int_eq(status, STATUS_PEER_DIED);
    ck_assert_int_eq(control_send(ends[1], CONTROL_BEAT, NULL, 0), STATUS_PEER_DIED);
    ends[0] = dup(ends[1]);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("control");
    TCase *line = tcase_create("line");
    tcase_add_checked_fixture(line, setup, teardown);
    tcase_add_test(line, messages_arrive_whole_and_in_order);
    tcase_add_test(line, updates_and_epochs_arrive_whole);
    tcase_add_test(line, an_episode_has_the_metrics_that_it_counts);
    tcase_add_test(line, holdings_arrive_whole);
    tcase_add_test(line, a_profile_has_the_spans_that_it_counts);
    tcase_add_test(line, start_carries_the_job_behind_its_struct);
    tcase_add_test(line, unknown_short_and_long_messages_are_refused);
    tcase_add_test(line, a_full_line_does_not_block_and_a_closed_one_is_told);
    suite_add_tcase(suite, line);
    return suite_run(suite);
}
