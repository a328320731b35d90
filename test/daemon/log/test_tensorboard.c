/* Event files: the framing byte by byte, when they are written, and what becomes of a run whose events cannot
 * be written. test_tensorboard.sh reads them with TensorBoard. */
#include "daemon/log/tensorboard.h"

#include "kernels/base/crc32c.h"
#include "test/daemon/log/runlog_fixture.h"

#include <glob.h>
#include <math.h>
#include <sys/resource.h>

/* The event files of the run, in the order of their names. */
static size_t event_files(glob_t *found)
{
    char pattern[256];
    snprintf(pattern, sizeof pattern, "%s/tensorboard/events.out.tfevents.*", workplace.run_dir);
    const int code = glob(pattern, 0, NULL, found);
    ck_assert(code == 0 || code == GLOB_NOMATCH);
    return code == 0 ? found->gl_pathc : 0;
}

static size_t count_files(void)
{
    glob_t found;
    const size_t count = event_files(&found);
    if (count > 0)
        globfree(&found);
    return count;
}

static uint64_t little_endian(const uint8_t *bytes, size_t count)
{
    uint64_t number = 0;
    for (size_t i = count; i-- > 0;)
        number = number << 8 | bytes[i];
    return number;
}

static uint32_t masked(const uint8_t *bytes, size_t count)
{
    const uint32_t crc = crc32c(bytes, count);
    return (crc >> 15 | crc << 17) + 0xa282ead8;
}

/* Checks every record's frame. The number of records; the last body goes to `last`, if that is not NULL. */
static unsigned check_frames(const char *path, uint8_t last[256])
{
    uint8_t bytes[32768];
    unsigned records = 0;
    FILE *file = fopen(path, "rb");
    ck_assert_ptr_nonnull(file);
    const size_t size = fread(bytes, 1, sizeof bytes, file);
    ck_assert_uint_lt(size, sizeof bytes);
    fclose(file);
    for (size_t at = 0; at < size; records++) {
        const uint64_t length = little_endian(bytes + at, 8);
        ck_assert_uint_le(at + 12 + length + 4, size);
        ck_assert_uint_eq(little_endian(bytes + at + 8, 4), masked(bytes + at, 8));
        ck_assert_uint_eq(little_endian(bytes + at + 12 + length, 4), masked(bytes + at + 12, length));
        if (last != NULL && length <= 256)
            memcpy(last, bytes + at + 12, length);
        at += 12 + length + 4;
    }
    return records;
}

static unsigned records_of(size_t index, uint8_t last[256])
{
    glob_t found;
    ck_assert_uint_gt(event_files(&found), index);
    const unsigned records = check_frames(found.gl_pathv[index], last);
    globfree(&found);
    return records;
}

static struct tensorboard *board;

/* Writes record_message into an event file of its own, the one of that index. Returns its number of events;
 * the newest is in `body`. */
static unsigned written(size_t index, uint8_t body[256])
{
    board = tensorboard_new(path_of_folder(dir_fd, "run"));
    job.log.tensorboard = true;
    ck_assert_int_eq(tensorboard_record(board, &job, &record_message, &error), STATUS_OK);
    ck_assert_int_eq(tensorboard_free(board, &error), STATUS_OK);
    return count_files() > index ? records_of(index, body) : 0;
}

START_TEST(an_event_has_tensorflows_frame_and_fields)
{
    static const uint8_t version[] = "\x1a\x0d"
                                     "brain.Event:2";
    uint8_t body[256] = {0};
    record_message.kind = CONTROL_EPISODE;
    record_message.body.episode = (struct control_episode){
        .episode = 300, .loss = -0.125, .reward = (double)NAN, .running_reward = (double)NAN};
    ck_assert_uint_eq(written(0, body), 2);
    static const uint8_t wanted[] = "\x10\xac\x02" // step 300
                                    "\x2a\x13"     // summary
                                    "\x0a\x11"     // value
                                    "\x0a\x0atrain/loss"
                                    "\x15\x00\x00\x00\xbe"; // simple_value -0.125
    ck_assert_uint_eq(body[0], 0x09);                       // wall_time, eight bytes
    ck_assert_mem_eq(body + 9, wanted, sizeof wanted - 1);

    glob_t found;
    ck_assert_uint_eq(event_files(&found), 1);
    char *bytes = file_read(found.gl_pathv[0]);
    globfree(&found);
    ck_assert_mem_eq(bytes + 12 + 9, version, sizeof version - 1); // the first event
    free(bytes);
}
END_TEST

START_TEST(nothing_is_opened_when_off_and_the_key_is_obeyed_while_the_job_runs)
{
    stdout_to_file();
    open_log();
    log_episodes(1, 2);
    ck_assert_uint_eq(count_files(), 0);
    ck_assert_int_ne(faccessat(dir_fd, "tensorboard", F_OK, 0), 0);
    job.log.tensorboard = true;
    log_episodes(3, 5);
    job.log.tensorboard = false;
    log_episodes(6, 7);
    ck_assert_uint_eq(count_files(), 1);
    ck_assert_uint_eq(records_of(0, NULL), 1 + 3); // it is closed
    job.log.tensorboard = true;
    log_episodes(8, 9);
    close_log();
    ck_assert_uint_eq(count_files(), 2);
    ck_assert_uint_eq(records_of(1, NULL), 1 + 2);
}
END_TEST

START_TEST(events_gather_in_memory)
{
    stdout_to_file();
    job.log.tensorboard = true;
    open_log();
    log_episode(1); // written at once
    ck_assert_uint_eq(records_of(0, NULL), 2);
    log_episodes(2, 50);
    usleep(1000000);
    log_episode(51);
    ck_assert_uint_eq(records_of(0, NULL), 52);
    log_episode(52);
    close_log();
    ck_assert_uint_eq(records_of(0, NULL), 53);
}
END_TEST

START_TEST(a_resumed_run_shows_no_episode_twice)
{
    stdout_to_file();
    job.log.tensorboard = true;
    open_log();
    struct run_place place;
    log_episodes(1, 3);
    runlog_place(runlog, &place);
    log_episodes(4, 5);
    close_log();
    open_log();
    ck_assert_int_eq(runlog_resume(runlog, &place, 3, 0.75, NULL, &error), STATUS_OK);
    log_episodes(4, 5);
    ck_assert_uint_eq(count_files(), 1);
    log_episodes(6, 7);
    close_log();
    ck_assert_uint_eq(count_files(), 2);
    ck_assert_uint_eq(records_of(0, NULL), 1 + 5);
    ck_assert_uint_eq(records_of(1, NULL), 1 + 2);
}
END_TEST

/* Runs `log_episodes` with stderr in a file, and returns what was written there. */
static char *warnings_of(uint64_t first, uint64_t last)
{
    char path[128];
    snprintf(path, sizeof path, "%s/stderr", workplace.folder);
    const int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0666), old = dup(STDERR_FILENO);
    dup2(fd, STDERR_FILENO);
    close(fd);
    log_episodes(first, last);
    dup2(old, STDERR_FILENO);
    close(old);
    return file_read(path);
}

static unsigned lines_of(const char *text)
{
    unsigned lines = 0;
    for (; *text != '\0'; text++)
        lines += *text == '\n';
    return lines;
}

START_TEST(a_folder_that_cannot_be_made_costs_one_warning)
{
    stdout_to_file();
    job.log.tensorboard = true;
    close(openat(dir_fd, "tensorboard", O_WRONLY | O_CREAT, 0666));
    open_log();
    char *warnings = warnings_of(1, 5);
    ck_assert_msg(strstr(warnings, "/tensorboard: found a regular file, expected a directory") != NULL, "%s",
                  warnings);
    ck_assert_uint_eq(lines_of(warnings), 1);
    free(warnings);
    close_log();
    expect_episodes(workplace.jsonl, 1, 5);
}
END_TEST

/* RLIMIT_FSIZE stands for a full disk. */
START_TEST(a_full_disk_is_one_error_and_leaves_whole_events)
{
    signal(SIGXFSZ, SIG_IGN);
    struct rlimit limit, small;
    ck_assert_int_eq(getrlimit(RLIMIT_FSIZE, &limit), 0);
    record_message.kind = CONTROL_EPISODE;
    record_message.body.episode = episode_of(1);
    board = tensorboard_new(path_of_folder(dir_fd, "run"));
    job.log.tensorboard = true;
    ck_assert_int_eq(tensorboard_record(board, &job, &record_message, &error), STATUS_OK);
    small = limit;
    small.rlim_cur = 300;
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &small), 0);
    unsigned errors = 0;
    struct error first = {0};
    for (unsigned i = 0; i < 2000; i++)
        if (tensorboard_record(board, &job, &record_message, &error) != STATUS_OK && errors++ == 0)
            first = error;
    errors += tensorboard_free(board, &error) != STATUS_OK;
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
    ck_assert_uint_eq(errors, 1);
    ck_assert_int_eq(first.status, STATUS_IO);
    ck_assert_msg(strstr(first.text, "cannot write run/tensorboard/events.out.tfevents.") != NULL, "%s",
                  first.text);
    ck_assert_uint_eq(records_of(0, NULL), 2);
}
END_TEST

/* The value of the tag in an event's body; NaN: there is none. */
static double value_of(const uint8_t *body, const char *tag)
{
    float value = NAN;
    char field[64];
    snprintf(field, sizeof field, "%c%s\x15", (int)strlen(tag), tag);
    const uint8_t *at = memmem(body, 256, field, strlen(field));
    if (at != NULL)
        memcpy(&value, at + strlen(field), sizeof value);
    return (double)value;
}

START_TEST(what_is_not_a_number_is_left_out)
{
    uint8_t body[256] = {0};
    record_message.kind = CONTROL_EPISODE;
    record_message.body.episode = episode_of(7);
    record_message.body.episode.loss = (double)NAN;
    record_message.body.episode.metrics.count = 1;
    strcpy(record_message.body.episode.metrics.of[0].name, "gate\x1b\xff");
    record_message.body.episode.metrics.of[0].mean = 3;
    ck_assert_uint_eq(written(0, body), 2);
    ck_assert_mem_eq(body + 9, "\x10\x07", 2); // step 7
    ck_assert_double_eq(value_of(body, "rollout/ep_rew_mean"), 1.75);
    ck_assert_double_eq(value_of(body, "rollout/ep_rew"), 7.5);
    ck_assert_double_eq(value_of(body, "time/fps"), 560);
    ck_assert_double_eq(value_of(body, "gate\\u001b\\xff"), 3);
    ck_assert_double_nan(value_of(body, "train/loss"));
}
END_TEST

START_TEST(an_epoch_shows_its_evaluation_alone)
{
    uint8_t body[256] = {0};
    record_message.kind = CONTROL_EPOCH;
    record_message.body.epoch = (struct control_epoch){.epoch = 2, .update = 40, .loss = 1};
    ck_assert_uint_eq(written(0, body), 0);
    record_message.body.epoch.evaluated = 8;
    record_message.body.epoch.correct = 6;
    record_message.body.epoch.evaluation_loss = 2;
    job.kind = JOB_PARAMETER_SERVER;
    ck_assert_uint_eq(written(0, body), 2);
    ck_assert_mem_eq(body + 9, "\x10\x28", 2); // step 40
    ck_assert_double_eq(value_of(body, "eval/loss"), 2);
    ck_assert_double_eq(value_of(body, "eval/accuracy"), 0.75);
    job.kind = JOB_MODEL_PARALLEL;
    ck_assert_uint_eq(written(1, body), 2);
    ck_assert_double_eq(value_of(body, "eval/perplexity"), (double)(float)exp(2));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("tensorboard");
    TCase *events = add_case(suite, "events");
    tcase_add_test(events, an_event_has_tensorflows_frame_and_fields);
    tcase_add_test(events, nothing_is_opened_when_off_and_the_key_is_obeyed_while_the_job_runs);
    tcase_add_test(events, events_gather_in_memory);
    tcase_add_test(events, a_resumed_run_shows_no_episode_twice);
    tcase_add_test(events, a_folder_that_cannot_be_made_costs_one_warning);
    tcase_add_test(events, a_full_disk_is_one_error_and_leaves_whole_events);
    tcase_add_test(events, what_is_not_a_number_is_left_out);
    tcase_add_test(events, an_epoch_shows_its_evaluation_alone);
    return suite_run(suite);
}
