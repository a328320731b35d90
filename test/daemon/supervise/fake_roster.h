/* The workers of test/daemon/supervise/test_supervise_roster.c: the test program itself, which the supervisor
 * executes as its workers. Each worker plays the script that the environment variable SCRIPT names, and
 * writes every order that it receives to one common file, STORY. */
#ifndef TEST_DAEMON_SUPERVISE_FAKE_ROSTER_H
#define TEST_DAEMON_SUPERVISE_FAKE_ROSTER_H

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
    int story; /* STORY: one write per line, so that the lines are in the order of time */
    const char *script;
    struct control_message order;
} fake;

static inline const char *story_path(void)
{
    const char *path = getenv("STORY");
    return path != NULL ? path : "/dev/null";
}

static inline void story_add(const char *format, ...) __attribute__((format(printf, 1, 2)));

static inline void story_add(const char *format, ...)
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

static inline void send_report(enum control_kind kind, const void *body, size_t bytes)
{
    if (control_send(CONTROL_FD, kind, body, bytes) != STATUS_OK)
        _exit(98);
}

static inline _Noreturn void last_words(enum status status)
{
    struct error error = {.status = status, .text = "as the script says"};
    send_report(CONTROL_FAILED, &error, sizeof error);
    _exit(1);
}

static inline bool reports_holdings(void)
{
    return plays("holds") || plays("holds until killed") || plays("leaks");
}

/* In the scripts with holdings the last message before the exit reports what this worker still holds. */
static inline _Noreturn void leave_job(void)
{
    struct control_status status = {.worker = fake.self.worker};
    if (plays("leaks") && fake.self.worker == 1)
        status = (struct control_status){1, 1, 2, 3, 4, 5, {0}};
    if (plays("holds until killed"))
        raise(SIGKILL);
    if (reports_holdings())
        send_report(CONTROL_STATUS, &status, sizeof status);
    _exit(0);
}

/* Waits for an order of this kind, and writes every order to STORY. */
static inline void await_order(uint32_t kind)
{
    static const char *const names[CONTROL_KINDS] = {
        [CONTROL_CONNECT] = "connect", [CONTROL_DIED] = "died",   [CONTROL_SAVE] = "save",
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
            story_add("died %u", order->body.died.worker);
        else if (order->kind == CONTROL_LOGGED && order->body.logged.records > 0)
            story_add("logged %u", (unsigned)order->body.logged.records);
        else if (order->kind != CONTROL_START && order->kind != CONTROL_LOGGED)
            story_add("%s", names[order->kind]);
        if (order->kind == CONTROL_EXIT)
            leave_job();
    } while (fake.order.kind != kind || (kind == CONTROL_LOGGED && fake.order.body.logged.records == 0));
}

/* Writes to STORY how many descriptors are open, and which memory files are at those of the segments. */
static inline void story_add_descriptors(void)
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
    story_add("holds %u:%s", open_fds, text);
}

static inline void report_update(uint64_t number, uint32_t trainers, double loss)
{
    struct control_update update = {
        .update = number, .loss = loss, .samples = 4, .trainers = trainers, .losses = {loss, loss}};
    send_report(CONTROL_UPDATE, &update, sizeof update);
}

/* The lead's number: server 0, or the first trainer of a model-parallel job. */
static inline unsigned lead(void)
{
    return getenv("PARALLEL") != NULL ? SERVERS : 0;
}

/* Every worker holds as many references as its number. */
static inline void report_holdings(void)
{
    struct control_status status = {
        .worker = fake.self.worker, .objects = 1, .references = fake.self.worker, .contexts = 7};
    if (reports_holdings())
        send_report(CONTROL_STATUS, &status, sizeof status);
}

/* An operator asks for an end while the lead's line is full of records. The supervisor is stopped meanwhile,
 * so that it finds all of them at once. */
enum { FLOOD = 150 };
static inline void flood(void)
{
    const pid_t supervisor = getppid();
    kill(supervisor, SIGSTOP);
    for (uint64_t number = 1; number <= FLOOD; number++) {
        const struct control_episode record = {.episode = number};
        send_report(CONTROL_EPISODE, &record, control_episode_bytes(&record));
    }
    kill(supervisor, SIGTERM);
    kill(supervisor, SIGCONT);
}

/* An operator asks for an end. */
static inline void stop_job(void)
{
    struct control_finished finished = {.end = CONTROL_END_STOPPED};
    if (plays("flood"))
        flood();
    else
        kill(getppid(), SIGTERM);
    await_order(CONTROL_DRAIN);
    send_report(CONTROL_FINISHED, &finished, sizeof finished);
}

/* Waits until STORY has the word `count` times. Check's own functions may not be used in this process. */
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

/* The lead has asked the last worker what it holds, and reports it. */
static inline void end_epoch(const struct control_epoch *epoch)
{
    const struct control_status status = {
        .worker = WORKERS - 1, .objects = 2, .references = WORKERS - 1, .pieces = 5};
    if (plays("holds"))
        send_report(CONTROL_STATUS, &status, sizeof status);
    send_report(CONTROL_EPOCH, epoch, sizeof *epoch);
}

/* Lowers the supervisor's limit on open files until it cannot poll for its workers. */
static inline void break_poll(void)
{
    struct rlimit limit;
    prlimit(getppid(), RLIMIT_NOFILE, NULL, &limit);
    limit.rlim_cur = WORKERS;
    prlimit(getppid(), RLIMIT_NOFILE, &limit, NULL);
}

/* The lead's act once all workers are ready. */
static inline void train_job(void)
{
    struct control_epoch epoch = {.epoch = 1, .update = 2, .loss = 0.5};
    struct control_finished finished = {.end = CONTROL_END_FINISHED};
    if (plays("too many losses"))
        report_update(1, JOB_TRAINERS_MAX + 1, 1);
    for (uint64_t number = 1; number <= 2; number++) {
        report_update(number, TRAINERS, 1.0 / (double)number);
        await_order(CONTROL_LOGGED);
    }
    end_epoch(&epoch);
    send_report(CONTROL_FINISHED, &finished, sizeof finished);
}

/* A worker that others dial. */
static inline void be_bound(void)
{
    story_add("bound");
    send_report(CONTROL_BOUND, NULL, 0);
}

/* The holdings are reported before STORY says "there". */
static inline void report_holdings_and_ready(void)
{
    story_add("ready");
    send_report(CONTROL_READY, NULL, 0);
    report_holdings();
    story_add("there");
}

static inline void lead_the_job(void)
{
    await_word(": there\n", WORKERS);
    if (plays("no poll"))
        break_poll();
    if (plays("drain") || plays("flood"))
        stop_job();
    else if (strncmp(fake.script, "status", 6) != 0)
        train_job();
}

/* A server that starts late delays the workers that dial it. */
static inline void act_server(void)
{
    if (fake.self.worker == 0 || (fake.self.worker == 1 && plays("late")))
        sleep_ms(200);
    be_bound();
    report_holdings_and_ready();
    if (fake.self.worker == 1 && strstr(fake.script, "later") != NULL)
        last_words(STATUS_PEER_DIED);
    if (fake.self.worker == 1 && plays("a record out of turn"))
        report_update(1, TRAINERS, 1);
    if (fake.self.worker == 2 && plays("an end out of turn"))
        send_report(CONTROL_FINISHED, &(struct control_finished){0}, sizeof(struct control_finished));
    if (fake.self.worker != lead() || strstr(fake.script, "out of turn") != NULL ||
        strncmp(fake.script, "unopened", 8) == 0)
        await_order(CONTROL_EXIT);
    lead_the_job();
    const char *cause = strstr(fake.script, "because ");
    if (cause != NULL) {
        await_order(CONTROL_HURRY);
        last_words((enum status)atoi(cause + strlen("because ")));
    }
}

static inline void act_trainer(void)
{
    if (lead() != 0 && fake.self.worker < WORKERS - 1)
        be_bound();
    await_order(strstr(fake.script, " later") != NULL ? CONTROL_HURRY : CONTROL_CONNECT);
    if (fake.self.worker == WORKERS - 1)
        sleep_ms(100); /* the last one to become ready */
    if (fake.self.worker == WORKERS - 1 && strncmp(fake.script, "unopened", 8) == 0)
        last_words((enum status)atoi(fake.script + 8));
    report_holdings_and_ready();
    if (fake.self.worker == lead())
        lead_the_job();
    if (fake.self.worker == WORKERS - 1 && strncmp(fake.script, "status", 6) == 0) {
        sleep_ms(200);
        last_words((enum status)atoi(fake.script + 6));
    }
}

static inline _Noreturn void act_worker(int argc, char **argv)
{
    fake.script = getenv("SCRIPT");
    fake.story = open(story_path(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
    snprintf(fake.name, sizeof fake.name, "%s %s", argc == 6 ? argv[3] : "?", argc == 6 ? argv[5] : "?");
    await_order(CONTROL_START);
    fake.self = fake.order.body.start;
    story_add_descriptors();
    struct stat held = {0}, there = {0};
    const bool same = fstat(CONTROL_RUN_FD, &held) == 0 && stat(fake.self.run_dir, &there) == 0 &&
                      held.st_dev == there.st_dev && held.st_ino == there.st_ino;
    story_add("run %s%s resume %s", fake.self.run_dir, same ? "" : " is not held open", fake.self.resume);
    if (fake.self.worker < SERVERS)
        act_server();
    else
        act_trainer();
    await_order(CONTROL_EXIT);
    _exit(0);
}

#endif
