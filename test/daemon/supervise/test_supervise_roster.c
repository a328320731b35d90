/* The supervisor with a roster of several servers (daemon/supervise/supervise.h): the order in which workers
 * connect and leave, their descriptors, and how their messages and exits are treated. The workers are this
 * program (test/daemon/supervise/fake_roster.h). */
#include "daemon/run/resume.h"
#include "daemon/supervise/supervise.h"
#include "test/daemon/supervise/fake_roster.h"

#include <check.h>

static struct job job;
static struct rundir dir;
static struct runlog *runlog;
static struct error error;
static char *story;

static void open_place(void)
{
    static const char text[] =
        "{\"kind\":\"parameter-server\",\"server\":{\"count\":3},\"trainers\":{\"count\":2},"
        "\"stop\":{\"updates\":2},\"supervise\":{\"restart\":false}}";
    char *problems = NULL;
    char path[96];
    workplace_open();
    setenv("XDG_RUNTIME_DIR", workplace.folder, 1);
    unsetenv("RUNTIME_DIRECTORY");
    snprintf(path, sizeof path, "%s/story", workplace.folder);
    setenv("STORY", path, 1);
    ck_assert_int_eq(job_parse(&job, text, strlen(text), "tiny.json", NULL, 0, &problems), STATUS_OK);
    free(problems);
    error = (struct error){0};
}

/* The same workers in a model-parallel job, which the first trainer leads. */
static void open_parallel_place(void)
{
    static const char text[] =
        "{\"kind\":\"model-parallel\",\"server\":{\"count\":3},\"trainers\":{\"count\":2},"
        "\"placement\":{\"lstm\":\"server 2\"},\"stop\":{\"updates\":2},\"supervise\":{\"restart\":false}}";
    char *problems = NULL;
    open_place();
    setenv("PARALLEL", "1", 1);
    ck_assert_int_eq(job_parse(&job, text, strlen(text), "tiny.json", NULL, 0, &problems), STATUS_OK);
    free(problems);
}

static void close_place(void)
{
    free(story);
    workplace_close();
}

/* The workers must not inherit Check's descriptors, nor the daemon write into Check's output. */
static void keep_descriptors(void)
{
    ck_assert_ptr_nonnull(freopen("/dev/null", "w", stdout));
    for (int fd = STDERR_FILENO + 1; fd < 256; fd++)
        fcntl(fd, F_SETFD, FD_CLOEXEC);
}

/* Opens the descriptors at which workers will find segments, so that the supervisor's own files get other
 * numbers until they are closed. */
static unsigned occupy_descriptors(int fds[SEGMENT_FD_FIRST + WORKERS])
{
    unsigned count = 0;
    do
        fds[count] = open("/dev/null", O_RDONLY | O_CLOEXEC);
    while (fds[count++] < SEGMENT_FD_FIRST + WORKERS);
    return count;
}

/* After a script that lowered it. */
static void restore_descriptor_limit(void)
{
    struct rlimit limit;
    ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &limit), 0);
    limit.rlim_cur = limit.rlim_max;
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
}

/* Runs a job whose workers play the script. */
static enum status play(const char *script, bool resumes)
{
    int fds[SEGMENT_FD_FIRST + WORKERS];
    keep_descriptors();
    unsigned occupied = strcmp(script, "free") == 0 ? occupy_descriptors(fds) : 0;
    unlink(story_path());
    setenv("SCRIPT", script, 1);
    enum status status = rundir_open(&dir, workplace.run_dir, &job, resumes, &error);
    ck_assert_msg(status == STATUS_OK, "%s", error.text);
    const struct run_identity identity = resume_identity(&job);
    ck_assert_int_eq(runlog_open(&runlog, rundir_path(&dir), &job, &identity, &error), STATUS_OK);
    struct supervise_config config = {.job = &job, .dir = &dir, .log = runlog};
    while (occupied > 0)
        close(fds[--occupied]);
    status = supervise(&config, &error);
    restore_descriptor_limit();
    runlog_close(runlog);
    rundir_close(&dir);
    free(story);
    story = file_read(story_path());
    return status;
}

static void expect_good(const char *script, bool resumes)
{
    enum status status = play(script, resumes);
    ck_assert_msg(status == STATUS_OK, "%s; %s", error.text, story);
}

static const char *find_line(const char *line)
{
    const char *at = strstr(story, line);
    ck_assert_msg(at != NULL, "expected \"%s\" in: %s", line, story);
    return at;
}

static void expect_order(const char *first, const char *second)
{
    ck_assert_msg(find_line(first) < find_line(second), "expected \"%s\" before \"%s\" in: %s", first, second,
                  story);
}

START_TEST(a_worker_dials_when_those_below_are_bound)
{
    expect_good(_i == 0 ? "" : "late", false);
    expect_order("pserver 0: bound\n", "pserver 1: connect\n");
    for (unsigned below = 0; below < 2; below++) {
        char line[32];
        snprintf(line, sizeof line, "pserver %u: bound\n", below);
        expect_order(line, "pserver 2: connect\n");
        expect_order(line, "trainer 3: connect\n");
        expect_order(line, "trainer 4: connect\n");
    }
    expect_order("pserver 2: bound\n", "trainer 3: connect\n");
    ck_assert_uint_eq(text_count(story, "connect\n"), WORKERS - 1);
    ck_assert_ptr_null(strstr(story, "pserver 0: connect"));
}
END_TEST

START_TEST(they_leave_in_waves)
{
    expect_good("", false);
    expect_order("trainer 3: exit\n", "pserver 2: exit\n");
    expect_order("trainer 4: exit\n", "pserver 2: exit\n");
    expect_order("pserver 2: exit\n", "pserver 1: exit\n");
    expect_order("pserver 1: exit\n", "pserver 0: exit\n");
    ck_assert_uint_eq(text_count(story, "exit\n"), WORKERS);
    ck_assert_uint_eq(text_count(story, "hurry\n"), 0);
}
END_TEST

START_TEST(what_server_0_reports_is_logged_and_acknowledged)
{
    expect_good("", false);
    expect_order("pserver 0: logged 1\n", "pserver 0: logged 2\n");
    ck_assert_uint_eq(text_count(story, "logged"), 3);
    char *json = file_read(workplace.jsonl);
    ck_assert_uint_eq(text_count(json, "{\"update\":"), 2);
    ck_assert_uint_eq(text_count(json, "{\"epoch\":1,\"update\":2,"), 1);
    ck_assert_ptr_nonnull(strstr(json, "{\"event\":\"finished\",\"updates\":2,"));
    free(json);
}
END_TEST

/* All workers have the same empty, unsealed memory files at the same descriptors, and beside them only the
 * run's directory and their control line. */
START_TEST(every_worker_has_every_segment)
{
    char line[256] = "";
    job.transport = _i == 1 ? JOB_TRANSPORT_INLINE : JOB_TRANSPORT_SHARED;
    expect_good(_i == 2 ? "free" : "", false);
    if (_i == 1) {
        ck_assert_uint_eq(text_count(story, ": holds 6:\n"), WORKERS);
        return;
    }
    const char *holds = find_line("pserver 0: holds 11:") + strlen("pserver 0");
    snprintf(line, sizeof line, "%.*s", (int)(strchr(holds, '\n') + 1 - holds), holds);
    ck_assert_uint_eq(text_count(story, line), WORKERS);
    ck_assert_uint_eq(text_count(line, "/0/0"), WORKERS);
    unsigned long inode[WORKERS];
    ck_assert_int_eq(sscanf(line, ": holds 11: %lu/0/0 %lu/0/0 %lu/0/0 %lu/0/0 %lu/0/0", &inode[0], &inode[1],
                            &inode[2], &inode[3], &inode[4]),
                     WORKERS);
    for (unsigned i = 1; i < WORKERS; i++)
        for (unsigned k = 0; k < i; k++)
            ck_assert_uint_ne(inode[i], inode[k]);
}
END_TEST

START_TEST(every_worker_is_told_where_the_run_is)
{
    char line[256], *real = realpath(workplace.folder, NULL);
    expect_good("", false);
    snprintf(line, sizeof line, ": run %s/run resume \n", real);
    ck_assert_uint_eq(text_count(story, line), WORKERS);
    free(real);
}
END_TEST

/* A worker's status is the job's where it names the machine or the data; any other is internal. */
START_TEST(a_death_is_told_to_all_servers_and_ends_the_job)
{
    static const struct {
        enum status said, became;
        int code;
    } ends[] = {
        {STATUS_CORRUPT, STATUS_CORRUPT, 65},         {STATUS_NOT_FOUND, STATUS_NOT_FOUND, 66},
        {STATUS_UNAVAILABLE, STATUS_UNAVAILABLE, 69}, {STATUS_IO, STATUS_IO, 74},
        {STATUS_INVALID, STATUS_INTERNAL, 70},        {STATUS_INTERNAL, STATUS_INTERNAL, 70},
        {STATUS_PEER_DIED, STATUS_INTERNAL, 70},      {STATUS_PERMISSION, STATUS_PERMISSION, 77},
    };
    char script[32];
    snprintf(script, sizeof script, "status%d", ends[_i].said);
    enum status status = play(script, false);
    ck_assert_int_eq(status, ends[_i].became);
    ck_assert_int_eq(status_exit_code(status), ends[_i].code);
    ck_assert_ptr_nonnull(strstr(error.text, "trainer 4 (process "));
    ck_assert_ptr_nonnull(strstr(error.text, "exited with code 1: as the script says"));
    for (unsigned server = 0; server < SERVERS; server++) {
        char line[32];
        snprintf(line, sizeof line, "pserver %u: died 4\n", server);
        find_line(line);
    }
    ck_assert_uint_eq(text_count(story, "died"), SERVERS);
    ck_assert_uint_eq(text_count(story, "hurry\n"), WORKERS - 1);
}
END_TEST

/* STATUS_INVALID before READY means a bad job file, also if peers that failed with the worker are reaped
 * first. */
START_TEST(invalid_before_ready_is_a_bad_job)
{
    char script[32];
    snprintf(script, sizeof script, "unopened%d%s", STATUS_INVALID, _i == 0 ? "" : " later");
    ck_assert_int_eq(play(script, false), STATUS_INVALID);
    ck_assert_ptr_nonnull(strstr(error.text, "exited with code 1: as the script says"));
}
END_TEST

/* A server that fails says BYE first; its peers may exit before it does, but are not the cause. */
START_TEST(the_cause_is_reported_not_the_follow_on_failure)
{
    static const struct {
        enum status first, second, became;
        const char *who;
    } ends[] = {{STATUS_PEER_DIED, STATUS_IO, STATUS_IO, "pserver 0 (process "},
                {STATUS_PEER_DIED, STATUS_INVALID, STATUS_INTERNAL, "pserver 0 (process "},
                {STATUS_PEER_DIED, STATUS_PEER_DIED, STATUS_INTERNAL, "trainer 4 (process "},
                {STATUS_CORRUPT, STATUS_IO, STATUS_CORRUPT, "trainer 4 (process "}};
    char script[64];
    snprintf(script, sizeof script, "status%d because %d", ends[_i].first, ends[_i].second);
    ck_assert_int_eq(play(script, false), ends[_i].became);
    ck_assert_msg(strncmp(error.text, ends[_i].who, strlen(ends[_i].who)) == 0, "%s", error.text);
}
END_TEST

START_TEST(only_server_0_speaks_for_the_job)
{
    static const struct {
        const char *script, *who;
    } liars[] = {{"a record out of turn", "pserver 1 (process "},
                 {"an end out of turn", "pserver 2 (process "},
                 {"too many losses", "pserver 0 (process "}};
    ck_assert_int_eq(play(liars[_i].script, false), STATUS_INTERNAL);
    ck_assert_msg(strncmp(error.text, liars[_i].who, strlen(liars[_i].who)) == 0, "%s", error.text);
    ck_assert_ptr_nonnull(strstr(error.text, "sent a message that is not permitted"));
    char *json = file_read(workplace.jsonl);
    ck_assert_uint_eq(text_count(json, "{\"update\":"), 0);
    free(json);
}
END_TEST

/* The lead is told to drain before all of its records are handled: on one line the answers come in that
 * order. */
START_TEST(a_flood_of_messages_delays_no_signal)
{
    expect_good("flood", false);
    expect_order("pserver 0: logged 1\n", "pserver 0: drain\n");
    expect_order("pserver 0: drain\n", "pserver 0: logged 150\n");
}
END_TEST

START_TEST(a_loop_that_cannot_wait_ends_the_job)
{
    ck_assert_int_eq(play("no poll", false), STATUS_INTERNAL);
    ck_assert_str_eq(error.text, "cannot wait for 5 workers: Invalid argument");
}
END_TEST

/* ---- a model-parallel job ---- */

START_TEST(the_first_trainer_leads)
{
    expect_good("", false);
    expect_order("trainer 3: logged 1\n", "trainer 3: logged 2\n");
    ck_assert_uint_eq(text_count(story, "logged"), 3);
    expect_order("trainer 3: exit\n", "pserver 2: exit\n");
    expect_order("pserver 1: exit\n", "pserver 0: exit\n");
    expect_good("drain", false);
    find_line("trainer 3: drain\n");
    ck_assert_uint_eq(text_count(story, "drain\n"), 1);
    char *json = file_read(workplace.jsonl);
    ck_assert_ptr_nonnull(strstr(json, "{\"event\":\"stopped\",\"updates\":0,"));
    free(json);
}
END_TEST

START_TEST(nobody_else_leads)
{
    ck_assert_int_eq(play("a record out of turn", false), STATUS_INTERNAL);
    ck_assert_msg(strncmp(error.text, "pserver 1 (process ", 19) == 0, "%s", error.text);
}
END_TEST

START_TEST(what_workers_hold_is_told_of_epochs_and_of_the_end)
{
    expect_good("holds", false);
    char *json = file_read(workplace.jsonl);
    ck_assert_ptr_nonnull(
        strstr(json, ",\"objects\":[1,1,1,1,2],\"references\":[0,1,2,3,4],\"users\":[0,0,0,0,0],"
                     "\"users_of\":[{},{},{},{},{}],\"contexts\":[7,7,7,7,0],\"pieces\":[0,0,0,0,5]}}\n"));
    ck_assert_ptr_nonnull(strstr(json, "{\"event\":\"finished\",\"updates\":2,\"objects\":0,\"references\":0,"
                                       "\"users\":0,\"contexts\":0,\"pieces\":0,"));
    free(json);
    expect_good("leaks", false);
    json = file_read(workplace.jsonl);
    ck_assert_ptr_nonnull(strstr(json, "{\"event\":\"finished\",\"updates\":2,\"objects\":1,\"references\":2,"
                                       "\"users\":3,\"contexts\":4,\"pieces\":5,"));
    free(json);
}
END_TEST

/* A storm of SIGKILL after the last record: no worker lives to report that it has released everything. */
START_TEST(a_worker_that_is_killed_as_it_leaves_holds_nothing)
{
    expect_good("holds until killed", false);
    char *json = file_read(workplace.jsonl);
    ck_assert_ptr_nonnull(strstr(json, "{\"event\":\"finished\",\"updates\":2,\"objects\":0,\"references\":0,"
                                       "\"users\":0,\"contexts\":0,\"pieces\":0,"));
    free(json);
}
END_TEST

/* Workers of higher numbers connect to each worker but the last, and leave before it. */
START_TEST(in_a_model_parallel_job_all_dial_all)
{
    static const char *const names[WORKERS] = {"pserver 0", "pserver 1", "pserver 2", "trainer 3",
                                               "trainer 4"};
    expect_good("", false);
    for (unsigned worker = 1; worker < WORKERS; worker++) {
        char connect[32], line[32];
        snprintf(connect, sizeof connect, "%s: connect\n", names[worker]);
        for (unsigned below = 0; below < worker; below++) {
            snprintf(line, sizeof line, "%s: bound\n", names[below]);
            expect_order(line, connect);
        }
        snprintf(connect, sizeof connect, "%s: exit\n", names[worker]);
        snprintf(line, sizeof line, "%s: exit\n", names[worker - 1]);
        expect_order(connect, line);
    }
    ck_assert_ptr_null(strstr(story, "trainer 4: bound"));
}
END_TEST

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "worker") == 0)
        act_worker(argc, argv);
    Suite *suite = suite_create("supervise_roster");
    TCase *roster = tcase_create("roster");
    tcase_add_checked_fixture(roster, open_place, close_place);
    tcase_set_timeout(roster, 60);
    tcase_add_loop_test(roster, a_worker_dials_when_those_below_are_bound, 0, 2);
    tcase_add_test(roster, they_leave_in_waves);
    tcase_add_test(roster, what_server_0_reports_is_logged_and_acknowledged);
    tcase_add_loop_test(roster, every_worker_has_every_segment, 0, 3);
    tcase_add_test(roster, every_worker_is_told_where_the_run_is);
    tcase_add_loop_test(roster, a_death_is_told_to_all_servers_and_ends_the_job, 0, 8);
    tcase_add_loop_test(roster, invalid_before_ready_is_a_bad_job, 0, 2);
    tcase_add_loop_test(roster, the_cause_is_reported_not_the_follow_on_failure, 0, 4);
    tcase_add_loop_test(roster, only_server_0_speaks_for_the_job, 0, 3);
    tcase_add_test(roster, a_flood_of_messages_delays_no_signal);
    tcase_add_test(roster, a_loop_that_cannot_wait_ends_the_job);
    suite_add_tcase(suite, roster);
    TCase *parallel = tcase_create("model-parallel");
    tcase_add_checked_fixture(parallel, open_parallel_place, close_place);
    tcase_set_timeout(parallel, 60);
    tcase_add_test(parallel, in_a_model_parallel_job_all_dial_all);
    tcase_add_test(parallel, the_first_trainer_leads);
    tcase_add_test(parallel, nobody_else_leads);
    tcase_add_test(parallel, what_workers_hold_is_told_of_epochs_and_of_the_end);
    tcase_add_test(parallel, a_worker_that_is_killed_as_it_leaves_holds_nothing);
    suite_add_tcase(suite, parallel);
    return suite_run(suite);
}
