/* The supervisor's table, cell by cell: what each event does to a worker in each state. A job of one agent,
 * the lead, and two observers, which are replaceable. The workers are processes that wait to be killed; this
 * program is executed as their successors, and then exits at once. */
#include "daemon/run/resume.h"
#include "daemon/supervise/supervise.c" // NOLINT(bugprone-suspicious-include): the table is its own
#include "test/workplace.h"

#include <check.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { WORKERS = 3, LEAD = 0, OBSERVER = 1 };

static struct job job;
static struct rundir dir;
static struct supervise_config config;
static struct supervisor s;
static int lines[WORKERS]; /* the workers' ends of their control lines */

/* ---- a supervisor of workers that do nothing ---- */

static void open_child(struct child *child, uint16_t worker)
{
    int line[2];
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, line), 0);
    *child = (struct child){.start = {.worker = worker,
                                      .role = roster_role(&s.generation.roster, worker),
                                      .incarnation = 1,
                                      .generation = 1},
                            .state = CHILD_READY,
                            .fd = line[0],
                            .opened = true,
                            .connected = true,
                            .last_beat = monotime_now()};
    snprintf(child->name, sizeof child->name, "%s %u", worker == LEAD ? "agent" : "observer", worker);
    lines[worker] = line[1];
    child->pid = fork();
    if (child->pid == 0)
        for (;;)
            pause();
    ck_assert_int_gt(child->pid, 0);
}

static void open_supervisor(void)
{
    static const char text[] = "{\"kind\":\"reinforce\",\"device\":\"cpu\",\"observers\":{\"count\":2},"
                               "\"stop\":{\"episodes\":9}}";
    char *problems = NULL;
    struct error error;
    ck_assert_int_eq(job_parse(&job, text, strlen(text), "job", NULL, 0, &problems), STATUS_OK);
    ck_assert_int_eq(rundir_open(&dir, workplace.run_dir, &job, false, &error), STATUS_OK);
    config = (struct supervise_config){.job = &job, .dir = &dir, .job_path = "job"};
    const struct run_identity identity = resume_identity(&job);
    ck_assert_int_eq(runlog_open(&config.log, rundir_path(&dir), &job, &identity, &error), STATUS_OK);
    s = (struct supervisor){.config = &config, .signal_fd = -1};
    ck_assert_int_eq(generation_open(&s.generation, &job, &dir, config.log, &s.hosts, &error), STATUS_OK);
    ck_assert_uint_eq(s.generation.count, WORKERS);
    run_view_init(&s.view, &s.generation, true);
    for (unsigned i = 0; i < WORKERS; i++)
        open_child(&s.generation.children[i], (uint16_t)i);
}

static void close_supervisor(void)
{
    for (unsigned i = 0; i < WORKERS; i++) {
        struct child *child = &s.generation.children[i];
        if (child->pid > 0)
            kill(child->pid, SIGKILL);
        while (child->pid > 0 && waitpid(child->pid, NULL, 0) == child->pid)
            ;
        if (child->fd >= 0)
            close(child->fd);
        close(lines[i]);
    }
    generation_close(&s.generation);
    for (unsigned i = 0; i < WORKERS; i++)
        free(s.view.profiles[i]);
    runlog_close(config.log);
    rundir_close(&dir);
}

/* ---- what an event did ---- */

static const char *const state_names[CHILD_STATES] = {
    [CHILD_STARTING] = "starting", [CHILD_READY] = "ready",     [CHILD_LEAVING] = "leaving",
    [CHILD_KILLED] = "killed",     [CHILD_WAITING] = "waiting", [CHILD_GONE] = "gone"};

static void add(char text[160], const char *word)
{
    snprintf(text + strlen(text), 160 - strlen(text), " %s", word);
}

/* The orders that this worker was sent. */
static void add_orders(char text[160], unsigned worker)
{
    static const char *const orders[CONTROL_KINDS] = {[CONTROL_CONNECT] = "connect",
                                                      [CONTROL_DIED] = "told-of-death",
                                                      [CONTROL_LOGGED] = "logged",
                                                      [CONTROL_HURRY] = "hurry",
                                                      [CONTROL_EXIT] = "exit"};
    static struct control_message order;
    while (control_receive(lines[worker], false, &order) == STATUS_OK)
        add(text, orders[order.kind]);
}

/* The state, and everything that is not as it was. */
static void describe(char text[160], unsigned worker)
{
    const struct child *child = &s.generation.children[worker];
    snprintf(text, 160, "%s", state_names[child->state]);
    if (child->start.incarnation > 1)
        add(text, "incarnation-2");
    if (child->bound)
        add(text, "bound");
    if (child->opened)
        add(text, "opened");
    if (child->last_beat.ns > 1)
        add(text, "beat");
    if (child->last_words.status != STATUS_OK)
        add(text, "words");
    if (s.generation.holdings[worker].objects != 0)
        add(text, "holdings");
    if (s.view.profiles[worker] != NULL)
        add(text, "profile");
    if (child->replaced)
        add(text, "replaced");
    if (child->deaths > 0)
        add(text, "death");
    if (s.generation.next.is_planned)
        add(text, "regeneration");
    if (s.generation.end.finished)
        add(text, "finished");
    if (s.generation.end.outcome.status != STATUS_OK)
        add(text, "failed");
    add_orders(text, worker);
}

/* Puts one worker into the state, as if it had just come there. */
static void put(struct child *child, enum child_state state)
{
    child->state = state;
    child->opened = false;
    child->last_beat = (struct monotime){1};
    if (state == CHILD_STARTING)
        child->connected = false;
    if (state == CHILD_KILLED)
        kill(child->pid, SIGKILL);
    if (state == CHILD_WAITING)
        snprintf(child->reason, sizeof child->reason, "the test says so");
    if (state >= CHILD_WAITING) {
        kill(child->pid, SIGKILL);
        ck_assert_int_eq(waitpid(child->pid, NULL, 0), child->pid);
        close(child->fd);
        child->pid = 0;
        child->fd = -1;
    }
}

/* What the supervisor reads off the line: a good message of that kind. */
static const struct control_message *message_of(unsigned event, unsigned worker)
{
    static struct control_message message;
    if (event >= CONTROL_KINDS)
        return NULL;
    message = (struct control_message){.kind = event};
    if (event == CONTROL_EPISODE)
        message.body.episode.episode = 1;
    if (event == CONTROL_UPDATE)
        message.body.update.update = 1;
    if (event == CONTROL_EPOCH)
        message.body.epoch = (struct control_epoch){.epoch = 1, .update = 1};
    if (event == CONTROL_STATUS) {
        message.body.status.worker = worker;
        message.body.status.objects = 1;
    }
    if (event == CONTROL_FAILED)
        message.body.failed = (struct error){.status = STATUS_INTERNAL, .text = "last words"};
    return &message;
}

/* ---- the walk ---- */

static const char *const event_names[EVENTS] = {
    [CONTROL_START] = "START",       [CONTROL_CONNECT] = "CONNECT",
    [CONTROL_DIED] = "DIED",         [CONTROL_LOGGED] = "LOGGED",
    [CONTROL_DRAIN] = "DRAIN",       [CONTROL_HURRY] = "HURRY",
    [CONTROL_EXIT] = "EXIT",         [CONTROL_BOUND] = "BOUND",
    [CONTROL_READY] = "READY",       [CONTROL_BEAT] = "BEAT",
    [CONTROL_EPISODE] = "EPISODE",   [CONTROL_UPDATE] = "UPDATE",
    [CONTROL_EPOCH] = "EPOCH",       [CONTROL_STATUS] = "STATUS",
    [CONTROL_FINISHED] = "FINISHED", [CONTROL_FAILED] = "FAILED",
    [CONTROL_FAR] = "FAR",           [CONTROL_PLACED] = "PLACED",
    [CONTROL_LINK] = "LINK",         [CONTROL_RELAY] = "RELAY",
    [CONTROL_JOIN] = "JOIN",         [CONTROL_ADMIT] = "ADMIT",
    [CONTROL_REFUSE] = "REFUSE",     [CONTROL_KILL] = "KILL",
    [CONTROL_EXITED] = "EXITED",     [CONTROL_DEPART] = "DEPART",
    [CONTROL_OVER] = "OVER",         [CONTROL_PROFILE] = "PROFILE",
    [CONTROL_SAVE] = "SAVE",         [CONTROL_SAVED] = "SAVED",
    [EVENT_SILENT] = "silent",       [EVENT_LATE] = "late",
    [EVENT_EXITED] = "exited",       [EVENT_DUE] = "due"};

/* NULL: nothing happens. An observer that must die is replaced; an order's kind is no message of a worker. */
#define DIES "killed replaced death"
static const char *const of_observer[EVENTS][CHILD_STATES] = {
    [CONTROL_START] = {DIES, DIES, DIES},
    [CONTROL_CONNECT] = {DIES, DIES, DIES},
    [CONTROL_DIED] = {DIES, DIES, DIES},
    [CONTROL_LOGGED] = {DIES, DIES, DIES},
    [CONTROL_DRAIN] = {DIES, DIES, DIES},
    [CONTROL_HURRY] = {DIES, DIES, DIES},
    [CONTROL_EXIT] = {DIES, DIES, DIES},
    [CONTROL_BOUND] = {"starting bound", DIES, NULL},
    [CONTROL_READY] = {"ready opened", DIES, "leaving opened"},
    [CONTROL_BEAT] = {"starting beat", "ready beat", "leaving beat"},
    [CONTROL_EPISODE] = {DIES, DIES, NULL},
    [CONTROL_UPDATE] = {DIES, DIES, NULL},
    [CONTROL_EPOCH] = {DIES, DIES, NULL},
    [CONTROL_STATUS] = {DIES, "ready holdings", "leaving holdings"},
    [CONTROL_FINISHED] = {DIES, DIES, NULL},
    [CONTROL_FAILED] = {"starting words", "ready words", "leaving words"},
    [CONTROL_FAR] = {DIES, DIES, DIES},
    [CONTROL_PLACED] = {DIES, DIES, DIES},
    [CONTROL_LINK] = {DIES, DIES, DIES},
    [CONTROL_RELAY] = {DIES, DIES, DIES},
    [CONTROL_JOIN] = {DIES, DIES, DIES},
    [CONTROL_ADMIT] = {DIES, DIES, DIES},
    [CONTROL_REFUSE] = {DIES, DIES, DIES},
    [CONTROL_KILL] = {DIES, DIES, DIES},
    [CONTROL_EXITED] = {DIES, DIES, DIES},
    [CONTROL_DEPART] = {DIES, DIES, DIES},
    [CONTROL_OVER] = {DIES, DIES, DIES},
    [CONTROL_PROFILE] = {"starting profile", "ready profile", "leaving profile"},
    [CONTROL_SAVE] = {DIES, DIES, DIES},
    [CONTROL_SAVED] = {DIES, DIES, DIES},
    [EVENT_SILENT] = {DIES, DIES, DIES},
    [EVENT_LATE] = {"killed", "killed", "killed"},
    [EVENT_EXITED] = {"waiting replaced death", "waiting replaced death", "gone", "gone"},
    [EVENT_DUE] = {NULL, NULL, NULL, NULL, "starting incarnation-2 beat"},
};

/* The lead's death begins the next generation. */
#define ENDS "killed death regeneration"
static const char *const of_lead[EVENTS][CHILD_STATES] = {
    [CONTROL_START] = {ENDS, ENDS, ENDS},
    [CONTROL_CONNECT] = {ENDS, ENDS, ENDS},
    [CONTROL_DIED] = {ENDS, ENDS, ENDS},
    [CONTROL_LOGGED] = {ENDS, ENDS, ENDS},
    [CONTROL_DRAIN] = {ENDS, ENDS, ENDS},
    [CONTROL_HURRY] = {ENDS, ENDS, ENDS},
    [CONTROL_EXIT] = {ENDS, ENDS, ENDS},
    [CONTROL_BOUND] = {"starting bound", ENDS, NULL},
    [CONTROL_READY] = {"ready opened", ENDS, "leaving opened"},
    [CONTROL_BEAT] = {"starting beat", "ready beat", "leaving beat"},
    [CONTROL_EPISODE] = {ENDS, "ready logged", NULL},
    [CONTROL_UPDATE] = {ENDS, "ready logged", NULL},
    [CONTROL_EPOCH] = {ENDS, "ready logged", NULL},
    [CONTROL_STATUS] = {ENDS, "ready holdings", "leaving holdings"},
    [CONTROL_FINISHED] = {ENDS, "ready finished", NULL},
    [CONTROL_FAILED] = {"starting words", "ready words", "leaving words"},
    [CONTROL_FAR] = {ENDS, ENDS, ENDS},
    [CONTROL_PLACED] = {ENDS, ENDS, ENDS},
    [CONTROL_LINK] = {ENDS, ENDS, ENDS},
    [CONTROL_RELAY] = {ENDS, ENDS, ENDS},
    [CONTROL_JOIN] = {ENDS, ENDS, ENDS},
    [CONTROL_ADMIT] = {ENDS, ENDS, ENDS},
    [CONTROL_REFUSE] = {ENDS, ENDS, ENDS},
    [CONTROL_KILL] = {ENDS, ENDS, ENDS},
    [CONTROL_EXITED] = {ENDS, ENDS, ENDS},
    [CONTROL_DEPART] = {ENDS, ENDS, ENDS},
    [CONTROL_OVER] = {ENDS, ENDS, ENDS},
    [CONTROL_PROFILE] = {"starting profile", "ready profile", "leaving profile"},
    [CONTROL_SAVE] = {ENDS, ENDS, ENDS},
    [CONTROL_SAVED] = {ENDS, "ready logged", "leaving logged"},
    [EVENT_SILENT] = {ENDS, ENDS, ENDS},
    [EVENT_LATE] = {"killed", "killed", "killed"},
    [EVENT_EXITED] = {"gone death regeneration", "gone death regeneration", "gone", "gone"},
    [EVENT_DUE] = {NULL, NULL, NULL, NULL, "gone regeneration"},
};

static void walk(const char *const expected[EVENTS][CHILD_STATES], unsigned worker, unsigned event)
{
    for (unsigned state = 0; state < CHILD_STATES; state++) {
        char was[160], is[160];
        open_supervisor();
        put(&s.generation.children[worker], (enum child_state)state);
        describe(was, worker);
        react(&s, &s.generation.children[worker], event, message_of(event, worker));
        describe(is, worker);
        const char *wanted = expected[event][state] != NULL ? expected[event][state] : was;
        ck_assert_msg(strcmp(is, wanted) == 0, "%s, %s: expected \"%s\", got \"%s\"", event_names[event],
                      state_names[state], wanted, is);
        close_supervisor();
    }
}

START_TEST(each_cell_of_an_observer)
{
    walk(of_observer, OBSERVER, (unsigned)_i);
}
END_TEST

START_TEST(each_cell_of_the_lead)
{
    walk(of_lead, LEAD, (unsigned)_i);
}
END_TEST

/* ---- what the walk's states leave out ---- */

/* What follows was decided when the worker was killed. */
START_TEST(a_killed_worker_is_replaced_once_it_is_reaped)
{
    char text[160];
    open_supervisor();
    react(&s, &s.generation.children[OBSERVER], EVENT_SILENT, NULL);
    add_orders(text, LEAD);
    ck_assert(child_reap(&s.generation.children[OBSERVER], true));
    react(&s, &s.generation.children[OBSERVER], EVENT_EXITED, NULL);
    describe(text, OBSERVER);
    ck_assert_str_eq(text, "waiting opened beat replaced death");
    describe(text, LEAD);
    ck_assert_str_eq(text, "ready opened beat told-of-death");
    close_supervisor();
}
END_TEST

/* All workers are killed, also one that waits for its successor; the job's end forgets both. */
START_TEST(a_generation_ends_all_workers)
{
    open_supervisor();
    put(&s.generation.children[2], CHILD_WAITING);
    react(&s, &s.generation.children[LEAD], EVENT_SILENT, NULL);
    ck_assert(s.generation.next.is_planned);
    ck_assert_int_eq(s.generation.children[LEAD].state, CHILD_KILLED);
    ck_assert_int_eq(s.generation.children[OBSERVER].state, CHILD_KILLED);
    ck_assert_int_eq(s.generation.children[2].state, CHILD_GONE);
    generation_leave(&s.generation);
    ck_assert(!s.generation.next.is_planned);
    close_supervisor();
}
END_TEST

START_TEST(a_death_after_the_end_of_the_job_is_no_failure)
{
    open_supervisor();
    react(&s, &s.generation.children[LEAD], CONTROL_FINISHED, message_of(CONTROL_FINISHED, LEAD));
    ck_assert_int_eq(s.generation.children[OBSERVER].state, CHILD_LEAVING);
    ck_assert_int_eq(s.generation.children[LEAD].state, CHILD_READY);
    react(&s, &s.generation.children[LEAD], EVENT_SILENT, NULL);
    react(&s, &s.generation.children[OBSERVER], EVENT_SILENT, NULL);
    ck_assert_int_eq(s.generation.end.outcome.status, STATUS_OK);
    close_supervisor();
}
END_TEST

static const struct {
    enum status words;
    enum status outcome; /* of a worker that has opened */
} failures[] = {
    {STATUS_UNAVAILABLE, STATUS_UNAVAILABLE},
    {STATUS_IO, STATUS_IO},
    {STATUS_CORRUPT, STATUS_CORRUPT},
    {STATUS_NOT_FOUND, STATUS_NOT_FOUND},
    {STATUS_PERMISSION, STATUS_PERMISSION},
    {STATUS_INVALID, STATUS_OK},
    {STATUS_PEER_DIED, STATUS_OK},
    {STATUS_INTERNAL, STATUS_OK},
    {STATUS_NO_MEMORY, STATUS_OK},
};

/* A failure that would come again ends the job at once; STATUS_OK: the worker is replaced. */
START_TEST(last_words_decide)
{
    struct control_message message = {.kind = CONTROL_FAILED,
                                      .body.failed = {.status = failures[_i].words, .text = "words"}};
    open_supervisor();
    react(&s, &s.generation.children[OBSERVER], CONTROL_FAILED, &message);
    react(&s, &s.generation.children[OBSERVER], EVENT_EXITED, NULL);
    ck_assert_int_eq(s.generation.end.outcome.status, failures[_i].outcome);
    ck_assert_int_eq(s.generation.children[OBSERVER].state,
                     failures[_i].outcome == STATUS_OK ? CHILD_WAITING : CHILD_GONE);
    close_supervisor();
}
END_TEST

/* The lead fails because a peer did, and is reaped first. */
static void lose_lead_to_a_peer(void)
{
    struct control_message message = {.kind = CONTROL_FAILED, .body.failed = {.status = STATUS_PEER_DIED}};
    open_supervisor();
    react(&s, &s.generation.children[LEAD], CONTROL_FAILED, &message);
    react(&s, &s.generation.children[LEAD], EVENT_EXITED, NULL);
    ck_assert_int_eq(s.generation.children[LEAD].state, CHILD_WAITING);
    ck_assert_int_eq(s.generation.end.outcome.status, STATUS_OK);
}

/* A cause that would come again ends the job. */
START_TEST(a_follow_on_failure_waits_for_its_cause)
{
    struct control_message message = {.kind = CONTROL_FAILED, .body.failed = {.status = STATUS_IO}};
    lose_lead_to_a_peer();
    ck_assert_int_eq(s.generation.children[OBSERVER].state, CHILD_READY);
    react(&s, &s.generation.children[OBSERVER], CONTROL_FAILED, &message);
    react(&s, &s.generation.children[OBSERVER], EVENT_EXITED, NULL);
    ck_assert_int_eq(s.generation.end.outcome.status, STATUS_IO);
    ck_assert_int_eq(s.generation.children[LEAD].state, CHILD_GONE);
    close_supervisor();
}
END_TEST

START_TEST(a_job_stops_while_a_follow_on_failure_waits)
{
    lose_lead_to_a_peer();
    s.generation.end.stops = 1;
    react(&s, &s.generation.children[LEAD], EVENT_DUE, NULL);
    ck_assert(!s.generation.next.is_planned);
    ck_assert_int_eq(s.generation.end.outcome.status, STATUS_OK);
    ck_assert_int_eq(s.generation.children[LEAD].state, CHILD_GONE);
    ck_assert_int_eq(s.generation.children[OBSERVER].state, CHILD_LEAVING);
    close_supervisor();
}
END_TEST

/* The delays of one worker's restarts, and the end of its row of deaths. */
START_TEST(deaths_without_progress_come_later_and_end)
{
    static const uint64_t delays_ms[] = {0, 500, 1000, 2000};
    struct child *child;
    open_supervisor();
    child = &s.generation.children[OBSERVER];
    for (unsigned i = 0; i < 4; i++) {
        const struct monotime before = monotime_now();
        lose(&s, child, STATUS_INTERNAL, "a death");
        ck_assert(!monotime_before(child->restart_at, monotime_add_us(before, delays_ms[i] * 1000)));
        ck_assert(!monotime_before(monotime_add_us(monotime_now(), delays_ms[i] * 1000), child->restart_at));
        ck_assert_int_eq(s.generation.end.outcome.status, STATUS_OK);
    }
    lose(&s, child, STATUS_INTERNAL, "a death");
    ck_assert_int_eq(s.generation.end.outcome.status, STATUS_INTERNAL);
    ck_assert_str_eq(s.generation.end.outcome.text,
                     "observer 1 died 5 times in a row without an episode or update between: a death");
    close_supervisor();
}
END_TEST

START_TEST(an_episode_ends_the_row_of_deaths)
{
    open_supervisor();
    for (unsigned i = 0; i < 4; i++)
        lose(&s, &s.generation.children[OBSERVER], STATUS_INTERNAL, "a death");
    react(&s, &s.generation.children[LEAD], CONTROL_EPISODE, message_of(CONTROL_EPISODE, LEAD));
    ck_assert_uint_eq(s.generation.children[OBSERVER].deaths, 0);
    lose(&s, &s.generation.children[OBSERVER], STATUS_INTERNAL, "a death");
    react(&s, &s.generation.children[LEAD], CONTROL_EPISODE,
          message_of(CONTROL_EPISODE, LEAD)); /* no new one */
    ck_assert_uint_eq(s.generation.children[OBSERVER].deaths, 0);
    close_supervisor();
}
END_TEST

/* Generations that compute the same episodes again end too, and an episode that is new ends their row. */
START_TEST(generations_without_anything_new_end)
{
    const struct control_message *episode = message_of(CONTROL_EPISODE, LEAD);
    open_supervisor();
    react(&s, &s.generation.children[LEAD], CONTROL_EPISODE, episode);
    for (unsigned i = 0; i < 20; i++) {
        lose(&s, &s.generation.children[LEAD], STATUS_INTERNAL, "a death");
        note_progress(&s, episode);
        ck_assert_int_eq(s.generation.end.outcome.status, STATUS_OK);
    }
    if (_i == 0) {
        lose(&s, &s.generation.children[LEAD], STATUS_INTERNAL, "a death");
        ck_assert_str_eq(s.generation.end.outcome.text,
                         "20 generations in a row brought no episode or update that is new: a death");
    } else {
        struct control_message next = *episode;
        next.body.episode.episode = 2;
        note_progress(&s, &next);
        lose(&s, &s.generation.children[LEAD], STATUS_INTERNAL, "a death");
        ck_assert_int_eq(s.generation.end.outcome.status, STATUS_OK);
        ck_assert_uint_eq(s.tally.fruitless, 1);
    }
    close_supervisor();
}
END_TEST

static unsigned forks_to_failure; /* 0: none fails */

/* The C library's, but one fails. */
pid_t fork(void)
{
    pid_t (*next)(void);
    *(void **)&next = dlsym(RTLD_NEXT, "fork");
    if (forks_to_failure == 0 || --forks_to_failure > 0)
        return next();
    errno = EAGAIN;
    return -1;
}

static void reap_all(void)
{
    for (unsigned i = 0; i < WORKERS; i++)
        if (s.generation.children[i].state == CHILD_KILLED && child_reap(&s.generation.children[i], true))
            react(&s, &s.generation.children[i], EVENT_EXITED, NULL);
}

/* The machine has no room for a process when a generation starts: the workers that are there already end, and
 * another generation follows. */
START_TEST(a_generation_whose_fork_fails_is_tried_again)
{
    open_supervisor();
    lose(&s, &s.generation.children[LEAD], STATUS_INTERNAL, "a death");
    reap_all();
    forks_to_failure = (unsigned)_i;
    start_planned_generation(&s, monotime_now());
    ck_assert_int_eq(s.generation.end.outcome.status, STATUS_OK);
    ck_assert(s.generation.next.is_planned);
    ck_assert_ptr_nonnull(strstr(s.generation.next.reason, "cannot fork "));
    reap_all();
    const struct monotime due = start_planned_generation(&s, monotime_now());
    ck_assert(monotime_before(monotime_now(), due));
    start_planned_generation(&s, due);
    ck_assert_uint_eq(s.generation.number, 3);
    for (unsigned i = 0; i < WORKERS; i++)
        ck_assert_int_eq(s.generation.children[i].state, CHILD_STARTING);
    close_supervisor();
}
END_TEST

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "worker") == 0)
        return 0;
    Suite *suite = suite_create("supervise_table");
    TCase *tests = tcase_create("table");
    tcase_add_checked_fixture(tests, workplace_open, workplace_close);
    tcase_add_loop_test(tests, each_cell_of_an_observer, CONTROL_START, EVENTS);
    tcase_add_loop_test(tests, each_cell_of_the_lead, CONTROL_START, EVENTS);
    tcase_add_test(tests, a_killed_worker_is_replaced_once_it_is_reaped);
    tcase_add_test(tests, a_generation_ends_all_workers);
    tcase_add_test(tests, a_death_after_the_end_of_the_job_is_no_failure);
    tcase_add_loop_test(tests, last_words_decide, 0, sizeof failures / sizeof failures[0]);
    tcase_add_test(tests, a_follow_on_failure_waits_for_its_cause);
    tcase_add_test(tests, a_job_stops_while_a_follow_on_failure_waits);
    tcase_add_test(tests, deaths_without_progress_come_later_and_end);
    tcase_add_test(tests, an_episode_ends_the_row_of_deaths);
    tcase_add_loop_test(tests, generations_without_anything_new_end, 0, 2);
    tcase_add_loop_test(tests, a_generation_whose_fork_fails_is_tried_again, 1, WORKERS + 1);
    suite_add_tcase(suite, tests);
    return suite_run(suite);
}
