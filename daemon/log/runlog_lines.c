/* Formats the lines of the run's logs. Supervisor process; its only thread. */
#include "daemon/log/runlog_lines.h"

#include "daemon/log/episode_means.h"
#include "kernels/base/text.h"
#include "worker/job/job_table.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <sodium.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

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

enum { ALL_DIGITS = -1 };

/* JSON has no NaN and no infinity. */
static void write_number(struct line *line, const char *before, double value, int decimals)
{
    if (!isfinite(value))
        line_add(line, "%snull", before);
    else if (decimals == ALL_DIGITS)
        line_add(line, "%s%.17g", before, value);
    else
        line_add(line, "%s%.*f", before, decimals, value);
}

static double per_second(uint64_t count, double seconds)
{
    return seconds > 0 ? (double)count / seconds : 0;
}

/* Samples or tokens; those that were read before a resume do not belong to the line's time. */
static double samples_per_s(const struct control_update *r)
{
    return per_second(r->samples - r->timing.samples_before, r->timing.round_s);
}

/* Every `timing` begins with the time of day. */
static void write_timing(struct line *line)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    line_add(line, LINE_TIMING "\"unix_s\":%.3f", (double)now.tv_sec + (double)now.tv_nsec * 1e-9);
}

/* ---- what the workers of a model-parallel job hold ---- */

static const struct {
    const char *name;
    size_t offset; /* in struct control_status */
} counts[] = {
    {"objects", offsetof(struct control_status, objects)},
    {"references", offsetof(struct control_status, references)},
    {"users", offsetof(struct control_status, users)},
    {"contexts", offsetof(struct control_status, contexts)},
    {"pieces", offsetof(struct control_status, pieces)},
};
enum { COUNTS = sizeof counts / sizeof counts[0], USERS = 2 };

static uint32_t workers_of(const struct job *job)
{
    return job->server.count + job_trainers(job);
}

static uint32_t count_of(const struct control_status *status, unsigned i)
{
    uint32_t count;
    memcpy(&count, (const char *)status + counts[i].offset, sizeof count);
    return count;
}

/* One object for each worker: how many references to its objects each other worker has, by worker number. */
static void write_users(struct line *line, const struct control_status *holdings, uint32_t workers)
{
    line_add(line, ",\"users_of\":[");
    for (uint32_t i = 0; i < workers; i++) {
        const char *before = "";
        line_add(line, "%s{", i > 0 ? "," : "");
        for (uint32_t peer = 0; peer < workers; peer++) {
            const uint32_t users = holdings[i].users_of[peer];
            if (users == 0)
                continue;
            line_add(line, "%s\"%u\":%u", before, peer, users);
            before = ",";
        }
        line_add(line, "}");
    }
    line_add(line, "]");
}

static void write_holdings(struct line *line, const struct control_status *holdings, uint32_t workers)
{
    for (unsigned i = 0; i < COUNTS; i++) {
        line_add(line, ",\"%s\":[", counts[i].name);
        for (uint32_t worker = 0; worker < workers; worker++)
            line_add(line, "%s%u", worker > 0 ? "," : "", count_of(&holdings[worker], i));
        line_add(line, "]");
        if (i == USERS)
            write_users(line, holdings, workers);
    }
}

static void write_sums(struct line *line, const struct control_status *holdings, uint32_t workers)
{
    for (unsigned i = 0; i < COUNTS; i++) {
        uint64_t sum = 0;
        for (uint32_t worker = 0; worker < workers; worker++)
            sum += count_of(&holdings[worker], i);
        line_add(line, ",\"%s\":%" PRIu64, counts[i].name, sum);
    }
}

/* ---- events ---- */

/* The key of a run's id, in `timing`: two runs of one seed have other ids. */
#define LINE_RUN ",\"run\":\""

static void write_run(struct line *line, const uint8_t id[RUN_ID_BYTES])
{
    char hex[2 * RUN_ID_BYTES + 1];
    line_add(line, LINE_RUN "%s\"", sodium_bin2hex(hex, sizeof hex, id, RUN_ID_BYTES));
}

/* The process and the workers are in `timing`: they change no number of the run. */
static void write_workers(struct line *line, const struct job *job)
{
    line_add(line, ",\"pid\":%ld,\"version\":\"%s\"", (long)getpid(), COALESCED_VERSION);
    if (job->kind == JOB_REINFORCE)
        line_add(line, ",\"observers\":%u,\"environments\":%u", job_observers(job),
                 job->observers.environments);
    else
        line_add(line, ",\"servers\":%u,\"trainers\":%u,\"batch\":%u,\"threads\":%u", job->server.count,
                 job_trainers(job), job->trainers.batch, job->trainers.threads);
    if (job->kind == JOB_MODEL_PARALLEL)
        line_add(line, ",\"layer_threads\":[%u,%u,%u]", job->threads[JOB_LAYER_EMBEDDING].count,
                 job->threads[JOB_LAYER_LSTM].count, job->threads[JOB_LAYER_DECODER].count);
    line_add(line, "}}\n");
}

void line_write_start(struct line *line, const struct job *job, const uint8_t id[RUN_ID_BYTES])
{
    line->length = 0;
    line_add(line, "{\"event\":\"start\",\"seed\":%" PRIu64, job->seed);
    write_timing(line);
    write_run(line, id);
    write_workers(line, job);
}

/* A JSON string of a text of `bytes` at most, which may be anything: a reason may quote a worker's last
 * words, and a plug-in names its metrics. */
static void write_string(struct line *line, const char *text, size_t bytes)
{
    char shown[2 * ERROR_TEXT_BYTES], piece[TEXT_ESCAPED_BYTES];
    text_show(shown, sizeof shown, text, strnlen(text, bytes), ERROR_TEXT_BYTES);
    line_add(line, "\"");
    for (const char *at = shown; *at != '\0'; at++)
        line_add(line, "%s", text_escape(piece, *at));
    line_add(line, "\"");
}

static void write_cause(struct line *line, const struct line_restart *cause)
{
    if (cause->role != NULL)
        line_add(line, ",\"role\":\"%s\",\"worker\":%u,\"incarnation\":%u", cause->role, cause->worker,
                 cause->incarnation);
    line_add(line, ",\"reason\":");
    write_string(line, cause->reason, strlen(cause->reason));
}

void line_write_resumed(struct line *line, const struct job *job, uint64_t number,
                        const struct line_restart *cause)
{
    line->length = 0;
    line_add(line, "{\"event\":\"resumed\",\"%s\":%" PRIu64,
             job->kind == JOB_REINFORCE ? "episode" : "update", number);
    if (cause != NULL) {
        line_add(line, ",\"generation\":%u", cause->generation);
        write_cause(line, cause);
    }
    write_timing(line);
    write_workers(line, job);
}

void line_write_restarted(struct line *line, const struct line_restart *restart)
{
    line->length = 0;
    line_add(line, "{\"event\":\"restarted\"");
    write_cause(line, restart);
    write_timing(line);
    line_add(line, "}}\n");
}

/* Each key of /stop with its value, up to `timing`: what the end was an end by. */
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

bool line_ends_job(const char *line, const struct job *job)
{
    char stop[JOB_WORDS_BYTES];
    write_stop(stop, job);
    return strncmp(line, "{\"event\":", 9) == 0 && strstr(line, stop) != NULL;
}

void line_write_end(struct line *line, const struct job *job, const struct line_end *end,
                    const struct control_status *holdings)
{
    char stop[JOB_WORDS_BYTES];
    line->length = 0;
    const bool has_episodes = job->kind == JOB_REINFORCE;
    line_add(line, "{\"event\":\"%s\",\"%s\":%" PRIu64, end->why, has_episodes ? "episodes" : "updates",
             end->count);
    if (has_episodes)
        write_number(line, ",\"running_reward\":", end->running_reward, ALL_DIGITS);
    if (job->kind == JOB_MODEL_PARALLEL)
        write_sums(line, holdings, workers_of(job));
    if (strcmp(end->why, "finished") == 0 || strcmp(end->why, "solved") == 0) {
        write_stop(stop, job);
        line_add(line, "%.*s", (int)(strlen(stop) - strlen(LINE_TIMING)), stop);
    }
    write_timing(line);
    line_add(line, ",\"job_s\":%.6f}}\n", end->job_s);
}

/* ---- episodes.jsonl ---- */

/* No member where the environment has none. */
static void write_metrics(struct line *line, const struct control_metrics *metrics)
{
    for (uint32_t i = 0; i < metrics->count && i < CONTROL_METRICS_MAX; i++) {
        line_add(line, i == 0 ? ",\"metrics\":{" : ",");
        write_string(line, metrics->of[i].name, sizeof metrics->of[i].name);
        write_number(line, ":", metrics->of[i].mean, ALL_DIGITS);
    }
    line_add(line, metrics->count > 0 ? "}" : "");
}

/* Under Stable-Baselines3's names. */
static void write_ppo(struct line *line, const struct control_ppo *r)
{
    line_add(line, ",\"total_timesteps\":%" PRIu64 ",\"n_updates\":%" PRIu64, r->total_timesteps,
             r->n_updates);
    write_number(line, ",\"ep_rew_mean\":", r->ep_rew_mean, ALL_DIGITS);
    write_number(line, ",\"ep_len_mean\":", r->ep_len_mean, ALL_DIGITS);
    write_number(line,
                 r->is_a2c ? ",\"policy_loss\":" : ",\"policy_gradient_loss\":", r->policy_gradient_loss,
                 ALL_DIGITS);
    write_number(line, ",\"value_loss\":", r->value_loss, ALL_DIGITS);
    write_number(line, ",\"entropy_loss\":", r->entropy_loss, ALL_DIGITS);
    if (!r->is_a2c) {
        write_number(line, ",\"approx_kl\":", r->approx_kl, ALL_DIGITS);
        write_number(line, ",\"clip_fraction\":", r->clip_fraction, ALL_DIGITS);
    }
    write_number(line, ",\"explained_variance\":", r->explained_variance, ALL_DIGITS);
    write_number(line, ",\"learning_rate\":", r->learning_rate, ALL_DIGITS);
    if (!r->is_a2c)
        write_number(line, ",\"clip_range\":", r->clip_range, ALL_DIGITS);
    write_number(line, ",\"std\":", r->std, ALL_DIGITS);
    if (!r->has_evaluation)
        return;
    write_number(line, ",\"eval\":{\"mean_reward\":", r->evaluation.mean_reward, ALL_DIGITS);
    write_number(line, ",\"std_reward\":", r->evaluation.std_reward, ALL_DIGITS);
    write_number(line, ",\"mean_ep_length\":", r->evaluation.mean_ep_length, ALL_DIGITS);
    write_number(line, ",\"success_rate\":", r->evaluation.success_rate, ALL_DIGITS);
    line_add(line, "}");
}

static void write_episode(struct line *line, const struct control_episode *r)
{
    line_add(line, "{\"episode\":%" PRIu64, r->episode);
    write_number(line, ",\"reward\":", r->reward, ALL_DIGITS);
    write_number(line, ",\"running_reward\":", r->running_reward, ALL_DIGITS);
    write_number(line, ",\"loss\":", r->loss, ALL_DIGITS);
    line_add(line, ",\"env_steps\":%" PRIu64, r->env_steps);
    if (r->has_ppo)
        write_ppo(line, &r->ppo);
    write_metrics(line, &r->metrics);
    write_timing(line);
    write_number(line, ",\"episode_s\":", r->timing.episode_s, 6);
    write_number(line, ",\"learn_s\":", r->timing.learn_s, 6);
    write_number(line, r->has_ppo ? ",\"fps\":" : ",\"env_steps_per_s\":",
                 per_second(r->env_steps, r->timing.episode_s), 1);
    line_add(line, ",\"launches\":%" PRIu64 ",\"requests\":%" PRIu64, r->timing.launches, r->timing.requests);
    write_number(line, ",\"batch_mean\":", r->timing.batch_mean, 3);
    line_add(line, ",\"batch_max\":%u", r->timing.batch_max);
    write_number(line, ",\"wait_us_p50\":", r->timing.wait_us_p50, 0);
    write_number(line, ",\"wait_us_p99\":", r->timing.wait_us_p99, 0);
    line_add(line, "}}\n");
}

static void write_update(struct line *line, const struct control_update *r)
{
    line_add(line, "{\"update\":%" PRIu64, r->update);
    write_number(line, ",\"loss\":", r->loss, ALL_DIGITS);
    line_add(line, ",\"losses\":[");
    for (uint32_t i = 0; i < r->trainers; i++)
        write_number(line, i > 0 ? "," : "", r->losses[i], ALL_DIGITS);
    write_number(line, "],\"lr\":", r->lr, ALL_DIGITS);
    line_add(line, ",\"samples\":%" PRIu64 ",\"late\":%" PRIu64 ",\"version\":%" PRIu64, r->samples, r->late,
             r->update);
    write_timing(line);
    write_number(line, ",\"round_s\":", r->timing.round_s, 6);
    write_number(line, ",\"wait_s\":", r->timing.wait_s, 6);
    write_number(line, ",\"update_s\":", r->timing.update_s, 6);
    write_number(line, ",\"samples_per_s\":", samples_per_s(r), 1);
    line_add(line, ",\"bytes\":%" PRIu64 "}}\n", r->timing.bytes);
}

static void write_epoch(struct line *line, const struct control_epoch *r)
{
    bool evaluated = r->evaluated > 0;
    line_add(line, "{\"epoch\":%" PRIu64 ",\"update\":%" PRIu64, r->epoch, r->update);
    write_number(line, ",\"loss\":", r->loss, ALL_DIGITS);
    write_number(line, ",\"test_loss\":", evaluated ? r->evaluation_loss : (double)NAN, ALL_DIGITS);
    write_number(line, ",\"accuracy\":", evaluated ? (double)r->correct / (double)r->evaluated : (double)NAN,
                 ALL_DIGITS);
    write_number(line, ",\"correct\":", evaluated ? (double)r->correct : (double)NAN, 0);
    line_add(line, ",\"evaluated\":%" PRIu64, r->evaluated);
    write_timing(line);
    write_number(line, ",\"epoch_s\":", r->timing.epoch_s, 6);
    write_number(line, ",\"evaluation_s\":", r->timing.evaluation_s, 6);
    line_add(line, "}}\n");
}

static void write_language_update(struct line *line, const struct control_update *r)
{
    line_add(line, "{\"update\":%" PRIu64, r->update);
    write_number(line, ",\"loss\":", r->loss, ALL_DIGITS);
    write_number(line, ",\"lr\":", r->lr, ALL_DIGITS);
    line_add(line, ",\"samples\":%" PRIu64, r->samples);
    write_timing(line);
    write_number(line, ",\"round_s\":", r->timing.round_s, 6);
    write_number(line, ",\"samples_per_s\":", samples_per_s(r), 1);
    line_add(line, "}}\n");
}

static void write_language_epoch(struct line *line, const struct control_epoch *r,
                                 const struct control_status *holdings, uint32_t workers)
{
    line_add(line, "{\"epoch\":%" PRIu64 ",\"update\":%" PRIu64, r->epoch, r->update);
    write_number(line, ",\"loss\":", r->loss, ALL_DIGITS);
    write_number(line, ",\"perplexity\":", exp(r->loss), ALL_DIGITS);
    if (r->evaluated > 0) {
        write_number(line, ",\"held_out\":{\"loss\":", r->evaluation_loss, ALL_DIGITS);
        write_number(line, ",\"perplexity\":", exp(r->evaluation_loss), ALL_DIGITS);
        write_number(line, ",\"unigram_perplexity\":", r->unigram_perplexity, ALL_DIGITS);
        line_add(line, ",\"tokens\":%" PRIu64 "}", r->evaluated);
    } else {
        line_add(line, ",\"held_out\":null");
    }
    write_timing(line);
    write_number(line, ",\"epoch_s\":", r->timing.epoch_s, 6);
    write_number(line, ",\"evaluation_s\":", r->timing.evaluation_s, 6);
    write_holdings(line, holdings, workers);
    line_add(line, "}}\n");
}

void line_write_json(struct line *line, const struct job *job, const struct control_message *record,
                     const struct control_status *holdings)
{
    line->length = 0;
    const bool is_language = job->kind == JOB_MODEL_PARALLEL;
    if (record->kind == CONTROL_EPISODE)
        write_episode(line, &record->body.episode);
    else if (record->kind == CONTROL_UPDATE)
        (is_language ? write_language_update : write_update)(line, &record->body.update);
    else if (is_language)
        write_language_epoch(line, &record->body.epoch, holdings, workers_of(job));
    else
        write_epoch(line, &record->body.epoch);
}

/* ---- episodes.log and the terminal ---- */

static void write_ppo_text(struct line *line, const struct control_ppo *r, double seconds, uint64_t steps)
{
    line_add(line, "\tSteps: %" PRIu64, r->total_timesteps);
    if (isnan(r->ep_rew_mean)) /* no episode has ended */
        line_add(line, "\tReward: -\tLength: -");
    else
        line_add(line, "\tReward: %.2f\tLength: %.1f", r->ep_rew_mean, r->ep_len_mean);
    if (!r->is_a2c)
        line_add(line, "\tKL: %.4f", r->approx_kl);
    line_add(line, "\tEntropy: %.3f\tSteps/s: %.0f", -r->entropy_loss, per_second(steps, seconds));
    if (r->has_evaluation)
        line_add(line, "\tEvaluation: %.2f +- %.2f", r->evaluation.mean_reward, r->evaluation.std_reward);
}

static void write_episode_text(struct line *line, const struct control_episode *r)
{
    char metrics[EPISODE_MEANS_BYTES];
    episode_means_text(metrics, &r->metrics);
    if (r->has_ppo) {
        line_add(line, "Episode %" PRIu64, r->episode);
        write_ppo_text(line, &r->ppo, r->timing.episode_s, r->env_steps);
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

/* The sign of a NaN says nothing. */
static double without_sign_of_nan(double value)
{
    return isnan(value) ? (double)NAN : value;
}

static void write_epoch_text(struct line *line, const struct control_epoch *r, bool is_language)
{
    const double loss = without_sign_of_nan(r->evaluation_loss);
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

void line_write_text(struct line *line, const struct job *job, const struct control_message *record)
{
    line->length = 0;
    const bool is_language = job->kind == JOB_MODEL_PARALLEL;
    if (record->kind == CONTROL_EPISODE)
        write_episode_text(line, &record->body.episode);
    else if (record->kind == CONTROL_UPDATE)
        write_update_text(line, &record->body.update, is_language);
    else
        write_epoch_text(line, &record->body.epoch, is_language);
}

void line_write_solved(struct line *line, const struct job *job, double reward)
{
    line->length = 0;
    line_add(line, "Solved! %s is now %.2f!\n",
             job->stop.has_evaluation_reward ? "The evaluation's mean reward" : "Running reward", reward);
}

void line_write_not_solved(struct line *line, const struct job *job, double reward, uint64_t episodes)
{
    line->length = 0;
    if (job->stop.has_evaluation_reward && isnan(reward))
        line_add(line,
                 "Not solved: there was no evaluation in %" PRIu64
                 " updates, expected one with a mean reward of at least %.2f\n",
                 episodes, job->stop.evaluation_reward);
    else if (job->stop.has_evaluation_reward)
        line_add(line,
                 "Not solved: the evaluation's mean reward is %.2f after %" PRIu64
                 " updates, expected at least %.2f\n",
                 reward, episodes, job->stop.evaluation_reward);
    else
        line_add(line,
                 "Not solved: the running reward is %.2f after %" PRIu64
                 " episodes, expected more than %.2f\n",
                 reward, episodes, job->stop.running_reward);
}

void line_write_progress(struct line *line, const struct job *job, const struct control_message *record)
{
    line->length = 0;
    const struct control_episode *episode = &record->body.episode;
    const struct control_update *update = &record->body.update;
    if (record->kind == CONTROL_EPISODE)
        line_add(line, LINE_CLEAR "episode %" PRIu64 "  reward %.2f  running %.2f  %.0f steps/s",
                 episode->episode, episode->reward, episode->running_reward,
                 per_second(episode->env_steps, episode->timing.episode_s));
    else if (job->kind == JOB_MODEL_PARALLEL)
        line_add(line, LINE_CLEAR "update %" PRIu64 "  loss %.4f  perplexity %.2f  %.0f tokens/s",
                 update->update, update->loss, exp(update->loss), samples_per_s(update));
    else
        line_add(line, LINE_CLEAR "update %" PRIu64 "  loss %.4f  %.1f samples/s", update->update,
                 update->loss, samples_per_s(update));
}

/* ---- reading lines back ---- */

struct line_key line_key_of(const char *text)
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

/* ---- the first line after a rotation ---- */

#define CONTINUED_JSON "{\"event\":\"continued\",\"lines\":"
#define CONTINUED_TEXT "Continued: "
#define CONTINUED_RUN " lines stand in earlier files of run "

void line_write_continued(struct line *line, enum run_log log, uint64_t lines, const uint8_t id[RUN_ID_BYTES])
{
    char hex[2 * RUN_ID_BYTES + 1];
    line->length = 0;
    if (log == RUN_LOG_TEXT) {
        line_add(line, CONTINUED_TEXT "%" PRIu64 CONTINUED_RUN "%s\n", lines,
                 sodium_bin2hex(hex, sizeof hex, id, RUN_ID_BYTES));
        return;
    }
    line_add(line, CONTINUED_JSON "%" PRIu64, lines);
    write_timing(line);
    write_run(line, id);
    line_add(line, "}}\n");
}

bool line_continued(const char *text, uint64_t *lines)
{
    return sscanf(text, CONTINUED_JSON "%20" SCNu64 LINE_TIMING, lines) == 1 ||
           sscanf(text, CONTINUED_TEXT "%20" SCNu64 CONTINUED_RUN, lines) == 1;
}

bool line_run_id(const char *text, uint8_t id[RUN_ID_BYTES])
{
    const char *const keys[] = {LINE_RUN, CONTINUED_RUN};
    size_t bytes = 0;
    for (size_t i = 0; i < 2 && bytes == 0; i++) {
        const char *at = strstr(text, keys[i]);
        if (at != NULL)
            sodium_hex2bin(id, RUN_ID_BYTES, at + strlen(keys[i]), strcspn(at + strlen(keys[i]), "\"\n"),
                           NULL, &bytes, NULL);
    }
    return bytes == RUN_ID_BYTES;
}

static bool text_is(const char *text, const char *begin, const char *end)
{
    const size_t length = strlen(text);
    return strncmp(text, begin, strlen(begin)) == 0 && length >= strlen(end) &&
           strcmp(text + length - strlen(end), end) == 0;
}

bool line_is_event(const char *text, enum run_log log)
{
    uint64_t lines;
    if (log == RUN_LOG_TEXT)
        return text_is(text, "Solved! ", "\n") || text_is(text, "Not solved: ", "\n");
    return text_is(text, "{\"event\":\"", "}}\n") && strstr(text, "}{") == NULL &&
           !line_continued(text, &lines);
}
