/* The supervisor with any cast (daemon/supervise.h): in which order workers are let in and out, what they are
 * handed, and what their words cost. The workers here are this very program, which the supervisor executes
 * anew: each follows the script that the environment names, and tells in one common file what it is told. */
#include "daemon/supervise.h"
#include "test/process.h"
#include "test/workplace.h"
#include "worker/segment.h"
#include "worker/worker.h"

#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { SERVERS = 3, TRAINERS = 2, WORKERS = SERVERS + TRAINERS };

/* ---- the workers ---- */

static struct {
    struct control_start self;
    char name[32];
    int story; /* the common file: one write a line, so that its order is that of time */
    const char *script;
    struct control_message order;
} fake;

static const char *story_path(void)
{
    const char *path = getenv("STORY");
    return path != NULL ? path : "/dev/null";
}

static void tell(const char *format, ...) __attribute__((format(printf, 1, 2)));

static void tell(const char *format, ...)
{
    char line[512];
    int length = snprintf(line, sizeof line, "%s: ", fake.name);
    va_list list;
    va_start(list, format);
    length += vsnprintf(line + length, sizeof line - (size_t)length, format, list);
    va_end(list);
    line[length++] = '\n';
    if (write(fake.story, line, (size_t)length) != length)
        _exit(99);
}

static bool plays(const char *script)
{
    return strcmp(fake.script, script) == 0;
}

static void say(enum control_kind kind, const void *body, size_t bytes)
{
    if (control_send(CONTROL_FD, kind, body, bytes) != STATUS_OK)
        _exit(98);
}

static _Noreturn void last_words(enum status status)
{
    struct error error = {.status = status, .text = "as the script says"};
    say(CONTROL_FAILED, &error, sizeof error);
    _exit(1);
}

/* What this worker still holds is its last word, where the script has it hold anything. */
static _Noreturn void leave(void)
{
    struct control_status status = {0};
    if (plays("leaks") && fake.self.worker == 1)
        status = (struct control_status){1, 2, 3, 4, 5, {0}};
    if (plays("holds") || plays("leaks"))
        say(CONTROL_STATUS, &status, sizeof status);
    _exit(0);
}

/* Waits for an order of this kind; what else comes is told. */
static void await(uint32_t kind)
{
    static const char *const names[CONTROL_KINDS] = {
        [CONTROL_CONNECT] = "connect", [CONTROL_DIED] = "died",   [CONTROL_LOGGED] = "logged",
        [CONTROL_DRAIN] = "drain",     [CONTROL_HURRY] = "hurry", [CONTROL_EXIT] = "exit"};
    do {
        enum status status;
        do
            status = control_receive(CONTROL_FD, true, &fake.order);
        while (status == STATUS_AGAIN);
        if (status != STATUS_OK)
            _exit(97);
        const struct control_message *order = &fake.order;
        if (order->kind == CONTROL_DIED)
            tell("died %u", order->body.died.worker);
        else if (order->kind == CONTROL_LOGGED)
            tell("logged %u", (unsigned)order->body.logged.number);
        else if (order->kind != CONTROL_START)
            tell("%s", names[order->kind]);
        if (order->kind == CONTROL_EXIT)
            leave();
    } while (fake.order.kind != kind);
}

/* The descriptors that are open, and which memory stands at those of the segments. */
static void tell_descriptors(void)
{
    char text[256] = "";
    unsigned open_fds = 0;
    for (int fd = 0; fd < 256; fd++)
        open_fds += fd != fake.story && fcntl(fd, F_GETFD) >= 0;
    for (int fd = SEGMENT_FD_FIRST; fd < SEGMENT_FD_FIRST + WORKERS; fd++) {
        struct stat info;
        size_t length = strlen(text);
        if (fcntl(fd, F_GET_SEALS) < 0 || fstat(fd, &info) != 0)
            continue;
        snprintf(text + length, sizeof text - length, " %lu/%ld/%x", (unsigned long)info.st_ino,
                 (long)info.st_size, (unsigned)fcntl(fd, F_GET_SEALS) & (F_SEAL_SEAL | F_SEAL_GROW));
    }
    tell("holds %u:%s", open_fds, text);
}

static void report_update(uint64_t number, uint32_t trainers, double loss)
{
    struct control_update update = {
        .update = number, .loss = loss, .samples = 4, .trainers = trainers, .losses = {loss, loss}};
    say(CONTROL_UPDATE, &update, sizeof update);
}

/* Who speaks for the job: server 0, or the first trainer of a model-parallel one. */
static unsigned lead(void)
{
    return getenv("PARALLEL") != NULL ? SERVERS : 0;
}

/* Every worker holds as much as its number says, and a death on the way takes its own with it. */
static void tell_holdings(void)
{
    struct control_status status = {.objects = 1, .references = fake.self.worker, .contexts = 7};
    if (plays("holds") || plays("leaks"))
        say(CONTROL_STATUS, &status, sizeof status);
}

/* An operator asks for an end. */
static void stop(void)
{
    struct control_finished finished = {.end = CONTROL_END_STOPPED};
    kill(getppid(), SIGTERM);
    await(CONTROL_DRAIN);
    say(CONTROL_FINISHED, &finished, sizeof finished);
}

/* The lead's part, once all are there. */
static void train(void)
{
    struct control_epoch epoch = {.epoch = 1, .update = 2, .loss = 0.5};
    struct control_finished finished = {.end = CONTROL_END_FINISHED};
    if (plays("too many losses"))
        report_update(1, JOB_TRAINERS_MAX + 1, 1);
    for (uint64_t number = 1; number <= 2; number++) {
        report_update(number, TRAINERS, plays("another loss") ? 3.5 : 1.0 / (double)number);
        await(CONTROL_LOGGED);
    }
    say(CONTROL_EPOCH, &epoch, sizeof epoch);
    say(CONTROL_FINISHED, &finished, sizeof finished);
}

/* Until every worker has told that it is there; the checks' own helpers may not be used in this process. */
static void await_everybody(void)
{
    for (;;) {
        static char text[65536];
        int fd = open(story_path(), O_RDONLY | O_CLOEXEC);
        ssize_t bytes = read(fd, text, sizeof text - 1);
        close(fd);
        text[bytes > 0 ? bytes : 0] = '\0';
        if (text_count(text, ": there\n") >= WORKERS)
            return;
        sleep_ms(5);
    }
}

/* What it holds has been said when the common file says so. */
static void tell_holdings_and_be_ready(void)
{
    tell("ready");
    say(CONTROL_READY, NULL, 0);
    tell_holdings();
    tell("there");
}

static void lead_the_job(void)
{
    await_everybody();
    if (plays("drain"))
        stop();
    else if (strncmp(fake.script, "status", 6) != 0)
        train();
}

/* A server that starts late keeps waiting who dials it. */
static void act_server(void)
{
    if (fake.self.worker == 0 || (fake.self.worker == 1 && plays("late")))
        sleep_ms(200);
    tell_holdings_and_be_ready();
    if (fake.self.worker == 1 && strstr(fake.script, "later") != NULL)
        last_words(STATUS_PEER_DIED);
    if (fake.self.worker == 1 && plays("a record out of turn"))
        report_update(1, TRAINERS, 1);
    if (fake.self.worker == 2 && plays("an end out of turn"))
        say(CONTROL_FINISHED, &(struct control_finished){0}, sizeof(struct control_finished));
    if (fake.self.worker != lead() || strstr(fake.script, "out of turn") != NULL ||
        strncmp(fake.script, "unopened", 8) == 0)
        await(CONTROL_EXIT);
    lead_the_job();
    const char *cause = strstr(fake.script, "because ");
    if (cause != NULL) {
        await(CONTROL_HURRY);
        last_words((enum status)atoi(cause + strlen("because ")));
    }
}

static void act_trainer(void)
{
    await(strstr(fake.script, " later") != NULL ? CONTROL_HURRY : CONTROL_CONNECT);
    if (fake.self.worker == WORKERS - 1)
        sleep_ms(100); /* the last one in everybody's eyes */
    if (fake.self.worker == WORKERS - 1 && strncmp(fake.script, "unopened", 8) == 0)
        last_words((enum status)atoi(fake.script + 8));
    tell_holdings_and_be_ready();
    if (fake.self.worker == lead())
        lead_the_job();
    if (fake.self.worker == WORKERS - 1 && strncmp(fake.script, "status", 6) == 0) {
        sleep_ms(200);
        last_words((enum status)atoi(fake.script + 6));
    }
}

static _Noreturn void act(int argc, char **argv)
{
    fake.script = getenv("SCRIPT");
    fake.story = open(story_path(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
    snprintf(fake.name, sizeof fake.name, "%s %s", argc == 6 ? argv[3] : "?", argc == 6 ? argv[5] : "?");
    await(CONTROL_START);
    fake.self = fake.order.body.start;
    tell_descriptors();
    tell("run %s resume %s", fake.self.run_dir, fake.self.resume);
    if (fake.self.worker < SERVERS)
        act_server();
    else
        act_trainer();
    await(CONTROL_EXIT);
    _exit(0);
}

/* ---- the checks ---- */

static struct job job;
static struct rundir dir;
static struct runlog *runlog;
static struct error error;
static char *story;

static void open_place(void)
{
    static const char text[] =
        "{\"kind\":\"parameter-server\",\"server\":{\"count\":3},\"trainers\":{\"count\":2},"
        "\"stop\":{\"updates\":2}}";
    struct job_problems problems = {0};
    char path[96];
    workplace_open();
    setenv("XDG_RUNTIME_DIR", workplace.folder, 1);
    unsetenv("RUNTIME_DIRECTORY");
    snprintf(path, sizeof path, "%s/story", workplace.folder);
    setenv("STORY", path, 1);
    ck_assert_int_eq(job_parse(&job, text, strlen(text), "tiny.json", NULL, 0, &problems), STATUS_OK);
    job_problems_fini(&problems);
    error = (struct error){0};
}

/* The same workers, in a job that the first trainer leads. */
static void open_parallel_place(void)
{
    static const char text[] =
        "{\"kind\":\"model-parallel\",\"server\":{\"count\":3},\"trainers\":{\"count\":2},"
        "\"placement\":{\"lstm\":\"server 2\"},\"stop\":{\"updates\":2}}";
    struct job_problems problems = {0};
    open_place();
    setenv("PARALLEL", "1", 1);
    ck_assert_int_eq(job_parse(&job, text, strlen(text), "tiny.json", NULL, 0, &problems), STATUS_OK);
    job_problems_fini(&problems);
}

static void close_place(void)
{
    free(story);
    workplace_close();
}

/* What Check has open is not the daemon's, and what the daemon shows is no check's result. */
static void keep_descriptors(void)
{
    ck_assert_ptr_nonnull(freopen("/dev/null", "w", stdout));
    for (int fd = STDERR_FILENO + 1; fd < 256; fd++)
        fcntl(fd, F_SETFD, FD_CLOEXEC);
}

/* Where the segments will stand in the workers, the supervisor may have nothing: then its own land there. */
static unsigned occupy_descriptors(int fds[SEGMENT_FD_FIRST + WORKERS])
{
    unsigned count = 0;
    do
        fds[count] = open("/dev/null", O_RDONLY | O_CLOEXEC);
    while (fds[count++] < SEGMENT_FD_FIRST + WORKERS);
    return count;
}

/* Runs the cast through a script, to its end. */
static enum status play(const char *script, const struct resume_point *resume)
{
    int fds[SEGMENT_FD_FIRST + WORKERS];
    keep_descriptors();
    unsigned occupied = strcmp(script, "free") == 0 ? occupy_descriptors(fds) : 0;
    unlink(story_path());
    setenv("SCRIPT", script, 1);
    enum status status = resume == NULL ? rundir_open(&dir, workplace.run_dir, &job, &error)
                                        : rundir_resume(&dir, workplace.run_dir, &job, &error);
    ck_assert_msg(status == STATUS_OK, "%s", error.text);
    ck_assert_int_eq(runlog_open(&runlog, dir.fd, dir.path, &job, &error), STATUS_OK);
    struct supervise_config config = {.job = &job, .dir = &dir, .log = runlog, .resume = resume};
    while (occupied > 0)
        close(fds[--occupied]);
    status = supervise(&config, &error);
    runlog_close(runlog);
    rundir_close(&dir);
    free(story);
    story = file_read(story_path());
    return status;
}

static void expect_good(const char *script, const struct resume_point *resume)
{
    enum status status = play(script, resume);
    ck_assert_msg(status == STATUS_OK, "%s; %s", error.text, story);
}

static const char *find(const char *line)
{
    const char *at = strstr(story, line);
    ck_assert_msg(at != NULL, "expected \"%s\" in: %s", line, story);
    return at;
}

static void expect_order(const char *first, const char *second)
{
    ck_assert_msg(find(first) < find(second), "expected \"%s\" before \"%s\" in: %s", first, second, story);
}

START_TEST(a_worker_dials_when_those_below_are_bound)
{
    expect_good(_i == 0 ? "" : "late", NULL);
    expect_order("pserver 0: ready\n", "pserver 1: connect\n");
    for (unsigned below = 0; below < 2; below++) {
        char line[32];
        snprintf(line, sizeof line, "pserver %u: ready\n", below);
        expect_order(line, "pserver 2: connect\n");
        expect_order(line, "trainer 3: connect\n");
        expect_order(line, "trainer 4: connect\n");
    }
    expect_order("pserver 2: ready\n", "trainer 3: connect\n");
    ck_assert_uint_eq(text_count(story, "connect\n"), WORKERS - 1);
    ck_assert_ptr_null(strstr(story, "pserver 0: connect"));
}
END_TEST

START_TEST(they_leave_in_waves)
{
    expect_good("", NULL);
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
    expect_good("", NULL);
    expect_order("pserver 0: logged 1\n", "pserver 0: logged 2\n");
    ck_assert_uint_eq(text_count(story, "logged"), 2);
    char *json = file_read(workplace.jsonl);
    ck_assert_uint_eq(text_count(json, "{\"update\":"), 2);
    ck_assert_uint_eq(text_count(json, "{\"epoch\":1,\"update\":2,"), 1);
    ck_assert_ptr_nonnull(strstr(json, "{\"event\":\"finished\",\"updates\":2,"));
    free(json);
}
END_TEST

/* All of them have the same empty, unsealed memory files in the same places, and nothing else. */
START_TEST(every_worker_has_every_segment)
{
    char line[256] = "";
    job.transport = _i == 1 ? JOB_TRANSPORT_INLINE : JOB_TRANSPORT_SHARED;
    expect_good(_i == 2 ? "free" : "", NULL);
    if (_i == 1) {
        ck_assert_uint_eq(text_count(story, ": holds 4:\n"), WORKERS);
        return;
    }
    const char *holds = find("pserver 0: holds 9:") + strlen("pserver 0");
    snprintf(line, sizeof line, "%.*s", (int)(strchr(holds, '\n') + 1 - holds), holds);
    ck_assert_uint_eq(text_count(story, line), WORKERS);
    ck_assert_uint_eq(text_count(line, "/0/0"), WORKERS);
    unsigned long inode[WORKERS];
    ck_assert_int_eq(sscanf(line, ": holds 9: %lu/0/0 %lu/0/0 %lu/0/0 %lu/0/0 %lu/0/0", &inode[0], &inode[1],
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
    struct resume_point point = {.checkpoint = "/some/where/00000002", .update = 2};
    expect_good("", NULL);
    snprintf(line, sizeof line, ": run %s/run resume \n", real);
    ck_assert_uint_eq(text_count(story, line), WORKERS);
    expect_good("", &point);
    snprintf(line, sizeof line, ": run %s/run resume /some/where/00000002\n", real);
    ck_assert_uint_eq(text_count(story, line), WORKERS);
    free(real);
}
END_TEST

/* The supervisor finds it out, and the updates of the log stay as they were. */
START_TEST(a_resumed_run_that_computes_something_else_ends)
{
    struct resume_point point = {0};
    expect_good("", NULL);
    ck_assert_int_eq(play("another loss", &point), STATUS_INTERNAL);
    ck_assert_ptr_nonnull(strstr(error.text, "update 1, computed again, is not what the log says: it is now "
                                             "\"loss\":3.5,"));
    char *json = file_read(workplace.jsonl);
    ck_assert_uint_eq(text_count(json, "{\"update\":"), 2);
    ck_assert_ptr_nonnull(strstr(json, "{\"event\":\"failed\""));
    free(json);
}
END_TEST

/* A worker's own status is the job's where it is the machine's or the data's fault; else it is ours. */
START_TEST(a_death_is_told_to_all_servers_and_ends_the_job)
{
    static const struct {
        enum status said, became;
        int code;
    } ends[] = {
        {STATUS_CORRUPT, STATUS_CORRUPT, 65},         {STATUS_NOT_FOUND, STATUS_NOT_FOUND, 66},
        {STATUS_UNAVAILABLE, STATUS_UNAVAILABLE, 69}, {STATUS_IO, STATUS_IO, 74},
        {STATUS_INVALID, STATUS_INTERNAL, 70},        {STATUS_INTERNAL, STATUS_INTERNAL, 70},
        {STATUS_PEER_DIED, STATUS_INTERNAL, 70},      {STATUS_PERMISSION, STATUS_INTERNAL, 70},
    };
    char script[32];
    snprintf(script, sizeof script, "status%d", ends[_i].said);
    enum status status = play(script, NULL);
    ck_assert_int_eq(status, ends[_i].became);
    ck_assert_int_eq(status_exit_code(status), ends[_i].code);
    ck_assert_ptr_nonnull(strstr(error.text, "trainer 4 (process "));
    ck_assert_ptr_nonnull(strstr(error.text, "exited with code 1: as the script says"));
    for (unsigned server = 0; server < SERVERS; server++) {
        char line[32];
        snprintf(line, sizeof line, "pserver %u: died 4\n", server);
        find(line);
    }
    ck_assert_uint_eq(text_count(story, "died"), SERVERS);
    ck_assert_uint_eq(text_count(story, "hurry\n"), WORKERS - 1);
}
END_TEST

/* Before it has met anybody, what a worker refuses is the job; also when its end took others along first. */
START_TEST(what_a_worker_cannot_open_is_a_bad_job)
{
    char script[32];
    snprintf(script, sizeof script, "unopened%d%s", STATUS_INVALID, _i == 0 ? "" : " later");
    ck_assert_int_eq(play(script, NULL), STATUS_INVALID);
    ck_assert_ptr_nonnull(strstr(error.text, "exited with code 1: as the script says"));
}
END_TEST

/* A server that fails says goodbye first; its peers may end before it does, but they are not the reason. */
START_TEST(the_cause_is_told_and_not_who_followed)
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
    ck_assert_int_eq(play(script, NULL), ends[_i].became);
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
    ck_assert_int_eq(play(liars[_i].script, NULL), STATUS_INTERNAL);
    ck_assert_msg(strncmp(error.text, liars[_i].who, strlen(liars[_i].who)) == 0, "%s", error.text);
    ck_assert_ptr_nonnull(strstr(error.text, "said something out of turn"));
    char *json = file_read(workplace.jsonl);
    ck_assert_uint_eq(text_count(json, "{\"update\":"), 0);
    free(json);
}
END_TEST

/* ---- a model-parallel job ---- */

START_TEST(the_first_trainer_leads)
{
    expect_good("", NULL);
    expect_order("trainer 3: logged 1\n", "trainer 3: logged 2\n");
    ck_assert_uint_eq(text_count(story, "logged"), 2);
    expect_order("trainer 3: exit\n", "pserver 2: exit\n");
    expect_order("pserver 1: exit\n", "pserver 0: exit\n");
    expect_good("drain", NULL);
    find("trainer 3: drain\n");
    ck_assert_uint_eq(text_count(story, "drain\n"), 1);
    char *json = file_read(workplace.jsonl);
    ck_assert_ptr_nonnull(strstr(json, "{\"event\":\"stopped\",\"updates\":0,"));
    free(json);
}
END_TEST

START_TEST(nobody_else_leads)
{
    ck_assert_int_eq(play("a record out of turn", NULL), STATUS_INTERNAL);
    ck_assert_msg(strncmp(error.text, "pserver 1 (process ", 19) == 0, "%s", error.text);
}
END_TEST

START_TEST(what_workers_hold_is_told_of_epochs_and_of_the_end)
{
    expect_good("holds", NULL);
    char *json = file_read(workplace.jsonl);
    ck_assert_ptr_nonnull(
        strstr(json, ",\"objects\":[1,1,1,1,1],\"references\":[0,1,2,3,4],\"users\":[0,0,0,0,0],"
                     "\"users_of\":[{},{},{},{},{}],\"contexts\":[7,7,7,7,7],\"pieces\":[0,0,0,0,0]}}\n"));
    ck_assert_ptr_nonnull(strstr(json, "{\"event\":\"finished\",\"updates\":2,\"objects\":0,\"references\":0,"
                                       "\"users\":0,\"contexts\":0,\"pieces\":0,"));
    free(json);
    expect_good("leaks", NULL);
    json = file_read(workplace.jsonl);
    ck_assert_ptr_nonnull(strstr(json, "{\"event\":\"finished\",\"updates\":2,\"objects\":1,\"references\":2,"
                                       "\"users\":3,\"contexts\":4,\"pieces\":5,"));
    free(json);
}
END_TEST

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "worker") == 0)
        act(argc, argv);
    Suite *suite = suite_create("supervise_cast");
    TCase *cast = tcase_create("cast");
    tcase_add_checked_fixture(cast, open_place, close_place);
    tcase_set_timeout(cast, 60);
    tcase_add_loop_test(cast, a_worker_dials_when_those_below_are_bound, 0, 2);
    tcase_add_test(cast, they_leave_in_waves);
    tcase_add_test(cast, what_server_0_reports_is_logged_and_acknowledged);
    tcase_add_loop_test(cast, every_worker_has_every_segment, 0, 3);
    tcase_add_test(cast, every_worker_is_told_where_the_run_is);
    tcase_add_test(cast, a_resumed_run_that_computes_something_else_ends);
    tcase_add_loop_test(cast, a_death_is_told_to_all_servers_and_ends_the_job, 0, 8);
    tcase_add_loop_test(cast, what_a_worker_cannot_open_is_a_bad_job, 0, 2);
    tcase_add_loop_test(cast, the_cause_is_told_and_not_who_followed, 0, 4);
    tcase_add_loop_test(cast, only_server_0_speaks_for_the_job, 0, 3);
    suite_add_tcase(suite, cast);
    TCase *parallel = tcase_create("model-parallel");
    tcase_add_checked_fixture(parallel, open_parallel_place, close_place);
    tcase_set_timeout(parallel, 60);
    tcase_add_test(parallel, the_first_trainer_leads);
    tcase_add_test(parallel, nobody_else_leads);
    tcase_add_test(parallel, what_workers_hold_is_told_of_epochs_and_of_the_end);
    suite_add_tcase(suite, parallel);
    return suite_run(suite);
}
