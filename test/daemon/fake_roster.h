/* The workers of the tests of a supervisor's roster: the test program itself, which the supervisor executes
 * anew. Each follows the script that SCRIPT in its environment names, and tells in one common file, STORY,
 * what it is told. For test/daemon/test_supervise_roster.c. */
#ifndef TEST_DAEMON_FAKE_ROSTER_H
#define TEST_DAEMON_FAKE_ROSTER_H

#include "test/process.h"
#include "test/workplace.h"
#include "worker/net/segment.h"
#include "worker/worker.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

enum { SERVERS = 3, TRAINERS = 2, WORKERS = SERVERS + TRAINERS };

static struct {
    struct control_start self;
    char name[32];
    int story; /* the common file: one write a line, so that its order is that of time */
    const char *script;
    struct control_message order;
} fake;

static inline const char *story_path(void)
{
    const char *path = getenv("STORY");
    return path != NULL ? path : "/dev/null";
}

static inline void tell(const char *format, ...) __attribute__((format(printf, 1, 2)));

static inline void tell(const char *format, ...)
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

static inline bool plays(const char *script)
{
    return strcmp(fake.script, script) == 0;
}

static inline void say(enum control_kind kind, const void *body, size_t bytes)
{
    if (control_send(CONTROL_FD, kind, body, bytes) != STATUS_OK)
        _exit(98);
}

static inline _Noreturn void last_words(enum status status)
{
    struct error error = {.status = status, .text = "as the script says"};
    say(CONTROL_FAILED, &error, sizeof error);
    _exit(1);
}

/* What this worker still holds is its last word, where the script has it hold anything. */
static inline _Noreturn void leave(void)
{
    struct control_status status = {0};
    if (plays("leaks") && fake.self.worker == 1)
        status = (struct control_status){1, 2, 3, 4, 5, {0}};
    if (plays("holds") || plays("leaks"))
        say(CONTROL_STATUS, &status, sizeof status);
    _exit(0);
}

/* Waits for an order of this kind; what else comes is told. */
static inline void await(uint32_t kind)
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
static inline void tell_descriptors(void)
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

static inline void report_update(uint64_t number, uint32_t trainers, double loss)
{
    struct control_update update = {
        .update = number, .loss = loss, .samples = 4, .trainers = trainers, .losses = {loss, loss}};
    say(CONTROL_UPDATE, &update, sizeof update);
}

/* Who speaks for the job: server 0, or the first trainer of a model-parallel one. */
static inline unsigned lead(void)
{
    return getenv("PARALLEL") != NULL ? SERVERS : 0;
}

/* Every worker holds as much as its number says, and a death on the way takes its own with it. */
static inline void tell_holdings(void)
{
    struct control_status status = {.objects = 1, .references = fake.self.worker, .contexts = 7};
    if (plays("holds") || plays("leaks"))
        say(CONTROL_STATUS, &status, sizeof status);
}

/* An operator asks for an end while the line is full of records, all of which the supervisor finds at once.
 */
enum { FLOOD = 150 };
static inline void flood(void)
{
    const pid_t supervisor = getppid();
    kill(supervisor, SIGSTOP);
    for (uint64_t number = 1; number <= FLOOD; number++)
        say(CONTROL_EPISODE, &(struct control_episode){.episode = number}, sizeof(struct control_episode));
    kill(supervisor, SIGTERM);
    kill(supervisor, SIGCONT);
}

/* An operator asks for an end. */
static inline void stop(void)
{
    struct control_finished finished = {.end = CONTROL_END_STOPPED};
    if (plays("flood"))
        flood();
    else
        kill(getppid(), SIGTERM);
    await(CONTROL_DRAIN);
    say(CONTROL_FINISHED, &finished, sizeof finished);
}

/* Until so many workers have told this; the checks' own helpers may not be used in this process. */
static inline void await_word(const char *word, unsigned count)
{
    for (;;) {
        static char text[65536];
        int fd = open(story_path(), O_RDONLY | O_CLOEXEC);
        ssize_t bytes = read(fd, text, sizeof text - 1);
        close(fd);
        text[bytes > 0 ? bytes : 0] = '\0';
        if (text_count(text, word) >= count)
            return;
        sleep_ms(5);
    }
}

/* The supervisor sleeps while the last worker says that it holds other things, and the lead that an epoch has
 * ended: of both, which it then finds, it hears the lead first. */
static inline void end_epoch(const struct control_epoch *epoch)
{
    const pid_t supervisor = getppid();
    if (plays("holds")) {
        kill(supervisor, SIGSTOP);
        tell("asks");
        await_word(": told\n", 1);
    }
    say(CONTROL_EPOCH, epoch, sizeof *epoch);
    kill(supervisor, SIGCONT);
}

static inline void tell_when_asked(void)
{
    const struct control_status status = {.objects = 2, .references = fake.self.worker, .pieces = 5};
    await_word(": asks\n", 1);
    say(CONTROL_STATUS, &status, sizeof status);
    tell("told");
}

/* Lets the supervisor have too few descriptors to poll for its workers. */
static inline void break_poll(void)
{
    struct rlimit limit;
    prlimit(getppid(), RLIMIT_NOFILE, NULL, &limit);
    limit.rlim_cur = WORKERS;
    prlimit(getppid(), RLIMIT_NOFILE, &limit, NULL);
}

/* The lead's part, once all are there. */
static inline void train(void)
{
    struct control_epoch epoch = {.epoch = 1, .update = 2, .loss = 0.5};
    struct control_finished finished = {.end = CONTROL_END_FINISHED};
    if (plays("too many losses"))
        report_update(1, JOB_TRAINERS_MAX + 1, 1);
    for (uint64_t number = 1; number <= 2; number++) {
        report_update(number, TRAINERS, plays("another loss") ? 3.5 : 1.0 / (double)number);
        await(CONTROL_LOGGED);
    }
    end_epoch(&epoch);
    say(CONTROL_FINISHED, &finished, sizeof finished);
}

/* A worker that others dial. */
static inline void be_bound(void)
{
    tell("bound");
    say(CONTROL_BOUND, NULL, 0);
}

/* What it holds has been said when the common file says so. */
static inline void tell_holdings_and_be_ready(void)
{
    tell("ready");
    say(CONTROL_READY, NULL, 0);
    tell_holdings();
    tell("there");
}

static inline void lead_the_job(void)
{
    await_word(": there\n", WORKERS);
    if (plays("no poll"))
        break_poll();
    if (plays("drain") || plays("flood"))
        stop();
    else if (strncmp(fake.script, "status", 6) != 0)
        train();
}

/* A server that starts late keeps waiting who dials it. */
static inline void act_server(void)
{
    if (fake.self.worker == 0 || (fake.self.worker == 1 && plays("late")))
        sleep_ms(200);
    be_bound();
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

static inline void act_trainer(void)
{
    if (lead() != 0 && fake.self.worker < WORKERS - 1)
        be_bound();
    await(strstr(fake.script, " later") != NULL ? CONTROL_HURRY : CONTROL_CONNECT);
    if (fake.self.worker == WORKERS - 1)
        sleep_ms(100); /* the last one in everybody's eyes */
    if (fake.self.worker == WORKERS - 1 && strncmp(fake.script, "unopened", 8) == 0)
        last_words((enum status)atoi(fake.script + 8));
    tell_holdings_and_be_ready();
    if (fake.self.worker == lead())
        lead_the_job();
    if (fake.self.worker == WORKERS - 1 && plays("holds"))
        tell_when_asked();
    if (fake.self.worker == WORKERS - 1 && strncmp(fake.script, "status", 6) == 0) {
        sleep_ms(200);
        last_words((enum status)atoi(fake.script + 6));
    }
}

static inline _Noreturn void act(int argc, char **argv)
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

#endif
