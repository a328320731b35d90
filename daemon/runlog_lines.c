/* Formats the lines of the run's logs. Supervisor process; its only thread. */
#include "daemon/runlog_lines.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static void line_add_list(struct line *line, const char *format, va_list list)
{
    int length = vsnprintf(line->text + line->length, sizeof line->text - line->length, format, list);
    assert(length >= 0 && (size_t)length < sizeof line->text - line->length);
    line->length += (size_t)length;
}

static void line_begin(struct line *line, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void line_add(struct line *line, const char *format, ...) __attribute__((format(printf, 2, 3)));

static void line_begin(struct line *line, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    line->length = 0;
    line_add_list(line, format, list);
    va_end(list);
}

static void line_add(struct line *line, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    line_add_list(line, format, list);
    va_end(list);
}

enum { ALL_DIGITS = -1 };

/* JSON has no NaN and no infinity. */
static void line_add_number(struct line *line, const char *before, double value, int decimals)
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

/* Every `timing` begins with the time of day. */
static void line_add_timing(struct line *line)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    line_add(line, LINE_TIMING "\"unix_s\":%.3f", (double)now.tv_sec + (double)now.tv_nsec * 1e-9);
}

/* ---- events ---- */

/* Adds the process and the workers of a start to `timing`: they change no number of the run. */
static void line_add_workers(struct line *line, const struct job *job)
{
    line_add_timing(line);
    line_add(line, ",\"pid\":%ld,\"version\":\"%s\"", (long)getpid(), COALESCED_VERSION);
    if (job->kind == JOB_REINFORCE) {
        line_add(line, ",\"observers\":%u,\"environments\":%u}}\n", job->observers.count,
                 job->observers.environments);
        return;
    }
    line_add(line, ",\"servers\":%u,\"trainers\":%u,\"batch\":%u,\"threads\":%u", job->server.count,
             job->trainers.count, job->trainers.batch, job->trainers.threads);
    if (job->kind == JOB_MODEL_PARALLEL)
        line_add(line, ",\"part_threads\":[%u,%u,%u]", job->threads[JOB_LAYER_EMBEDDING].count,
                 job->threads[JOB_LAYER_LSTM].count, job->threads[JOB_LAYER_DECODER].count);
    line_add(line, "}}\n");
}

void line_start(struct line *line, const struct job *job)
{
    line_begin(line, "{\"event\":\"start\",\"seed\":%" PRIu64, job->seed);
    line_add_workers(line, job);
}

void line_resume(struct line *line, const struct job *job, uint64_t update)
{
    line_begin(line, "{\"event\":\"resume\",\"update\":%" PRIu64, update);
    line_add_workers(line, job);
}

void line_finish_episodes(struct line *line, const char *why, uint64_t episodes, double running_reward,
                          double job_s)
{
    line_begin(line, "{\"event\":\"%s\",\"episodes\":%" PRIu64, why, episodes);
    line_add_number(line, ",\"running_reward\":", running_reward, ALL_DIGITS);
    line_add_timing(line);
    line_add(line, ",\"job_s\":%.6f}}\n", job_s);
}

void line_finish_updates(struct line *line, const char *why, uint64_t updates, double job_s)
{
    line_begin(line, "{\"event\":\"%s\",\"updates\":%" PRIu64, why, updates);
    line_add_timing(line);
    line_add(line, ",\"job_s\":%.6f}}\n", job_s);
}

void line_solved(struct line *line, double running_reward)
{
    line_begin(line, "Solved! Running reward is now %.2f!\n", running_reward);
}

void line_not_solved(struct line *line, double running_reward, uint64_t episodes, double wanted)
{
    line_begin(line,
               "Not solved: the running reward is %.2f after %" PRIu64 " episodes, expected more than %.2f\n",
               running_reward, episodes, wanted);
}

/* ---- episodes ---- */

void line_episode_json(struct line *line, const struct control_episode *r)
{
    line_begin(line, "{\"episode\":%" PRIu64, r->episode);
    line_add_number(line, ",\"reward\":", r->reward, ALL_DIGITS);
    line_add_number(line, ",\"running_reward\":", r->running_reward, ALL_DIGITS);
    line_add_number(line, ",\"loss\":", r->loss, ALL_DIGITS);
    line_add(line, ",\"env_steps\":%" PRIu64, r->env_steps);
    line_add_timing(line);
    line_add_number(line, ",\"episode_s\":", r->timing.episode_s, 6);
    line_add_number(line, ",\"learn_s\":", r->timing.learn_s, 6);
    line_add_number(line, ",\"env_steps_per_s\":", per_second(r->env_steps, r->timing.episode_s), 1);
    line_add(line, ",\"launches\":%" PRIu64 ",\"requests\":%" PRIu64, r->timing.launches, r->timing.requests);
    line_add_number(line, ",\"batch_mean\":", r->timing.batch_mean, 3);
    line_add(line, ",\"batch_max\":%u", r->timing.batch_max);
    line_add_number(line, ",\"wait_us_p50\":", r->timing.wait_us_p50, 0);
    line_add_number(line, ",\"wait_us_p99\":", r->timing.wait_us_p99, 0);
    line_add(line, "}}\n");
}

void line_episode_text(struct line *line, const struct control_episode *r)
{
    line_begin(line, "Episode %" PRIu64 "\tLast reward: %.2f\tAverage reward: %.2f\n", r->episode, r->reward,
               r->running_reward);
}

void line_episode_progress(struct line *line, const struct control_episode *r)
{
    line_begin(line, "episode %" PRIu64 "  reward %.2f  running %.2f  %.0f steps/s", r->episode, r->reward,
               r->running_reward, per_second(r->env_steps, r->timing.episode_s));
}

/* ---- updates and epochs ---- */

void line_update_json(struct line *line, const struct control_update *r)
{
    line_begin(line, "{\"update\":%" PRIu64, r->update);
    line_add_number(line, ",\"loss\":", r->loss, ALL_DIGITS);
    line_add(line, ",\"losses\":[");
    for (uint32_t i = 0; i < r->trainers; i++)
        line_add_number(line, i > 0 ? "," : "", r->losses[i], ALL_DIGITS);
    line_add_number(line, "]," LINE_LR, r->lr, ALL_DIGITS);
    line_add(line, ",\"samples\":%" PRIu64 ",\"late\":%" PRIu64 ",\"version\":%" PRIu64, r->samples, r->late,
             r->update);
    line_add_timing(line);
    line_add_number(line, ",\"round_s\":", r->timing.round_s, 6);
    line_add_number(line, ",\"wait_s\":", r->timing.wait_s, 6);
    line_add_number(line, ",\"update_s\":", r->timing.update_s, 6);
    line_add_number(line, ",\"samples_per_s\":", per_second(r->samples, r->timing.round_s), 1);
    line_add(line, ",\"bytes\":%" PRIu64 "}}\n", r->timing.bytes);
}

void line_update_text(struct line *line, const struct control_update *r)
{
    line_begin(line, "Update %" PRIu64 "\tLoss: %.4f\tSamples/s: %.1f\n", r->update, r->loss,
               per_second(r->samples, r->timing.round_s));
}

void line_update_progress(struct line *line, const struct control_update *r)
{
    line_begin(line, "update %" PRIu64 "  loss %.4f  %.1f samples/s", r->update, r->loss,
               per_second(r->samples, r->timing.round_s));
}

void line_epoch_json(struct line *line, const struct control_epoch *r)
{
    bool evaluated = r->evaluated > 0;
    line_begin(line, "{\"epoch\":%" PRIu64 ",\"update\":%" PRIu64, r->epoch, r->update);
    line_add_number(line, ",\"loss\":", r->loss, ALL_DIGITS);
    line_add_number(line, ",\"test_loss\":", evaluated ? r->evaluation_loss : (double)NAN, ALL_DIGITS);
    line_add_number(line,
                    ",\"accuracy\":", evaluated ? (double)r->correct / (double)r->evaluated : (double)NAN,
                    ALL_DIGITS);
    line_add_number(line, ",\"correct\":", evaluated ? (double)r->correct : (double)NAN, 0);
    line_add(line, ",\"evaluated\":%" PRIu64, r->evaluated);
    line_add_timing(line);
    line_add_number(line, ",\"epoch_s\":", r->timing.epoch_s, 6);
    line_add_number(line, ",\"evaluation_s\":", r->timing.evaluation_s, 6);
    line_add(line, "}}\n");
}

void line_epoch_text(struct line *line, const struct control_epoch *r)
{
    line_begin(line, "Epoch %" PRIu64 "\tLoss: %.4f", r->epoch, r->loss);
    if (r->evaluated > 0)
        line_add(line, "\tTest loss: %.4f\tAccuracy: %.2f %%\t(%" PRIu64 " of %" PRIu64 ")",
                 r->evaluation_loss, 100 * (double)r->correct / (double)r->evaluated, r->correct,
                 r->evaluated);
    line_add(line, "\n");
}

/* ---- model-parallel: samples are tokens, a loss is the mean since the line before ---- */

/* Tokens that were read before a resume do not belong to the line's time. */
static double tokens_per_s(const struct control_update *r)
{
    return per_second(r->samples - r->timing.samples_before, r->timing.round_s);
}

void line_language_update_json(struct line *line, const struct control_update *r)
{
    line_begin(line, "{\"update\":%" PRIu64, r->update);
    line_add_number(line, ",\"loss\":", r->loss, ALL_DIGITS);
    line_add_number(line, "," LINE_LR, r->lr, ALL_DIGITS);
    line_add(line, ",\"samples\":%" PRIu64, r->samples);
    line_add_timing(line);
    line_add_number(line, ",\"round_s\":", r->timing.round_s, 6);
    line_add_number(line, ",\"samples_per_s\":", tokens_per_s(r), 1);
    line_add(line, "}}\n");
}

void line_language_update_text(struct line *line, const struct control_update *r)
{
    line_begin(line, "Update %" PRIu64 "\tLoss: %.4f\tPerplexity: %.2f\tLr: %g\tTokens/s: %.0f\n", r->update,
               r->loss, exp(r->loss), r->lr, tokens_per_s(r));
}

void line_language_update_progress(struct line *line, const struct control_update *r)
{
    line_begin(line, "update %" PRIu64 "  loss %.4f  perplexity %.2f  %.0f tokens/s", r->update, r->loss,
               exp(r->loss), tokens_per_s(r));
}

/* One count of each worker; `member` is its offset in struct control_status. */
static void line_add_counts(struct line *line, const char *name, const struct line_holdings *holdings,
                            size_t member)
{
    line_add(line, ",\"%s\":[", name);
    for (uint32_t i = 0; i < holdings->workers; i++) {
        uint32_t count;
        memcpy(&count, (const char *)&holdings->of[i] + member, sizeof count);
        line_add(line, "%s%u", i > 0 ? "," : "", count);
    }
    line_add(line, "]");
}

/* One object for each worker: how many references to its objects each other worker has, by worker number.
 * More of them than a job can have do not fit, and are left out. */
static void line_add_users(struct line *line, const struct line_holdings *holdings)
{
    const size_t end = line->length + LINE_PEERS_BYTES - (size_t)LINE_PEER_BYTES * holdings->workers;
    line_add(line, ",\"users_of\":[");
    for (uint32_t i = 0; i < holdings->workers; i++) {
        const char *before = "";
        line_add(line, "%s{", i > 0 ? "," : "");
        for (uint32_t peer = 0; peer < holdings->workers; peer++) {
            const uint32_t users = holdings->of[i].users_of[peer];
            if (users == 0 || line->length > end)
                continue;
            line_add(line, "%s\"%u\":%u", before, peer, users);
            before = ",";
        }
        line_add(line, "}");
    }
    line_add(line, "]");
}

void line_language_epoch_json(struct line *line, const struct control_epoch *r,
                              const struct line_holdings *holdings)
{
    line_begin(line, "{\"epoch\":%" PRIu64 ",\"update\":%" PRIu64, r->epoch, r->update);
    line_add_number(line, ",\"loss\":", r->loss, ALL_DIGITS);
    line_add_number(line, ",\"perplexity\":", exp(r->loss), ALL_DIGITS);
    if (r->evaluated > 0) {
        line_add_number(line, ",\"held_out\":{\"loss\":", r->evaluation_loss, ALL_DIGITS);
        line_add_number(line, ",\"perplexity\":", exp(r->evaluation_loss), ALL_DIGITS);
        line_add_number(line, ",\"unigram_perplexity\":", r->unigram_perplexity, ALL_DIGITS);
        line_add(line, ",\"tokens\":%" PRIu64 "}", r->evaluated);
    } else {
        line_add(line, ",\"held_out\":null");
    }
    line_add_timing(line);
    line_add_number(line, ",\"epoch_s\":", r->timing.epoch_s, 6);
    line_add_number(line, ",\"evaluation_s\":", r->timing.evaluation_s, 6);
    line_add_counts(line, "objects", holdings, offsetof(struct control_status, objects));
    line_add_counts(line, "references", holdings, offsetof(struct control_status, references));
    line_add_counts(line, "users", holdings, offsetof(struct control_status, users));
    line_add_users(line, holdings);
    line_add_counts(line, "contexts", holdings, offsetof(struct control_status, contexts));
    line_add_counts(line, "pieces", holdings, offsetof(struct control_status, pieces));
    line_add(line, "}}\n");
}

void line_language_epoch_text(struct line *line, const struct control_epoch *r)
{
    line_begin(line, "Epoch %" PRIu64 "\tLoss: %.4f\tPerplexity: %.2f", r->epoch, r->loss, exp(r->loss));
    if (r->evaluated > 0)
        line_add(line,
                 "\tHeld-out loss: %.4f\tHeld-out perplexity: %.2f\t(unigram: %.2f; %" PRIu64 " tokens)",
                 r->evaluation_loss, exp(r->evaluation_loss), r->unigram_perplexity, r->evaluated);
    line_add(line, "\n");
}

void line_language_finish(struct line *line, const char *why, uint64_t updates,
                          const struct line_holdings *holdings, double job_s)
{
    uint64_t objects = 0, references = 0, users = 0, contexts = 0, pieces = 0;
    for (uint32_t i = 0; i < holdings->workers; i++) {
        objects += holdings->of[i].objects;
        references += holdings->of[i].references;
        users += holdings->of[i].users;
        contexts += holdings->of[i].contexts;
        pieces += holdings->of[i].pieces;
    }
    line_begin(line, "{\"event\":\"%s\",\"updates\":%" PRIu64, why, updates);
    line_add(line, ",\"objects\":%" PRIu64 ",\"references\":%" PRIu64 ",\"users\":%" PRIu64, objects,
             references, users);
    line_add(line, ",\"contexts\":%" PRIu64 ",\"pieces\":%" PRIu64, contexts, pieces);
    line_add_timing(line);
    line_add(line, ",\"job_s\":%.6f}}\n", job_s);
}

/* ---- reading lines back ---- */

struct line_key line_key_of_json(const char *text)
{
    uint64_t number, epoch;
    if (sscanf(text, "{\"update\":%20" SCNu64 ",", &number) == 1)
        return (struct line_key){.kind = LINE_UPDATE, .number = number};
    if (sscanf(text, "{\"epoch\":%20" SCNu64 ",\"update\":%20" SCNu64 ",", &epoch, &number) == 2)
        return (struct line_key){.kind = LINE_EPOCH, .number = number, .epoch = epoch};
    return (struct line_key){.kind = LINE_OTHER};
}

struct line_key line_key_of_text(const char *text)
{
    uint64_t number;
    if (sscanf(text, "Update %20" SCNu64 "\t", &number) == 1)
        return (struct line_key){.kind = LINE_UPDATE, .number = number};
    if (sscanf(text, "Epoch %20" SCNu64 "\t", &number) == 1)
        return (struct line_key){.kind = LINE_EPOCH, .number = number, .epoch = number};
    return (struct line_key){.kind = LINE_OTHER};
}

/* The evaluation's members stand last in front of `timing`; the first is null where there was none. */
bool line_evaluated(const char *text, size_t *bytes)
{
    static const char *const firsts[] = {",\"held_out\":", ",\"test_loss\":"};
    for (size_t i = 0; i < sizeof firsts / sizeof firsts[0]; i++) {
        const char *at = strstr(text, firsts[i]);
        if (at == NULL)
            continue;
        *bytes = (size_t)(at - text);
        return strncmp(at + strlen(firsts[i]), "null", 4) != 0;
    }
    *bytes = strlen(text);
    return false;
}
