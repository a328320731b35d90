/* Formats a run's lines, and writes them to its two logs and to stdout. Supervisor process; its only thread.
 */
#include "daemon/log/runlog.h"

#include "daemon/log/log_file.h"
#include "daemon/log/progress.h"
#include "daemon/log/tensorboard.h"
#include "kernels/base/log.h"
#include "kernels/base/monotime.h"
#include "kernels/base/text.h"
#include "worker/job/job_table.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <poll.h>
#include <sodium.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

/* Clears a terminal's line. */
#define LINE_CLEAR "\r\033[K"

/* The last member of every object of episodes.jsonl begins like this. It holds the time of day. */
#define LINE_TIMING ",\"timing\":{"

/* The episode, update or epoch of a line of either log that is read back, by its own number. */
enum line_kind { LINE_OTHER, LINE_EPISODE, LINE_UPDATE, LINE_EPOCH, LINE_KINDS };
struct line_key {
    enum line_kind kind;
    uint64_t number;
};

struct line {
    char text[RUNLOG_LINE_BYTES];
    size_t length; /* strlen(text) */
};

struct runlog {
    const char *path;
    const struct job *job;
    struct run_identity identity;
    bool knows_id; /* the log has named the run's id */
    struct log_file *files[RUN_LOGS];
    struct line text, json; /* for each file the line that is being written; empty between lines */
    bool terminal;          /* stdout is a terminal */
    bool silent;            /* stdout is gone */
    bool is_drawn;          /* a progress line stands on the terminal */
    bool is_stale;          /* the progress has changed since the line was drawn */
    struct monotime redraw_due, begin;
    struct progress progress;
    char tail[RUNLOG_TAIL_LINES][RUNLOG_TAIL_BYTES]; /* a ring */
    uint64_t tail_count;
    uint64_t cut[RUN_LOGS][LINE_KINDS]; /* the highest number of each kind that was cut off the log */
    uint64_t count;                     /* the newest episode or update */
    double running_reward;              /* after the last episode */
    struct tensorboard *board;
    struct run_use use;
    void (*listener)(void *arg, const char *line, size_t length); /* NULL: none */
    void *listener_arg;
};

/* ---- members of a JSON object ---- */

static void line_add(struct line *line, const char *format, ...) __attribute__((format(printf, 2, 3)));

static void line_add(struct line *line, const char *format, ...)
{
    const size_t room = sizeof line->text - line->length;
    va_list list;
    va_start(list, format);
    const int length = vsnprintf(line->text + line->length, room, format, list);
    va_end(list);
    assert(length >= 0 && (size_t)length < room);
    line->length += (size_t)length;
}

/* Adds `"key":`, behind a comma if the object has a member already. */
static void add_key(struct line *line, const char *key)
{
    const bool is_first = line->text[line->length - 1] == '{';
    line_add(line, is_first ? "\"%s\":" : ",\"%s\":", key);
}

/* A number with all its digits. JSON has no NaN and no infinity. */
static void add_number(struct line *line, const char *key, double value)
{
    add_key(line, key);
    line_add(line, isfinite(value) ? "%.17g" : "null", value);
}

static void add_fixed(struct line *line, const char *key, double value, int decimals)
{
    add_key(line, key);
    if (isfinite(value))
        line_add(line, "%.*f", decimals, value);
    else
        line_add(line, "null");
}

static void add_count(struct line *line, const char *key, uint64_t count)
{
    add_key(line, key);
    line_add(line, "%" PRIu64, count);
}

/* A JSON string of a text of `bytes` at most, which may be anything: a reason may quote a worker's last
 * words, and a plug-in names its metrics. */
static void add_string(struct line *line, const char *text, size_t bytes)
{
    char shown[2 * ERROR_TEXT_BYTES], piece[TEXT_ESCAPED_BYTES];
    text_show(shown, sizeof shown, text, strnlen(text, bytes), ERROR_TEXT_BYTES);
    line_add(line, "\"");
    for (const char *at = shown; *at != '\0'; at++)
        line_add(line, "%s", text_escape(piece, *at));
    line_add(line, "\"");
}

static double per_second(uint64_t count, double seconds)
{
    return seconds > 0 ? (double)count / seconds : 0;
}

/* Samples or tokens a second. Those that were read before a resume are subtracted: the line's time does not
 * cover them. */
static double samples_per_s(const struct control_update *r)
{
    return per_second(r->samples - r->timing.samples_before, r->timing.round_s);
}

/* Every `timing` begins with the time of day. */
static void add_timing(struct line *line)
{
    line_add(line, LINE_TIMING "\"unix_s\":%.3f", unix_time_s());
}

/* ---- what the workers of a model-parallel job hold ---- */

static const struct {
    const char *name;
    size_t offset; /* in struct control_status */
} holding_names[] = {
    {"objects", offsetof(struct control_status, objects)},
    {"references", offsetof(struct control_status, references)},
    {"users", offsetof(struct control_status, users)},
    {"contexts", offsetof(struct control_status, contexts)},
    {"pieces", offsetof(struct control_status, pieces)},
};
enum { HOLDINGS = sizeof holding_names / sizeof holding_names[0], USERS = 2 };

static uint32_t workers_of(const struct job *job)
{
    return job->server.count + job_trainers(job);
}

static uint32_t holding_of(const struct control_status *status, unsigned i)
{
    uint32_t count;
    memcpy(&count, (const char *)status + holding_names[i].offset, sizeof count);
    return count;
}

/* One object for each worker: how many references to its objects each other worker has, by worker number. */
static void add_users(struct line *line, const struct control_status *holdings, uint32_t workers)
{
    line_add(line, ",\"users_of\":[");
    for (uint32_t i = 0; i < workers; i++) {
        line_add(line, i > 0 ? ",{" : "{");
        for (uint32_t peer = 0; peer < workers; peer++) {
            char key[16];
            snprintf(key, sizeof key, "%u", peer);
            if (holdings[i].users_of[peer] > 0)
                add_count(line, key, holdings[i].users_of[peer]);
        }
        line_add(line, "}");
    }
    line_add(line, "]");
}

static void add_holdings(struct line *line, const struct control_status *holdings, uint32_t workers)
{
    for (unsigned i = 0; i < HOLDINGS; i++) {
        add_key(line, holding_names[i].name);
        for (uint32_t worker = 0; worker < workers; worker++)
            line_add(line, "%c%u", worker > 0 ? ',' : '[', holding_of(&holdings[worker], i));
        line_add(line, "]");
        if (i == USERS)
            add_users(line, holdings, workers);
    }
}

/* ---- events ---- */

/* The process and the workers are in `timing`: they change no number of the run. */
static void write_workers(struct line *line, const struct job *job)
{
    add_count(line, "pid", (uint64_t)getpid());
    line_add(line, ",\"version\":\"%s\"", COALESCED_VERSION);
    if (job->kind == JOB_REINFORCE) {
        add_count(line, "observers", job_observers(job));
        add_count(line, "environments", job->observers.environments);
    } else {
        add_count(line, "servers", job->server.count);
        add_count(line, "trainers", job_trainers(job));
        add_count(line, "batch", job->trainers.batch);
        add_count(line, "threads", job->trainers.threads);
    }
    if (job->kind == JOB_MODEL_PARALLEL)
        line_add(line, ",\"layer_threads\":[%u,%u,%u]", job->threads[JOB_LAYER_EMBEDDING].count,
                 job->threads[JOB_LAYER_LSTM].count, job->threads[JOB_LAYER_DECODER].count);
    line_add(line, "}}\n");
}

static void add_reason(struct line *line, const char *reason)
{
    add_key(line, "reason");
    add_string(line, reason, strlen(reason));
}

static void write_cause(struct line *line, const struct line_restart *cause)
{
    if (cause->role != NULL)
        line_add(line, ",\"role\":\"%s\",\"worker\":%u,\"incarnation\":%u", cause->role, cause->worker,
                 cause->incarnation);
    add_reason(line, cause->reason);
}

/* Writes the job's /stop conditions, and the text up to `timing`. runlog_ends_job compares them with a line.
 */
static void write_stop(char words[JOB_WORDS_BYTES], const struct job *job)
{
    const char *before = ",\"stop\":{";
    words[0] = '\0';
    for (size_t i = 0; i < job_key_count; i++) {
        const struct job_key *key = &job_keys[i];
        if (!job_key_is_member(key, "/stop") || (key->kinds & JOB_KINDS_OF(job_variant(job))) == 0)
            continue;
        words_add(words, "%s\"%s\":", before, job_key_name(key));
        words_add_value(words, job, key, true);
        before = ",";
    }
    words_add(words, "}" LINE_TIMING);
}

bool runlog_ends_job(const char *line, const struct job *job)
{
    char stop[JOB_WORDS_BYTES];
    write_stop(stop, job);
    return strncmp(line, "{\"event\":", 9) == 0 && strstr(line, stop) != NULL;
}

static void write_end(struct runlog *log, const char *why, const char *reason,
                      const struct control_status *holdings)
{
    const struct job *job = log->job;
    struct line *line = &log->json;
    char stop[JOB_WORDS_BYTES];
    line_add(line, "{\"event\":\"%s\"", why);
    add_count(line, job->kind == JOB_REINFORCE ? "episodes" : "updates", log->count);
    if (job->kind == JOB_REINFORCE)
        add_number(line, "running_reward", log->running_reward);
    for (unsigned i = 0; i < HOLDINGS && job->kind == JOB_MODEL_PARALLEL; i++) {
        uint64_t sum = 0;
        for (uint32_t worker = 0; worker < workers_of(job); worker++)
            sum += holding_of(&holdings[worker], i);
        add_count(line, holding_names[i].name, sum);
    }
    if (strcmp(why, "finished") == 0 || strcmp(why, "solved") == 0) {
        write_stop(stop, job);
        line_add(line, "%.*s", (int)(strlen(stop) - strlen(LINE_TIMING)), stop);
    }
    if (reason != NULL)
        add_reason(line, reason);
    add_timing(line);
    add_fixed(line, "job_s", (double)monotime_us_between(log->begin, monotime_now()) * 1e-6, 6);
    line_add(line, "}}\n");
}

/* ---- episodes.jsonl ---- */

/* No member where the environment has none. */
static void add_metrics(struct line *line, const struct control_metrics *metrics)
{
    for (uint32_t i = 0; i < metrics->count && i < CONTROL_METRICS_MAX; i++) {
        const double mean = metrics->of[i].mean;
        line_add(line, i == 0 ? ",\"metrics\":{" : ",");
        add_string(line, metrics->of[i].name, sizeof metrics->of[i].name);
        line_add(line, isfinite(mean) ? ":%.17g" : ":null", mean);
    }
    line_add(line, metrics->count > 0 ? "}" : "");
}

/* Under Stable-Baselines3's names. */
static void add_figures(struct line *line, const struct control_figures *r)
{
    for (size_t i = 0; i < control_figure_count; i++) {
        const struct control_figure *figure = &control_figure_list[i];
        if (!control_figure_is_shown(figure, r, CONTROL_IN_LOG))
            continue;
        if (figure->is_count)
            add_count(line, figure->name, (uint64_t)control_figure_value(figure, r));
        else
            add_number(line, figure->name, control_figure_value(figure, r));
    }
    if (!r->has_evaluation)
        return;
    line_add(line, ",\"eval\":{");
    add_number(line, "mean_reward", r->evaluation.mean_reward);
    add_number(line, "std_reward", r->evaluation.std_reward);
    add_number(line, "mean_ep_length", r->evaluation.mean_ep_length);
    add_number(line, "success_rate", r->evaluation.success_rate);
    line_add(line, "}");
}

static void add_episode(struct line *line, const struct control_episode *r)
{
    add_count(line, "episode", r->episode);
    add_number(line, "reward", r->reward);
    add_number(line, "running_reward", r->running_reward);
    add_number(line, "loss", r->loss);
    add_count(line, "env_steps", r->env_steps);
    if (r->has_figures)
        add_figures(line, &r->figures);
    add_metrics(line, &r->metrics);
    add_timing(line);
    add_fixed(line, "episode_s", r->timing.episode_s, 6);
    add_fixed(line, "learn_s", r->timing.learn_s, 6);
    add_fixed(line, r->has_figures ? "fps" : "env_steps_per_s", per_second(r->env_steps, r->timing.episode_s),
              1);
    add_count(line, "launches", r->timing.launches);
    add_count(line, "requests", r->timing.requests);
    add_fixed(line, "batch_mean", r->timing.batch_mean, 3);
    add_count(line, "batch_max", r->timing.batch_max);
    add_fixed(line, "wait_us_p50", r->timing.wait_us_p50, 0);
    add_fixed(line, "wait_us_p99", r->timing.wait_us_p99, 0);
}

static void add_update(struct line *line, const struct control_update *r, bool is_language)
{
    add_count(line, "update", r->update);
    add_number(line, "loss", r->loss);
    if (!is_language) {
        add_key(line, "losses");
        for (uint32_t i = 0; i < r->trainers; i++)
            line_add(line, isfinite(r->losses[i]) ? "%c%.17g" : "%cnull", i > 0 ? ',' : '[', r->losses[i]);
        line_add(line, r->trainers > 0 ? "]" : "[]");
    }
    add_number(line, "lr", r->lr);
    add_count(line, "samples", r->samples);
    if (!is_language) {
        add_count(line, "late", r->late);
        add_count(line, "version", r->update);
    }
    add_timing(line);
    add_fixed(line, "round_s", r->timing.round_s, 6);
    if (!is_language) {
        add_fixed(line, "wait_s", r->timing.wait_s, 6);
        add_fixed(line, "update_s", r->timing.update_s, 6);
    }
    add_fixed(line, "samples_per_s", samples_per_s(r), 1);
    if (!is_language)
        add_count(line, "bytes", r->timing.bytes);
}

static void add_text_evaluation(struct line *line, const struct control_epoch *r)
{
    add_number(line, "perplexity", exp(r->loss));
    line_add(line, r->evaluated > 0 ? ",\"held_out\":{" : ",\"held_out\":null");
    if (r->evaluated == 0)
        return;
    add_number(line, "loss", r->evaluation_loss);
    add_number(line, "perplexity", exp(r->evaluation_loss));
    add_number(line, "unigram_perplexity", r->unigram_perplexity);
    add_count(line, "tokens", r->evaluated);
    line_add(line, "}");
}

static void add_epoch(struct line *line, const struct control_epoch *r, bool is_language)
{
    const bool evaluated = r->evaluated > 0;
    add_count(line, "epoch", r->epoch);
    add_count(line, "update", r->update);
    add_number(line, "loss", r->loss);
    if (is_language) {
        add_text_evaluation(line, r);
    } else {
        add_number(line, "test_loss", evaluated ? r->evaluation_loss : (double)NAN);
        add_number(line, "accuracy", evaluated ? (double)r->correct / (double)r->evaluated : (double)NAN);
        add_fixed(line, "correct", evaluated ? (double)r->correct : (double)NAN, 0);
        add_count(line, "evaluated", r->evaluated);
    }
    add_timing(line);
    add_fixed(line, "epoch_s", r->timing.epoch_s, 6);
    add_fixed(line, "evaluation_s", r->timing.evaluation_s, 6);
}

static void write_json(struct line *line, const struct job *job, const struct control_message *record,
                       const struct control_status *holdings, const struct run_use *use)
{
    const bool is_language = job->kind == JOB_MODEL_PARALLEL;
    line_add(line, "{");
    if (record->kind == CONTROL_EPISODE)
        add_episode(line, &record->body.episode);
    else if (record->kind == CONTROL_UPDATE)
        add_update(line, &record->body.update, is_language);
    else
        add_epoch(line, &record->body.epoch, is_language);
    if (record->kind == CONTROL_EPOCH && is_language)
        add_holdings(line, holdings, workers_of(job));
    if (record->kind != CONTROL_EPOCH && use->resident_bytes > 0) {
        add_fixed(line, "cores", use->cores, 3);
        add_count(line, "resident_bytes", use->resident_bytes);
        add_fixed(line, "queue", use->queue, 1);
    }
    line_add(line, "}}\n");
}

/* ---- episodes.log and the terminal ---- */

void episode_means_text(char out[EPISODE_MEANS_BYTES], const struct control_metrics *metrics)
{
    char name[2 * CONTROL_METRIC_NAME_BYTES];
    size_t at = 0;
    out[0] = '\0';
    for (uint32_t i = 0; i < metrics->count && i < CONTROL_METRICS_MAX; i++) {
        const double mean = metrics->of[i].mean;
        text_show(name, sizeof name, metrics->of[i].name,
                  strnlen(metrics->of[i].name, CONTROL_METRIC_NAME_BYTES), CONTROL_METRIC_NAME_BYTES);
        at += (size_t)snprintf(out + at, EPISODE_MEANS_BYTES - at, isfinite(mean) ? "\t%s: %.2f" : "\t%s: -",
                               name, mean);
    }
}

/* How the policy learns, in two figures of its algorithm. */
static void write_learning_text(struct line *line, const struct control_figures *r)
{
    if (r->algorithm == JOB_ALGORITHM_PPO)
        line_add(line, "\tKL: %.4f", r->approx_kl);
    if (r->algorithm == JOB_ALGORITHM_PPO || r->algorithm == JOB_ALGORITHM_A2C)
        line_add(line, "\tEntropy: %.3f", -r->entropy_loss);
    else if (isnan(r->loss)) /* nothing was learned */
        line_add(line, "\tLoss: -");
    else
        line_add(line, "\tLoss: %.4f", r->loss);
    if (r->algorithm == JOB_ALGORITHM_DQN)
        line_add(line, "\tExploration: %.3f", r->exploration_rate);
    else if (r->algorithm == JOB_ALGORITHM_SAC && !isnan(r->ent_coef))
        line_add(line, "\tEntropy weight: %.4f", r->ent_coef);
}

static void write_figures_text(struct line *line, const struct control_figures *r, double seconds,
                               uint64_t steps)
{
    line_add(line, "\tSteps: %" PRIu64, r->total_timesteps);
    if (isnan(r->ep_rew_mean)) /* no episode has ended */
        line_add(line, "\tReward: -\tLength: -");
    else
        line_add(line, "\tReward: %.2f\tLength: %.1f", r->ep_rew_mean, r->ep_len_mean);
    write_learning_text(line, r);
    line_add(line, "\tSteps/s: %.0f", per_second(steps, seconds));
    if (r->has_evaluation)
        line_add(line, "\tEvaluation: %.2f +- %.2f", r->evaluation.mean_reward, r->evaluation.std_reward);
}

static void write_episode_text(struct line *line, const struct control_episode *r)
{
    char metrics[EPISODE_MEANS_BYTES];
    episode_means_text(metrics, &r->metrics);
    if (r->has_figures) {
        line_add(line, "Episode %" PRIu64, r->episode);
        write_figures_text(line, &r->figures, r->timing.episode_s, r->env_steps);
        line_add(line, "%s\n", metrics);
        return;
    }
    line_add(line, "Episode %" PRIu64 "\tLast reward: %.2f\tAverage reward: %.2f", r->episode, r->reward,
             r->running_reward);
    line_add(line, "%s\n", metrics);
}

static void write_update_text(struct line *line, const struct control_update *r, bool is_language)
{
    line_add(line, "Update %" PRIu64 "\tLoss: %.4f\t", r->update, r->loss);
    if (is_language)
        line_add(line, "Perplexity: %.2f\tLr: %g\tTokens/s: %.0f\n", exp(r->loss), r->lr, samples_per_s(r));
    else
        line_add(line, "Samples/s: %.1f\n", samples_per_s(r));
}

static void write_epoch_text(struct line *line, const struct control_epoch *r, bool is_language)
{
    const double loss = isnan(r->evaluation_loss) ? (double)NAN : r->evaluation_loss; /* no "-nan" */
    line_add(line, "Epoch %" PRIu64 "\tLoss: %.4f", r->epoch, r->loss);
    if (is_language)
        line_add(line, "\tPerplexity: %.2f", exp(r->loss));
    if (r->evaluated > 0 && is_language)
        line_add(line,
                 "\tHeld-out loss: %.4f\tHeld-out perplexity: %.2f\t(unigram: %.2f; %" PRIu64 " tokens)",
                 loss, exp(loss), r->unigram_perplexity, r->evaluated);
    else if (r->evaluated > 0)
        line_add(line, "\tTest loss: %.4f\tAccuracy: %.2f %%\t(%" PRIu64 " of %" PRIu64 ")", loss,
                 100 * (double)r->correct / (double)r->evaluated, r->correct, r->evaluated);
    line_add(line, "\n");
}

static struct line_key line_key_of(const char *text)
{
    static const struct {
        const char *begin;
        enum line_kind kind;
    } lines[] = {{"{\"episode\":", LINE_EPISODE}, {"Episode ", LINE_EPISODE},  {"{\"update\":", LINE_UPDATE},
                 {"Update ", LINE_UPDATE},        {"{\"epoch\":", LINE_EPOCH}, {"Epoch ", LINE_EPOCH}};
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++) {
        const size_t length = strlen(lines[i].begin);
        if (strncmp(text, lines[i].begin, length) == 0)
            return (struct line_key){lines[i].kind, strtoull(text + length, NULL, 10)};
    }
    return (struct line_key){.kind = LINE_OTHER};
}

/* ---- opening and closing ---- */

enum status runlog_open(struct runlog **out, struct path run, const struct job *job,
                        const struct run_identity *identity, struct error *error)
{
    struct runlog *log = calloc(1, sizeof *log);
    if (log == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for the logs");
    log->path = run.text;
    log->job = job;
    log->identity = *identity;
    log->terminal = isatty(STDOUT_FILENO) == 1;
    log->begin = monotime_now();
    log->board = tensorboard_new(run);
    enum status status =
        log->board != NULL ? STATUS_OK : error_set(error, STATUS_NO_MEMORY, "no memory for the logs");
    for (int i = 0; i < RUN_LOGS && status == STATUS_OK; i++)
        status = log_file_open(&log->files[i], run, i, error);
    if (status != STATUS_OK) {
        runlog_close(log);
        return status;
    }
    log->knows_id = log_file_run_id(log->files[RUN_LOG_JSON], log->identity.id);
    *out = log;
    return STATUS_OK;
}

void runlog_close(struct runlog *log)
{
    struct error error;
    if (log == NULL)
        return;
    runlog_clear_progress(log);
    if (tensorboard_free(log->board, &error) != STATUS_OK)
        log_warning("%s: the last events for TensorBoard are lost", error.text);
    for (int i = 0; i < RUN_LOGS; i++)
        log_file_close(log->files[i]);
    free(log);
}

/* ---- stdout ---- */

/* A reader that has stopped reading (a pager, ctrl-S) must not stop the job: a line that would block is not
 * shown. A pipe or terminal that is ready takes a line of this size at once. */
static void show_text(struct runlog *log, const char *text, size_t bytes)
{
    struct pollfd ready = {.fd = STDOUT_FILENO, .events = POLLOUT};
    if (log->silent || poll(&ready, 1, 0) != 1)
        return;
    ssize_t written;
    do
        written = write(STDOUT_FILENO, text, bytes);
    while (written < 0 && errno == EINTR);
    if (written < 0 && errno != EAGAIN) {
        log->silent = true;
        log_warning("standard output is gone (%s); the lines go on in %s/episodes.log", strerror(errno),
                    log->path);
    }
}

void runlog_clear_progress(struct runlog *log)
{
    if (log->is_drawn)
        show_text(log, LINE_CLEAR, strlen(LINE_CLEAR));
    log->is_drawn = false;
}

/* At most ten times a second: drawing must not slow a fast job. */
static void draw_progress(struct runlog *log, struct monotime now)
{
    enum { REDRAW_US = 100000 };
    char text[PROGRESS_TEXT_BYTES], line[sizeof LINE_CLEAR + sizeof text];
    struct winsize size = {0};
    log->is_stale = log->terminal && monotime_before(now, log->redraw_due);
    if (!log->terminal || log->is_stale)
        return;
    log->redraw_due = monotime_add_us(now, REDRAW_US);
    const bool is_known = ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 1;
    progress_text(text, &log->progress, is_known ? size.ws_col - 1U : 79); /* a line that does not wrap */
    show_text(log, line, (size_t)snprintf(line, sizeof line, LINE_CLEAR "%s", text));
    log->is_drawn = true;
}

void runlog_evaluating(struct runlog *log, struct control_share evaluating)
{
    log->progress.evaluating = evaluating;
    draw_progress(log, monotime_now());
}

void runlog_redraw(struct runlog *log)
{
    if (log->is_stale)
        draw_progress(log, monotime_now());
}

const struct progress *runlog_progress(const struct runlog *log)
{
    return &log->progress;
}

static enum status append_json(struct runlog *log, struct error *error)
{
    const size_t length = log->json.length;
    log->json.length = 0;
    const enum status status = log_file_append(log->files[RUN_LOG_JSON], log->json.text, length, error);
    if (status == STATUS_OK && log->listener != NULL)
        log->listener(log->listener_arg, log->json.text, length);
    return status;
}

void runlog_listen(struct runlog *log, void (*take)(void *arg, const char *line, size_t length), void *arg)
{
    log->listener = take;
    log->listener_arg = arg;
}

void runlog_note_use(struct runlog *log, const struct run_use *use)
{
    log->use = *use;
}

/* A line that was printed, and then cut off the log, is not printed again. */
static enum status append_text(struct runlog *log, struct error *error)
{
    const struct line_key key = line_key_of(log->text.text);
    const size_t length = log->text.length;
    log->text.length = 0;
    runlog_clear_progress(log);
    if ((key.kind == LINE_OTHER || key.number > log->cut[RUN_LOG_TEXT][key.kind]) &&
        !log_output(log->text.text, length))
        show_text(log, log->text.text, length);
    runlog_note_message(log, log->text.text);
    return log_file_append(log->files[RUN_LOG_TEXT], log->text.text, length, error);
}

void runlog_note_message(struct runlog *log, const char *text)
{
    char *tail = log->tail[log->tail_count++ % RUNLOG_TAIL_LINES];
    snprintf(tail, RUNLOG_TAIL_BYTES, "%.*s", (int)strcspn(text, "\n"), text);
}

unsigned runlog_tail(const struct runlog *log, const char *lines[RUNLOG_TAIL_LINES])
{
    const uint64_t count = log->tail_count < RUNLOG_TAIL_LINES ? log->tail_count : RUNLOG_TAIL_LINES;
    for (uint64_t i = 0; i < count; i++)
        lines[i] = log->tail[(log->tail_count - count + i) % RUNLOG_TAIL_LINES];
    return (unsigned)count;
}

/* ---- events ---- */

enum status runlog_start(struct runlog *log, struct error *error)
{
    struct line *line = &log->json;
    char hex[2 * RUN_ID_BYTES + 1];
    line_add(line, "{\"event\":\"start\",\"seed\":%" PRIu64, log->job->seed);
    add_timing(line);
    line_add(line, LOG_RUN_KEY "%s\"", sodium_bin2hex(hex, sizeof hex, log->identity.id, RUN_ID_BYTES));
    write_workers(line, log->job);
    return append_json(log, error);
}

enum status runlog_restart(struct runlog *log, const struct line_restart *restart, struct error *error)
{
    line_add(&log->json, "{\"event\":\"restarted\"");
    write_cause(&log->json, restart);
    add_timing(&log->json);
    line_add(&log->json, "}}\n");
    return append_json(log, error);
}

/* Writes the last line of a job with a goal. `reward` is the value that is compared with the goal. */
static void write_verdict(struct line *line, const struct job *job, bool is_solved, double reward,
                          uint64_t count)
{
    const bool is_evaluation = job->stop.has_evaluation_reward;
    if (is_solved)
        line_add(line, "Solved! %s is now %.2f!\n",
                 is_evaluation ? "The evaluation's mean reward" : "Running reward", reward);
    else if (is_evaluation && isnan(reward))
        line_add(line,
                 "Not solved: there was no evaluation in %" PRIu64
                 " updates, expected one with a mean reward of at least %.2f\n",
                 count, job->stop.evaluation_reward);
    else if (is_evaluation)
        line_add(line,
                 "Not solved: the evaluation's mean reward is %.2f after %" PRIu64
                 " updates, expected at least %.2f\n",
                 reward, count, job->stop.evaluation_reward);
    else
        line_add(line,
                 "Not solved: the running reward is %.2f after %" PRIu64
                 " episodes, expected more than %.2f\n",
                 reward, count, job->stop.running_reward);
}

/* Does nothing if the log ends with the verdict already, as after resuming a finished run. */
static enum status append_verdict(struct runlog *log, const struct control_finished *finished,
                                  struct error *error)
{
    const bool has_goal = log->job->stop.has_running_reward || log->job->stop.has_evaluation_reward;
    const bool is_solved = finished->end == CONTROL_END_SOLVED;
    if (!is_solved && (finished->end != CONTROL_END_FINISHED || !has_goal))
        return STATUS_OK;
    write_verdict(&log->text, log->job, is_solved, finished->reward, log->count);
    if (!log_file_ends_with(log->files[RUN_LOG_TEXT], log->text.text, log->text.length))
        return append_text(log, error);
    log->text.length = 0;
    return STATUS_OK;
}

const char *runlog_short_path(const char *path)
{
    char folder[4096];
    const size_t length = getcwd(folder, sizeof folder) != NULL ? strlen(folder) : 0;
    const bool is_below = length > 1 && strncmp(path, folder, length) == 0 && path[length] == '/';
    return is_below ? path + length + 1 : path;
}

const char *runlog_command(const char *kind)
{
    return strcmp(kind, job_kind_name(JOB_PARAMETER_SERVER)) == 0 ? "evaluate"
           : strcmp(kind, job_kind_name(JOB_MODEL_PARALLEL)) == 0 ? "generate"
                                                                  : "play";
}

const char *runlog_end(const char *event)
{
    static const char *const ends[] = {"finished", "solved", "stopped", "failed"};
    for (size_t i = 0; i < sizeof ends / sizeof ends[0]; i++)
        if (strcmp(event, ends[i]) == 0)
            return ends[i];
    return NULL;
}

/* On standard output alone: how the run ended, and what to do with it. */
static void show_end(struct runlog *log, const char *why)
{
    char sum[PROGRESS_TEXT_BYTES];
    progress_sum_up(sum, &log->progress);
    if (sum[0] == '\0')
        return;
    const char *run = runlog_short_path(log->path);
    line_add(&log->text, "%s: %s; %s (coalesced %s %s)\n", why, sum, run,
             runlog_command(job_kind_name(log->job->kind)), run);
    const size_t length = log->text.length;
    log->text.length = 0;
    runlog_clear_progress(log);
    if (!log_output(log->text.text, length))
        show_text(log, log->text.text, length);
}

/* The event is the last line: a run whose log has it is over. */
enum status runlog_finish(struct runlog *log, const char *why, const char *reason,
                          const struct control_finished *finished, const struct control_status *holdings,
                          struct error *error)
{
    if (finished->updates > log->count)
        log->count = finished->updates;
    const enum status status = append_verdict(log, finished, error);
    if (status != STATUS_OK)
        return status;
    write_end(log, why, reason, holdings);
    const enum status ended = append_json(log, error);
    if (ended == STATUS_OK)
        show_end(log, why);
    return ended;
}

/* ---- records ---- */

/* Whether /log/every, or the job's end, lets the record into episodes.log. */
static bool is_for_text(const struct runlog *log, const struct control_message *record)
{
    const bool is_episode = record->kind == CONTROL_EPISODE;
    if (record->kind == CONTROL_EPOCH || log->job->kind == JOB_MODEL_PARALLEL ||
        (is_episode ? record->body.episode.is_last : record->body.update.is_last))
        return true;
    return control_record_number(record) % log->job->log.every == 0;
}

/* Writes a record's two lines, episodes.jsonl's first. A line that was cut is
 * not sent to TensorBoard again: TensorBoard has its events. */
static enum status append_record(struct runlog *log, const struct control_message *record,
                                 const struct control_status *holdings, struct error *error)
{
    const bool is_language = log->job->kind == JOB_MODEL_PARALLEL;
    struct error unwritten; /* events for TensorBoard: what a run may lose */
    write_json(&log->json, log->job, record, holdings, &log->use);
    const struct line_key key = line_key_of(log->json.text);
    const enum status status = append_json(log, error);
    if (status != STATUS_OK)
        return status;
    if (key.number > log->cut[RUN_LOG_JSON][key.kind] &&
        tensorboard_record(log->board, log->job, record, &unwritten) != STATUS_OK) {
        runlog_clear_progress(log);
        log_warning("%s: TensorBoard gets no more of this run; the logs go on", unwritten.text);
    }
    if (!is_for_text(log, record))
        return STATUS_OK;
    if (record->kind == CONTROL_EPISODE)
        write_episode_text(&log->text, &record->body.episode);
    else if (record->kind == CONTROL_UPDATE)
        write_update_text(&log->text, &record->body.update, is_language);
    else
        write_epoch_text(&log->text, &record->body.epoch, is_language);
    return append_text(log, error);
}

enum status runlog_record(struct runlog *log, const struct control_message *record,
                          const struct control_status *holdings, struct error *error)
{
    const enum status status = append_record(log, record, holdings, error);
    const struct monotime now = monotime_now();
    progress_note(&log->progress, log->job, record, now);
    if (record->kind == CONTROL_EPOCH) {
        const struct control_epoch *epoch = &record->body.epoch;
        if (epoch->evaluated == 0 || isfinite(epoch->evaluation_loss))
            return status;
        runlog_clear_progress(log); /* the line has null in the loss's place */
        log_warning("epoch %" PRIu64 ", update %" PRIu64
                    ": the loss on held-out data is %s: expected a finite number; training goes on",
                    epoch->epoch, epoch->update, isnan(epoch->evaluation_loss) ? "not a number" : "infinite");
        return status;
    }
    log->count = control_record_number(record);
    if (record->kind == CONTROL_EPISODE)
        log->running_reward = record->body.episode.running_reward;
    draw_progress(log, now);
    return status;
}

/* ---- places ---- */

void runlog_place(const struct runlog *log, struct run_place *place)
{
    place->run = log->identity;
    for (int i = 0; i < RUN_LOGS; i++)
        place->logs[i] = log_file_place(log->files[i]);
}

enum status runlog_owns(const struct runlog *log, const struct run_place *place, struct error *why)
{
    const struct run_identity *own = &log->identity, *other = &place->run;
    if (own->seed != other->seed)
        return error_set(why, STATUS_CORRUPT, "its run had the seed %" PRIu64 ", expected %" PRIu64,
                         other->seed, own->seed);
    if (memcmp(own->numbers, other->numbers, sizeof own->numbers) != 0)
        return error_set(why, STATUS_CORRUPT, "its run had another job, expected the one of %s/job.json",
                         log->path);
    return STATUS_OK;
}

/* A place at a log's beginning confirms only where all logs must confirm. The run's id only words the error,
 * for it may be damaged. */
enum status runlog_confirm(const struct runlog *log, const struct run_place *place, unsigned least,
                           struct error *why)
{
    unsigned confirmed = 0;
    for (int i = 0; i < RUN_LOGS; i++) {
        const bool is_beginning = place->logs[i].lines == 0;
        const enum status status =
            is_beginning ? STATUS_OK : log_file_confirm(log->files[i], &place->logs[i], place->run.id, why);
        if (status != STATUS_OK && status != STATUS_CORRUPT)
            return status;
        confirmed += status == STATUS_OK && (!is_beginning || least == RUN_LOGS);
    }
    if (confirmed >= least)
        return STATUS_OK;
    if (log->knows_id && memcmp(log->identity.id, place->run.id, sizeof place->run.id) != 0)
        error_set(why, STATUS_CORRUPT, "it comes from another run of this job");
    return STATUS_CORRUPT;
}

/* ---- going on ---- */

/* The lines that are cut off one log. */
struct cutting {
    struct runlog *log;
    enum run_log which;
    uint64_t update; /* the checkpoint's */
    uint64_t lines[RUN_LOGS];
};

/* A damaged line may have any number. A number that so few lines cannot reach is ignored. */
static void cutting_note(void *context, const char *text)
{
    struct cutting *cutting = context;
    const struct line_key key = line_key_of(text);
    uint64_t *highest = &cutting->log->cut[cutting->which][key.kind];
    const uint64_t lines = ++cutting->lines[cutting->which];
    if (key.number > *highest && key.number <= cutting->update + lines * cutting->log->job->log.every)
        *highest = key.number;
}

/* Also notes the lines that earlier resumes cut: those lines were printed, too. */
static enum status cut_logs(struct runlog *log, const struct run_place *place, uint64_t update,
                            struct error *error)
{
    struct cutting earlier = {.log = log, .update = update}, cutting = earlier;
    const struct log_cut before = {cutting_note, &earlier}, cut = {cutting_note, &cutting};
    enum status status = STATUS_OK;
    for (int i = 0; i < RUN_LOGS && status == STATUS_OK; i++) {
        earlier.which = cutting.which = i;
        status = log_file_show_cut(log->files[i], &before, error);
        if (status == STATUS_OK)
            status = log_file_cut(log->files[i], &place->logs[i], place->run.id, &cut, error);
    }
    for (int i = 0; i < RUN_LOGS && status == STATUS_OK; i++)
        if (cutting.lines[i] > 0)
            log_info("lines behind the checkpoint are cut: %" PRIu64 " are moved to %s/%s.cut",
                     cutting.lines[i], log->path, run_log_name(i));
    return status;
}

enum status runlog_resume(struct runlog *log, const struct run_place *place, uint64_t update,
                          double running_reward, const struct line_restart *cause, struct error *error)
{
    const struct run_place beginning = {.run = log->identity};
    enum status status = cut_logs(log, place != NULL ? place : &beginning, update, error);
    if (status != STATUS_OK)
        return status;
    if (place != NULL)
        memcpy(log->identity.id, place->run.id, sizeof log->identity.id);
    log->count = update;
    log->running_reward = running_reward;
    if (log_file_place(log->files[RUN_LOG_JSON]).lines == 0)
        status = runlog_start(log, error);
    if (status != STATUS_OK)
        return status;
    line_add(&log->json, "{\"event\":\"resumed\",\"%s\":%" PRIu64,
             log->job->kind == JOB_REINFORCE ? "episode" : "update", update);
    if (cause != NULL) {
        line_add(&log->json, ",\"generation\":%u", cause->generation);
        write_cause(&log->json, cause);
    }
    add_timing(&log->json);
    write_workers(&log->json, log->job);
    return append_json(log, error);
}

bool runlog_is_moved(const struct runlog *log)
{
    return log_file_is_moved(log->files[RUN_LOG_JSON]) || log_file_is_moved(log->files[RUN_LOG_TEXT]);
}

enum status runlog_continue(struct runlog *log, const struct run_place *place, struct error *error)
{
    struct error second;
    const enum status status =
        log_file_continue(log->files[RUN_LOG_JSON], &place->logs[RUN_LOG_JSON], log->identity.id, error);
    const enum status of_text = log_file_continue(log->files[RUN_LOG_TEXT], &place->logs[RUN_LOG_TEXT],
                                                  log->identity.id, status == STATUS_OK ? error : &second);
    return status == STATUS_OK ? of_text : status;
}
